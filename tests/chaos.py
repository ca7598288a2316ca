"""`make chaos`: runs are killed and disturbed from outside; each ends with the same numbers or a clear refusal.

    python -m tests.chaos --out docs/results/chaos.json

Every case starts the real command in processes of its own. A case is "equal" when `results.json` holds the numbers of
an undisturbed run, and "refused" when the command ended with code 2 and a message of the library.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
import yaml

from deconfound.training import provenance
from tests.training import tiny

ROOT = Path(__file__).parents[1]
EPOCHS, KILLS = 700, 20


@dataclass(frozen=True)
class Case:
    """How a disturbed run ended."""

    name: str
    outcome: str
    detail: str
    seconds: float


class Bench:
    """A folder with a table, a config, and the numbers of a run that nobody disturbed."""

    def __init__(self, folder: Path, epochs: int) -> None:
        self.folder = folder
        self.frame = tiny.cohort(90)
        tiny.write(folder, self.frame)
        content = tiny.settings(
            folder / "table.csv", folder / "whole", training={"epochs": epochs}, run={"checkpoint_seconds": 0.3}
        )
        (folder / "config.yaml").write_text(yaml.safe_dump(content))
        start = time.monotonic()
        process = self.command("whole")
        while process.poll() is None and not (folder / "whole" / "fold-0").exists():
            time.sleep(0.05)
        self.startup = time.monotonic() - start
        done = process.communicate()[0]
        self.training = time.monotonic() - start - self.startup
        self.whole = self.numbers("whole")
        assert self.whole is not None, done

    def command(self, run: str | Path, *more: str, **options: object) -> subprocess.Popen[str]:
        """Start `deconfound fit` into a folder."""
        words = [sys.executable, "-m", "deconfound.cli", "fit", str(self.folder / "config.yaml")]
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        return subprocess.Popen(
            [*words, f"run.folder={self.folder / run}", *more], text=True, env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, **options,
        )  # fmt: skip

    def numbers(self, run: str | Path) -> list[object] | None:
        """What training decides: results and predictions."""
        results = self.folder / run / "results.json"
        if not results.exists():
            return None
        content = json.loads(results.read_text())
        said = [path.read_text() for path in sorted((self.folder / run).glob("fold-*/predictions.csv"))]
        return [content["folds"], content["metrics"], said]

    def ended(self, run: str | Path, process: subprocess.Popen[str], refusal: str) -> tuple[str, str]:
        """Whether a process that is left alone ends equal, refuses with these words, or neither."""
        output = process.communicate(timeout=600)[0]
        if process.returncode == 0:
            return ("equal" if self.numbers(run) == self.whole else "OTHER NUMBERS"), ""
        line = next((line for line in output.splitlines() if refusal in line), "")
        return ("refused" if process.returncode == 2 and line else "FAILED"), line or output[-300:]


def kills_on_a_clock(bench: Bench) -> tuple[str, str]:
    """The command is killed at random moments, twenty times."""
    draw, killed = random.Random(0), 0
    while killed < KILLS:
        process = bench.command("clock")
        try:
            process.wait(draw.uniform(0.5 * bench.startup, bench.startup + 3 * bench.training / KILLS))
            break
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            killed += 1
    outcome, detail = bench.ended("clock", bench.command("clock"), "")
    return outcome, f"{killed} kills {detail}".strip()


def kills_of_workers(bench: Bench) -> tuple[str, str]:
    """Two folds at a time; the processes that train are killed one by one, then the command is given again."""
    process = bench.command("workers", "--jobs", "2")
    killed: set[int] = set()
    while process.poll() is None and len(killed) < 3:
        held = list((bench.folder / "workers").glob("fold-*/last.ckpt"))
        for child in _children(process.pid) if held else []:
            if child not in killed and "loky" in _command_of(child):
                os.kill(child, signal.SIGKILL)
                killed.add(child)
                break
        time.sleep(0.5)
    process.communicate(timeout=600)
    outcome, detail = bench.ended("workers", bench.command("workers", "--jobs", "2"), "")
    return outcome, f"{len(killed)} workers killed, then exit code {process.returncode} {detail}".strip()


def _children(parent: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True)
    return [int(word) for word in found.stdout.split()]


def _command_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:  # it has just ended
        return ""


def full_disk(bench: Bench) -> tuple[str, str]:
    """No file may grow beyond 6 kB; then there is room again."""

    def little_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, resource.RLIM_INFINITY))

    first = bench.ended("full", bench.command("full", preexec_fn=little_room), "Make room or choose another folder")
    second = bench.ended("full", bench.command("full"), "")
    return (second[0] if first[0] == "refused" else f"FULL DISK {first[0]}"), first[1]


def read_only(bench: Bench) -> tuple[str, str]:
    """The folder of the run cannot be made."""
    return bench.ended("/proc/run", bench.command("/proc/run"), "must be written; got")


def changed_data(bench: Bench) -> tuple[str, str]:
    """The table is overwritten as soon as the first fold has begun; afterwards the old one is brought back."""
    table = bench.folder / "table.csv"
    process = bench.command("changed")
    while process.poll() is None and not (bench.folder / "changed" / "fold-0" / "last.ckpt").exists():
        time.sleep(0.1)
    old = table.read_bytes()
    pd.read_csv(table, dtype={"id": str}).assign(f0=0.0).to_csv(table, index=False)
    first = bench.ended("changed", process, "must be those it was started with")
    table.write_bytes(old)
    second = bench.ended("changed", bench.command("changed"), "")
    return (second[0] if first[0] == "refused" else f"CHANGED DATA {first[0]}"), first[1]


def two_processes(bench: Bench) -> tuple[str, str]:
    """Two commands work on one folder at the same time."""
    both = [bench.command("twice"), bench.command("twice")]
    ends = [bench.ended("twice", process, "must be worked on by one process") for process in both]
    good = sorted(end[0] for end in ends) in (["equal", "equal"], ["equal", "refused"])
    return ("equal" if good else "FAILED"), "; ".join(f"{outcome} {detail}".strip() for outcome, detail in ends)


CASES = (kills_on_a_clock, kills_of_workers, full_disk, read_only, changed_data, two_processes)


def _write(path: Path, found: list[Case]) -> None:
    origin = provenance(0, "")
    content = {
        "cases": [asdict(case) for case in found],
        "provenance": {k: origin[k] for k in ("deconfound", "commit")},
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    """Run the cases and write how each ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "chaos.json")
    parser.add_argument("--only", default="", help="names of cases, with commas")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), options.epochs)
        for case in CASES:
            if options.only and case.__name__ not in options.only.split(","):
                continue
            start = time.monotonic()
            outcome, detail = case(bench)
            detail = detail.replace(folder, "FOLDER")
            found.append(Case(case.__name__.replace("_", " "), outcome, detail, round(time.monotonic() - start, 1)))
            print(found[-1], flush=True)
            _write(options.out, found)
    sys.exit(0 if all(case.outcome in ("equal", "refused") for case in found) else 1)


if __name__ == "__main__":
    main()
