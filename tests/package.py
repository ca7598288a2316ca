"""Wheel and sdist, and the wheel tried in a fresh environment without the repository: `python -m tests.package`."""

import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMANDS = ("audit", "bench", "cohort", "compare", "demo", "fit", "init", "predict", "reproduce")
IN_SDIST = (
    "Makefile",
    "constraints.txt",
    "paper.md",
    "docs/index.md",
    "tests/test_docs.py",
    "tests/layers/test_pmdn.py",
)
TRIAL = """
import pathlib, deconfound as dc
assert "site-packages" in dc.__file__, dc.__file__
people = [line.split(",") for line in dc.example("heart").read_text().splitlines()[1:]]
table = {"site": [row[3] for row in people], "ill": [int(row[-1] != "0") for row in people]}
page = dc.audit([float(row[1]) for row in people], table, confounds=["site"], labels=["ill"], permutations=39,
                bootstraps=40, embedding=False).to_html()
assert "<script>" in page and "<style>" in page and len(page) > 50_000
assert (pathlib.Path(dc.__file__).parent / "py.typed").exists()
"""


def run(*command: object, cwd: Path) -> str:
    """What a command prints; its failure is ours."""
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel and the sdist; the wheel is built from the sdist, as an index would."""
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=ROOT)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def check_sdist(sdist: Path) -> None:
    """It holds the tests, the pages and all that `make test` reads."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    missing = [name for name in IN_SDIST if name not in names]
    assert not missing, missing
    assert not [name for name in names if name.endswith(".pyc")]


def main() -> None:
    """Build, install, and try every command without the repository."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel, sdist = build(folder / "dist")
        check_sdist(sdist)
        venv.create(folder / "fresh", with_pip=True)
        programs = folder / "fresh" / "bin"
        constraints = ROOT / "constraints.txt"
        run(programs / "pip", "install", "--quiet", "--constraint", constraints, "torch", wheel, cwd=folder)
        empty = folder / "empty"
        empty.mkdir()
        print(run(programs / "deconfound", "--version", cwd=empty).strip())
        for command in COMMANDS:
            assert "--help" in run(programs / "deconfound", command, "--help", cwd=empty), command
        run(programs / "python", "-c", TRIAL, cwd=empty)
        run(programs / "deconfound", "demo", "--steps", "2", cwd=empty)
        assert (empty / "deconfound-demo.html").stat().st_size > 50_000
        print(*(f"{made.name}: {made.stat().st_size // 1024} kB, fine" for made in (wheel, sdist)), sep="\n")


if __name__ == "__main__":
    main()
