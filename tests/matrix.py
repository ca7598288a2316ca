"""Tries the promised versions, as far as they can be installed here: `python -m tests.matrix --out FILE [NAME …]`.

Each cell is a fresh environment with the wheel and the tests of the sdist. torch is installed only where a build
without CUDA is at hand, or with `--cuda` also with gigabytes of CUDA libraries; cells without it try what needs no
torch, and the result says so.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.package import ROOT, build

ROOMS = ["design", "metrics", "layers", "sklearn_", "data", "surgery/test_model.py", "training/test_run.py"]
NAMED = ("torch", "numpy", "pandas", "scikit-learn", "scipy", "pyarrow")
# What needs no torch: the design, also on the machine that only predicts.
WITHOUT_TORCH = """
import compileall, doctest, importlib, pkgutil, deconfound, deconfound.design
assert compileall.compile_dir(deconfound.__path__[0], quiet=1)
tried = [doctest.testmod(importlib.import_module(each.name))
         for each in pkgutil.iter_modules(deconfound.design.__path__, "deconfound.design.")]
print(f"{sum(each.attempted - each.failed for each in tried)} passed, {sum(each.failed for each in tried)} failed")
"""


@dataclass
class Cell:
    """One environment: a Python, versions that are asked for, and what came of it."""

    name: str
    python: str
    pins: dict[str, str] = field(default_factory=dict)
    torch: bool = True
    ran: str = ""
    installed: dict[str, str] = field(default_factory=dict)
    passed: int = 0
    failed: int = 0
    seconds: int = 0
    note: str = ""


def oldest() -> dict[str, str]:
    """The lower bounds in pyproject.toml, the highest where extras differ."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*extras["test"], *project["dependencies"], *extras["tables"], *extras["train"]]
    found = dict(re.match(r"([\w-]+)>=([\d.]+)", each).groups() for each in wanted)
    return {name: found[name] for name in NAMED}


def cells() -> list[Cell]:
    """What is promised."""
    old = oldest()
    without = {name: version for name, version in old.items() if name != "torch"}
    return [
        Cell("newest, Python 3.11", "3.11"),
        # With their scipy and pyarrow: newer ones need a newer numpy, and scikit-learn 1.6 stops at the newer scipy.
        Cell("oldest numpy, pandas and scikit-learn, Python 3.11", "3.11", without),
        Cell("oldest torch, Python 3.11", "3.11", {"torch": old["torch"]}),
        Cell("Python 3.12", "3.12"),
        Cell("Python 3.13", "3.13"),
    ]


def interpreter(version: str) -> str | None:
    """A Python of that version on this machine."""
    known = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return str(known[-1]) if known else shutil.which(f"python{version}")


def call(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command and all that it prints; PYTHONPATH would put other code before the wheel."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([str(word) for word in words], cwd=cwd, env=environment, capture_output=True, text=True)


def has_small_torch(python: Path, cell: Cell, folder: Path) -> bool:
    """Whether torch comes without gigabytes of CUDA libraries: a dry run of pip says what it would install."""
    wanted = f"torch=={cell.pins['torch']}" if "torch" in cell.pins else "torch==2.13.0"
    found = call(python, "-m", "pip", "install", "--dry-run", "--quiet", "--report", "-", wanted, cwd=folder)
    if found.returncode:
        return False
    names = [each["metadata"]["name"] for each in json.loads(found.stdout)["install"]]
    return not any(name.startswith("nvidia") for name in names)


def counts(text: str) -> tuple[int, int]:
    """Passed and failed, from the last line of pytest or of the trial."""
    last = text.splitlines()[-1]
    numbers = [sum(map(int, re.findall(rf"(\d+) {word}", last))) for word in ("passed", "failed", "error")]
    return numbers[0], numbers[1] + numbers[2]


def try_cell(cell: Cell, wheel: Path, source: Path, folder: Path, cuda: bool) -> None:
    """Make the environment and run what can run in it."""
    base = interpreter(cell.python)
    if base is None:
        cell.note = "this Python is not on the machine"
        return
    call(base, "-m", "venv", folder / "env", cwd=folder)
    python = folder / "env" / "bin" / "python"
    cell.torch = cuda or has_small_torch(python, cell, folder)
    if not cell.torch:
        cell.note = "no build of torch without CUDA libraries can be installed here"
        if "torch" in cell.pins:
            cell.note = f"not tried: {cell.note}"
            return
    pins = [f"{name}=={version}" for name, version in cell.pins.items()]
    torch = [] if "torch" in cell.pins else ["torch==2.13.0"]
    wanted = [*pins, *torch, f"{wheel}[test]"] if cell.torch else ["--no-deps", wheel, "numpy", "pandas"]
    options = [] if cell.pins or not cell.torch else ["--constraint", ROOT / "constraints.txt"]
    installing = call(python, "-m", "pip", "install", "--quiet", *options, *wanted, cwd=folder)
    if installing.returncode:
        cell.note = f"could not be installed: {installing.stderr.strip().splitlines()[-1]}"
        return
    listed = json.loads(call(python, "-m", "pip", "list", "--format=json", cwd=folder).stdout)
    cell.installed = {each["name"]: each["version"] for each in listed if each["name"].lower() in NAMED}
    started = time.perf_counter()
    if cell.torch:
        rooms = [source / "tests" / room for room in ROOMS]
        quiet = ["-q", "-n0", "-W", "ignore", "-p", "no:cacheprovider"]
        done = call(python, "-m", "pytest", *quiet, *rooms, cwd=source)
        cell.ran = " ".join(f"tests/{room}" for room in ROOMS)
    else:
        done = call(python, "-c", WITHOUT_TORCH, cwd=folder)
        cell.ran = "all files compile; examples of deconfound.design"
    cell.seconds = round(time.perf_counter() - started)
    cell.passed, cell.failed = counts(done.stdout.strip() or "1 error")
    if cell.failed:
        named = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, flags=re.MULTILINE)
        reasons = re.findall(r"^E +(.+)", done.stdout, flags=re.MULTILINE)
        cell.note = f"{' '.join(named)[:400]} {reasons[0][:200] if reasons else done.stderr[-300:]}"


def main() -> None:
    """Try the cells one after another and write what came of each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cuda", action="store_true", help="also install torch where it brings CUDA libraries")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    before: list[dict[str, Any]] = json.loads(asked.out.read_text()).get("cells", []) if asked.out.exists() else []
    found = {each["name"]: each for each in before}
    made = {"commit": call("git", "rev-parse", "HEAD", cwd=ROOT).stdout.strip(), "date": time.strftime("%Y-%m-%d")}
    with tempfile.TemporaryDirectory() as name:
        wheel, sdist = build(Path(name) / "dist")
        with tarfile.open(sdist) as archive:
            archive.extractall(name, filter="data")
        source = Path(name) / sdist.name.removesuffix(".tar.gz")
        for cell in cells():
            if asked.names and cell.name not in asked.names:
                continue
            with tempfile.TemporaryDirectory() as folder:
                try_cell(cell, wheel, source, Path(folder), asked.cuda)
            found[cell.name] = {**asdict(cell), **made}
            print(f"{cell.name}: {cell.passed} passed, {cell.failed} failed. {cell.note}", flush=True)
            content = json.dumps({"cells": list(found.values())}, indent=1, ensure_ascii=False)
            asked.out.write_text(content + "\n")
    sys.exit(any(each["failed"] for each in found.values()))


if __name__ == "__main__":
    main()
