"""One run of the benchmarks: sections in order, with the origin of the figures."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from deconfound.benchmarks import claims, growth, kernel_checks, layer_passes, loading, measures, steps
from deconfound.errors import OptionError
from deconfound.training.provenance import commit

SECTIONS = ("checks", "passes", "steps", "growth", "metrics", "loading")


def run(
    device: str,
    sections: Sequence[str] = SECTIONS,
    modes: Sequence[str] = ("eager",),
    quick: bool = False,
    tell: Callable[[str, dict[str, Any]], None] = lambda section, row: None,
) -> dict[str, Any]:
    """Measure and return everything as plain data.

    Args:
        device: "cpu" or "cuda".
        sections: Which parts of `SECTIONS`.
        modes: How whole steps run: "eager", "compiled", and on a GPU "graph".
        quick: Small sizes, to see that everything runs; the figures mean nothing.
        tell: Called with each row as it is measured.
    """
    unknown = [name for name in sections if name not in SECTIONS]
    if unknown:
        raise OptionError(f"sections must be among {', '.join(SECTIONS)}; got {', '.join(unknown)}.")
    if device == "cuda" and not torch.cuda.is_available():
        raise OptionError("device must be one that torch sees; got 'cuda', and there is no GPU here. Use device='cpu'.")
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    rows: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "checks": lambda: kernel_checks.check(device) if device == "cuda" else iter(()),
        "passes": lambda: layer_passes.measure(device, quick),
        "steps": lambda: steps.measure(device, modes, quick=quick),
        "growth": lambda: growth.measure(device, quick),
        "metrics": lambda: measures.measure(device, quick),
        "loading": lambda: loading.measure(device, quick),
    }
    result: dict[str, Any] = {"device": device, "quick": quick, "origin": origin(device)}
    for section in sections:
        result[section] = []
        for row in rows[section]():
            result[section].append(row)
            tell(section, row)
    return result


def origin(device: str) -> dict[str, Any]:
    """Where the figures come from."""
    packages = {}
    for name in ("deconfound", "torch", "triton", "numpy", "dcor", "statsmodels"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "machine": torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "packages": packages,
        "commit": commit(),
    }


def save(result: dict[str, Any], folder: Path) -> Path:
    """Write `<device>.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result['device']}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


def broken(result: dict[str, Any]) -> list[str]:
    """The claims that this run refutes; a quick one refutes nothing."""
    if result["quick"]:
        return []
    return [
        f"{claim.text}: at most {claim.limit:g}; got {claim.found:.3g}"
        for claim in claims.check(result)
        if not claim.holds
    ]
