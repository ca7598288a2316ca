"""A cohort that every test of a linear removal can use: columns of very different means and scales."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import deconfound as dc

# The arithmetic of the tests is small, and the test processes already use every core.
torch.set_num_threads(1)
# dcor keeps what numba compiles on disk. Test processes that compile at one time overwrite each other's entries there,
# and a later one aborts on what it reads: each has a folder of its own.
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "alone")
os.environ["NUMBA_CACHE_DIR"] = str(Path(__file__).parents[1] / ".pytest_cache" / f"numba-{WORKER}")


@dataclass(frozen=True)
class Cohort:
    """A table, its design, and features with planted effects of confounds and label."""

    table: dict[str, NDArray]
    design: dc.Design
    metadata: torch.Tensor
    features: torch.Tensor
    confound_effect: torch.Tensor

    @property
    def n(self) -> int:
        return len(self.metadata)

    @property
    def confounds(self) -> int:
        return len(self.design.confound_columns)


def make_table(n: int, seed: int = 0, rare: bool = False) -> dict[str, NDArray]:
    """Age 70 ± 10, sex, three sites (one with 0.1 % of the rows if `rare`), a label tied to all of them."""
    rng = np.random.default_rng(seed)
    age = rng.normal(70, 10, n)
    sex = rng.choice(["F", "M"], n, p=[0.4, 0.6])
    site = rng.choice(["A", "B", "C"], n, p=[0.6, 0.399, 0.001] if rare else [0.5, 0.3, 0.2])
    drive = (age - 70) / 10 + (site == "A") + 0.5 * (sex == "M") + rng.normal(size=n)
    return {"age": age, "sex": sex, "site": site, "dx": (drive > 0.7).astype(np.int64)}


def make_cohort(n: int = 400, features: int = 5, seed: int = 0, mean: float = 0.0, rare: bool = False) -> Cohort:
    """Features `b₀ + Cα + Lδ + ε` in float64, with a mean of `mean` standard deviations."""
    table = make_table(n, seed, rare)
    design = dc.Design(confounds=["age", "sex", "site"], keep=["dx"]).fit(table)
    metadata = torch.from_numpy(design.encode(table, np.float64))
    rng = torch.Generator().manual_seed(seed)
    effects = torch.randn(metadata.shape[1], features, generator=rng, dtype=torch.float64)
    noise = torch.randn(n, features, generator=rng, dtype=torch.float64)
    values = metadata @ effects + noise
    values = values + mean * values.std(0)
    width = len(design.confound_columns)
    return Cohort(table, design, metadata, values, metadata[:, :width] @ effects[:width])


def least_squares_residual(cohort: Cohort, keep: bool = True) -> NDArray:
    """Written independently, in numpy and the standardised columns: f minus the confounds' part of the fit."""
    metadata, features = cohort.metadata.numpy(), cohort.features.numpy()
    used = metadata if keep else metadata[:, : cohort.confounds]
    with_intercept = np.column_stack([np.ones(len(used)), used])
    coefficients = np.linalg.lstsq(with_intercept, features, rcond=None)[0]
    return features - metadata[:, : cohort.confounds] @ coefficients[1 : cohort.confounds + 1]


@pytest.fixture
def cohort() -> Cohort:
    return make_cohort()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
