"""Every target in turn until the time is up; the count of inputs goes to a file."""

import argparse
import json
import time
from collections import Counter
from pathlib import Path

import deconfound as dc
from tests.fuzz import TARGETS, fuzz


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--only", default="", help="names of targets, with commas")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    names = [name for name in TARGETS if not asked.only or name in asked.only.split(",")]
    total = {name: Counter[str]() for name in names}
    failures: dict[str, str] = {}
    end, seed = time.monotonic() + asked.seconds, 0
    while time.monotonic() < end and len(failures) < len(names):
        for name in [name for name in names if name not in failures]:
            try:
                total[name] += fuzz(name, 200, seed)
            except Exception as error:
                failures[name] = f"{type(error).__name__}: {error}"
        seed += 1
    report = {
        "version": dc.__version__,
        "seconds": asked.seconds,
        "inputs": {name: dict(sorted(taken.items())) for name, taken in total.items()},
        "failures": failures,
    }
    print(json.dumps(report, indent=1))
    if asked.out:
        asked.out.write_text(json.dumps(report, indent=1) + "\n")
    if failures:
        raise SystemExit(1)


main()
