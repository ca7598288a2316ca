"""Check and time the kernels on a GPU in one go: `python benchmarks/gpu.py [folder]`.

Compiles in parallel, checks against float64, times the cuts of each pass (which decides `deconfound.kernels.tiles`),
then one layer's passes and whole training steps. Prints short tables and writes `cuda.json` after each part.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

PROCESSES = 12


def main() -> None:
    """Run everything within a few minutes."""
    started = time.time()
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    deadline = float(os.environ.get("SECONDS_FOR_ALL", "200"))
    helpers = [subprocess.Popen([sys.executable, __file__, "--part", str(part)]) for part in range(PROCESSES)]
    for helper in helpers:
        helper.wait()
    print(f"compiled after {time.time() - started:.0f} s", flush=True)

    from deconfound.benchmarks import kernel_checks, steps
    from deconfound.benchmarks.run import run, save

    result = run("cuda", ["checks"])
    for row in result["checks"]:
        if row["beta"] > 1e-6 or row["cross"] > 1e-6 or max(row["residual"], row["eval"]) > row["allowed"]:
            print("WRONG", row)
    save(result, folder)
    print(f"checked after {time.time() - started:.0f} s", flush=True)

    result["tiles"] = list(kernel_checks.sweep())
    for kernel in ("move", "products", "subtraction"):
        for n, d in kernel_checks.TILES:
            rows = [row for row in result["tiles"] if (row["kernel"], row["n"]) == (kernel, n)]
            rows.sort(key=lambda row: row.get("ratio", 99))
            cuts = ("×".join(str(int(part)) for part in row["tile"]) + f" {row.get('ratio', 99):.2f}" for row in rows)
            print(kernel, n, d, "; ".join(cuts), flush=True)
    save(result, folder)

    def tell(section: str, row: dict[str, object]) -> None:
        print(section, json.dumps({key: value for key, value in row.items() if key != "q"}), flush=True)

    result |= {key: value for key, value in run("cuda", ["passes"], tell=tell).items() if key == "passes"}
    save(result, folder)
    result["steps"] = []
    plan = [
        (("eager", "graph"), ("none", "batchnorm", "pmdn", "mdn", "rmdn", "layernorm"), "CNN"),
        (("eager",), ("none", "batchnorm", "pmdn"), "3D"),
        (("eager",), ("none", "batchnorm", "pmdn"), "ViT"),
        (("compiled",), ("none", "pmdn"), "CNN"),
    ]
    for modes, methods, network in plan:
        if time.time() - started > deadline - 30:
            print("out of time before", network, modes)
            break
        for row in steps.measure("cuda", modes, methods, only=network):
            result["steps"].append(row)
            tell("steps", row)
    save(result, folder)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--part"]:
        from deconfound.benchmarks.kernel_checks import precompile

        precompile(int(sys.argv[2]), PROCESSES)
    else:
        main()
