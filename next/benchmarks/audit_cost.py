"""What an audit costs: seconds and memory by rows, features and confounds, with the defaults.

    python benchmarks/audit_cost.py [--quick]

Each audit runs in a process of its own, whose peak memory is read at its end. The last lines are
slopes: the power of rows, features or confounds with which the seconds grow.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time

import numpy as np
import pandas as pd

import deconfound as dc

# Rows, features and confounds. A single feature is the score of a model.
BASE = (1000, 64, 2)
CASES = (
    BASE,
    (2000, 64, 2),
    (8000, 64, 2),
    (32_000, 64, 2),
    (1000, 256, 2),
    (1000, 1024, 2),
    (1000, 64, 4),
    (1000, 64, 8),
    (1000, 1, 2),
    (3000, 1536, 3),
    (100_000, 50, 8),
)


def run_audit(rows: int, features: int, confounds: int) -> dict[str, float]:
    """Audit random features, or a score, and return what it cost."""
    random = np.random.default_rng(0)
    table = pd.DataFrame({"dx": random.choice(["AD", "CN"], rows)})
    for number in range(confounds):
        numbers, levels = random.normal(size=rows), random.choice(list("ABC"), rows)
        table[f"confound {number}"] = numbers if number % 2 else levels
    names = [name for name in table.columns if name != "dx"]
    values = random.normal(size=(rows, features))
    start = time.perf_counter()
    if features == 1:
        report = dc.audit(values, table, confounds=names, labels=["dx"], positive="AD")
    else:
        report = dc.audit(None, table, confounds=names, labels=["dx"], features=values)
    seconds = time.perf_counter() - start
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    assert len(report.verdicts) == confounds
    return {"seconds": round(seconds, 1), "megabytes": round(megabytes)}


def main() -> None:
    """Run all cases, each in its own process, and print the table and the slopes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", nargs=3, type=int, help="run this case alone, and print JSON")
    parser.add_argument("--quick", action="store_true", help="leave out the two largest cases")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(run_audit(*options.case)))
        return
    costs = {}
    for case in CASES[:-2] if options.quick else CASES:
        command = [sys.executable, __file__, "--case", *map(str, case)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        costs[case] = json.loads(output)
        rows, features, confounds = case
        print(
            f"{rows:>7,} rows × {features:>5,} × {confounds} confounds: {costs[case]}", flush=True
        )
    pairs = {
        "rows, 1,000 to 2,000": (BASE, (2000, 64, 2), 2),
        "rows, 8,000 to 32,000": ((8000, 64, 2), (32_000, 64, 2), 4),
        "features, 64 to 1,024": (BASE, (1000, 1024, 2), 16),
        "confounds, 2 to 8": (BASE, (1000, 64, 8), 4),
    }
    for name, (small, large, factor) in pairs.items():
        slope = math.log(costs[large]["seconds"] / costs[small]["seconds"]) / math.log(factor)
        print(f"slope by {name}: {slope:.2f}")


if __name__ == "__main__":
    main()
