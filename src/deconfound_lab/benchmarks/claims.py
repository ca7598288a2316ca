"""What the library claims about its cost, each claim a figure that a run can confirm or refute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from deconfound_lab.benchmarks.jobs import Result, Row, rows


@dataclass(frozen=True)
class Claim:
    """One claim, the most that may be found, and what a run found."""

    text: str
    limit: float
    found: float

    @property
    def holds(self) -> bool:
        """Whether the run confirms it."""
        return self.found <= self.limit


def check(result: Result) -> list[Claim]:
    """The claims that this run says something about."""
    parts = (_exact, _passes, _steps, _memory, _host, _growth, _metrics, _loading)
    return [claim for part in parts for claim in part(result)]


def _exact(result: Result) -> Iterator[Claim]:
    found: dict[str, list[Row]] = {}
    for row in rows(result, "checks"):
        found.setdefault(row["type"], []).append(row)
    for type_, checks in found.items():
        statistics = max(row[what] for row in checks for what in ("beta", "cross") if what in row)
        yield Claim(f"kernels against float64, {type_} features: error of the coefficients", 1e-6, statistics)
        written = max(row[what] for row in checks for what in ("residual", "gradient", "eval") if what in row)
        yield Claim(f"kernels against float64, {type_} features: error of the residual", checks[0]["allowed"], written)


def _passes(result: Result) -> Iterator[Claim]:
    limits = {"train": 1.35, "eval": 1.15}
    for row in rows(result, "passes") if result["device"] == "cuda" else []:
        if row["layer"] == "pmdn" and row["type"] == "float32" and row["pass"] in limits:
            text = f"PMDN {row['pass']} forward, {row['n']} × {row['d']:,}, over a copy of the features"
            yield Claim(text, limits[row["pass"]], row["ratio"])


def _steps(result: Result) -> Iterator[Claim]:
    found = {(row["network"], row["batch"], row["mode"], row["method"]): row for row in rows(result, "steps")}
    for (network, batch, mode, method), row in found.items():
        if method != "pmdn" or "ratio" not in row:
            continue
        name = f"{network}, batch {batch}, {mode}"
        limit = 1.25 if "CNN" in network else 1.10
        yield Claim(f"training step with PMDN over the plain one: {name}", limit, row["ratio"])
        other = found.get((network, batch, mode, "batchnorm"), {})
        if "ratio" in other:
            text = f"training step with PMDN over the one with BatchNorm: {name}"
            yield Claim(text, 1.0, row["ratio"] / other["ratio"])


def _memory(result: Result) -> Iterator[Claim]:
    for row in rows(result, "steps"):
        if row["method"] == "pmdn" and "kept_bytes" in row:
            more = (row["kept_bytes"] - row["needed_bytes"]) / row["features_bytes"]
            text = f"copies of the features that PMDN keeps for backward: {row['network']}, batch {row['batch']}"
            yield Claim(text, 0.5, more)  # metadata are kept, and beside few features they show


def _host(result: Result) -> Iterator[Claim]:
    limit = 1.5 if result["device"] == "cuda" else 2.0
    for row in rows(result, "host"):
        if row.get("method") == "pmdn":
            where = f"{row['network']}, batch {row['batch']}, {row['threads']} threads".replace("1 threads", "1 thread")
            yield Claim(f"training step with PMDN over the plain one: {where}", limit, row["ratio"])
        if row.get("layer") == "pmdn":
            text = f"forward and backward of one PMDN layer, {row['n']} × {row['d']}, milliseconds"
            yield Claim(text, 0.25, 1000 * row["seconds"])


def _growth(result: Result) -> Iterator[Claim]:
    found: dict[str, list[Row]] = {}
    for row in rows(result, "growth"):
        found.setdefault(row["axis"], []).append(row)
    for axis, along in found.items():
        if len(along) < 3:
            continue
        before, last = along[-2], along[-1]
        per_unit = (last["seconds"] / last[axis]) / (before["seconds"] / before[axis])
        name = {"n": "sample", "d": "feature", "p": "metadata column", "layers": "layer"}[axis]
        text = f"cost per {name} at {last[axis]:,} over the one at {before[axis]:,}"
        yield Claim(text, 1.25, per_unit)
    wide = found.get("d", [])
    if len(wide) >= 3:
        text = f"whitening beside {wide[-1]['d']:,} features over beside {wide[0]['d']:,}"
        yield Claim(text, 1.5, wide[-1]["whitening"] / wide[0]["whitening"])


def _metrics(result: Result) -> Iterator[Claim]:
    found = rows(result, "metrics")
    ours = {row["n"]: row["seconds"] for row in found if row["by"] == "deconfound" and row["type"] == "float64"}
    for row in found:
        if "gap" in row and row["n"] in ours:
            where = f"{row['n']:,} samples: distance correlation"
            yield Claim(f"{where}, difference from {row['by']}", 1e-10, row["gap"])
            yield Claim(f"{where}, time over that of {row['by']}", 1.0, ours[row["n"]] / row["seconds"])


def _loading(result: Result) -> Iterator[Claim]:
    for row in rows(result, "loading"):
        if row["what"] == "import deconfound":
            yield Claim("`import deconfound` over Python's start, seconds", 0.1, row["seconds"] - row["over"])
        if row["what"] == "import all layers":
            yield Claim("importing all layers over `import torch`", 1.15, row["seconds"] / row["over"])
        if row["what"] == "deconfound --help":
            yield Claim("`deconfound --help` over Python's start, seconds", 0.5, row["seconds"] - row["over"])
        if row["what"] == "encode" and row["rows"] == 1_000_000:
            yield Claim("`encode` of 1,000,000 rows × 10 columns, seconds", 2.0, row["seconds"])
        if row["what"] == "encode" and row["rows"] == 128:
            plain = [step["seconds"] for step in rows(result, "steps") if step["method"] == "none"]
            if plain:
                text = "`encode` of a batch of 128 rows over the shortest plain training step"
                yield Claim(text, 0.1, row["seconds"] / min(plain))


def broken(result: Result) -> list[str]:
    """The claims that this run refutes; a quick one refutes nothing."""
    if result["quick"]:
        return []
    return [
        f"{claim.text}: at most {claim.limit:g}; got {claim.found:.3g}" for claim in check(result) if not claim.holds
    ]
