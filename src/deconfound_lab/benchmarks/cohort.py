"""Metadata for benchmarks: age, sex, sites and a label, drawn at random."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from deconfound.design import Design


def table(n: int, sites: int, seed: int = 0) -> dict[str, list[float] | list[str]]:
    """`n` people at some sites."""
    rng = np.random.default_rng(seed)
    return {
        "age": rng.normal(60, 12, n).tolist(),
        "sex": rng.choice(["f", "m"], n).tolist(),
        "site": [f"s{k}" for k in rng.integers(0, sites, n)],
        "label": rng.integers(0, 2, n).astype(float).tolist(),
    }


def metadata(n: int, sites: int = 4, device: str = "cpu", seed: int = 0) -> tuple[Design, Tensor]:
    """A design over 2 + (sites − 1) confound columns and a label, and the metadata of `n` rows."""
    people = table(max(n, 20 * sites), sites, seed)
    design = Design(confounds=["age", "sex", "site"], keep=["label"]).fit(people)
    return design, torch.as_tensor(design.encode(people)[:n]).to(device)
