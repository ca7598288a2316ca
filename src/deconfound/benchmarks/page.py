"""`docs/performance.md` from the JSON of benchmark runs: `python -m deconfound.benchmarks.page`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from deconfound.benchmarks import claims

DOCS = Path(__file__).parents[3] / "docs"

OPENING = """# Performance

Made by `python -m deconfound.benchmarks.page` from `docs/results/performance/*.json`; do not edit.

Every figure is measured beside something plain in the same run, and what counts is the ratio: a layer's pass over its
features beside a plain copy of them on the same device, a training step beside the same step of the plain network.
`deconfound bench` (or `make bench`) measures on the CPU and `deconfound bench --device cuda` on a GPU; each writes its
JSON and prints these tables, and `--check` ends with an error where a claim does not hold.

## How a pass is done

A layer's work on `n × d` features is a few operations on each number, so its floor is to read the features once and to
write the residual once: a copy. On a GPU one kernel does this (`deconfound.kernels`). Each of its programs takes some
features of all samples into registers, projects them on the q regressors, moves their coefficients and subtracts. The
coefficients add a share of `q / n` to what is moved. Backward does the same with gradients. The gain must be known
before; it and the size of the gradients are measured on 1,024 to 2,047 of the features by three small kernels. With
several processes their sums come between the two halves of the pass, so features are read twice. With more than 32
regressors, in float64 and on a CPU, torch's own operations do the work.
"""


def page(results: Iterable[Mapping[str, Any]]) -> str:
    """The whole page."""
    parts = [OPENING]
    results = list(results)
    if all(result["device"] != "cuda" for result in results):
        parts.append("No figures of a GPU are here yet.\n")
    for result in results:
        origin = result["origin"]
        versions = ", ".join(f"{name} {number}" for name, number in origin["packages"].items())
        where = f"{origin['machine']}, {origin['cores']} cores, {origin['threads']} threads"
        title = "GPU" if result["device"] == "cuda" else "CPU"
        parts.append(f"## {title}\n\n{where}; Python {origin['python']}, {versions}; commit `{origin['commit']}`.\n")
        if result.get("note"):
            parts.append(f"{result['note']}\n")
        parts += [*_claims(result), *_sections(result)]
    return "\n".join(parts)


def _claims(result: Mapping[str, Any]) -> list[str]:
    rows = [
        (claim.text, f"{claim.limit:g}", f"{claim.found:.3g}", "yes" if claim.holds else "**no**")
        for claim in claims.check(result)
    ]
    return ["### Claims\n", _table(("claim", "at most", "found", "holds"), rows)] if rows else []


def _sections(result: Mapping[str, Any]) -> list[str]:
    parts: list[str] = []
    rows: list[tuple[str, ...]]
    heads: tuple[str, ...]
    if result.get("passes"):
        rows = [
            (f"{row['n']} × {row['d']:,}", row["type"], row["layer"], row["pass"], _time(row["seconds"]), _ratio(row))
            for row in result["passes"]
        ]
        heads = ("samples × features", "type", "layer", "pass", "time", "over a copy")
        parts += ["### One layer's passes\n", _table(heads, rows)]
    if result.get("steps"):
        rows = [
            (
                row["network"], str(row["batch"]), row["mode"], row["method"],
                _time(row["seconds"]) if "seconds" in row else row.get("fault", ""), _ratio(row),
                f"{row['memory_ratio']:.2f}" if "memory_ratio" in row else "",
            )
            for row in result["steps"]
        ]  # fmt: skip
        heads = ("network", "batch", "mode", "method", "time", "over plain", "memory over plain")
        parts += ["### Whole training steps\n", _table(heads, rows)]
    if result.get("growth"):
        rows = [
            (row["axis"], str(row["n"]), f"{row['d']:,}", str(row["p"]), str(row["layers"]), _time(row["seconds"]))
            for row in result["growth"]
        ]
        heads = ("what grows", "samples", "features", "metadata columns", "layers", "forward and backward")
        parts += ["### Growth\n", _table(heads, rows)]
    if result.get("metrics"):
        rows = [(f"{row['n']:,}", str(row["d"]), row["by"], _time(row["seconds"])) for row in result["metrics"]]
        parts += ["### Distance correlation\n", _table(("samples", "features", "by", "time"), rows)]
    if result.get("loading"):
        rows = [(_what(row), _time(row["seconds"])) for row in result["loading"]]
        parts += ["### Loading and encoding\n", _table(("what", "time"), rows)]
    return parts


def _what(row: Mapping[str, Any]) -> str:
    return f"encode {row['rows']:,} rows × {row['columns']} columns" if row["what"] == "encode" else str(row["what"])


def _time(seconds: float) -> str:
    return (
        f"{seconds:.2f} s"
        if seconds >= 1
        else f"{1000 * seconds:.3g} ms"
        if seconds >= 1e-3
        else f"{1e6 * seconds:.3g} µs"
    )


def _ratio(row: Mapping[str, Any]) -> str:
    return f"{row['ratio']:.2f}" if "ratio" in row else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [" | ".join(heads), " | ".join("---" for _ in heads), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines) + "\n"


def main() -> None:
    """Write the page from the committed results."""
    found = sorted((DOCS / "results" / "performance").glob("*.json"))
    results = [json.loads(path.read_text()) for path in found]
    (DOCS / "performance.md").write_text(page(results))


if __name__ == "__main__":
    main()
