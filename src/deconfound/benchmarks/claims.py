"""What the library claims about its cost, each claim a ratio that a run can confirm or refute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Claim:
    """One claim and what a run found.

    Attributes:
        text: The claim.
        limit: The most that may be found.
        found: What was found.
    """

    text: str
    limit: float
    found: float

    @property
    def holds(self) -> bool:
        """Whether the run confirms it."""
        return self.found <= self.limit


def check(result: Mapping[str, Any]) -> list[Claim]:
    """The claims that this run says something about."""
    device = result["device"]
    return [*_passes(result, device), *_exact(result), *_steps(result, device), *_loading(result)]


def _passes(result: Mapping[str, Any], device: str) -> Iterator[Claim]:
    limits = {"train": 1.35, "eval": 1.15}
    for row in result.get("passes", []) if device == "cuda" else []:
        if row["layer"] == "pmdn" and row["type"] == "float32" and row["pass"] in limits:
            text = f"PMDN {row['pass']} forward, {row['n']} × {row['d']:,}, over a copy of the features"
            yield Claim(text, limits[row["pass"]], row["ratio"])


def _exact(result: Mapping[str, Any]) -> Iterator[Claim]:
    rows = [row for row in result.get("checks", []) if row["type"] == "float32"]
    for what in ("beta", "residual", "cross", "eval") if rows else ():
        yield Claim(f"kernels against float64, float32 features: {what}", 1e-6, max(row[what] for row in rows))


def _steps(result: Mapping[str, Any], device: str) -> Iterator[Claim]:
    rows = {(row["network"], row["batch"], row["mode"], row["method"]): row for row in result.get("steps", [])}
    for (network, batch, mode, method), row in rows.items():
        if method != "pmdn" or "ratio" not in row:
            continue
        name = f"{network}, batch {batch}, {mode}"
        limit = 1.25 if "CNN" in network and device == "cuda" else 1.10
        yield Claim(f"training step with PMDN over the plain one: {name}", limit, row["ratio"])
        other = rows.get((network, batch, mode, "batchnorm"), {})
        if "seconds" in other:
            yield Claim(f"training step with PMDN over BatchNorm's: {name}", 1.0, row["seconds"] / other["seconds"])


def _loading(result: Mapping[str, Any]) -> Iterator[Claim]:
    for row in result.get("loading", []):
        if row["what"] == "import deconfound":
            yield Claim("`import deconfound` over Python's start, seconds", 0.1, row["seconds"] - row["over"])
        if row["what"] == "all layers":
            yield Claim("importing all layers over `import torch`", 1.15, row["seconds"] / row["over"])
        if row["what"] == "deconfound --help":
            yield Claim("`deconfound --help` over Python's start, seconds", 0.5, row["seconds"] - row["over"])
        if row["what"] == "encode" and row["rows"] == 1_000_000:
            yield Claim("`encode` of 1,000,000 rows × 10 columns, seconds", 2.0, row["seconds"])
