"""People whose label and confounds go together, small networks, and plain numpy oracles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

import deconfound as dc


@dataclass(frozen=True)
class Cohort:
    """Some people.

    Attributes:
        inputs: What a network sees, shape `(n, 6)`: the label, the age and the sex with noise,
            mixed by one rotation.
        table: The columns age, sex and dx.
        design: Confounds age and sex, keep dx, fitted on a cohort of its own.
        metadata: The encoded table, a tensor `(n, 3)`.
    """

    inputs: Tensor
    table: pd.DataFrame
    design: dc.Design
    metadata: Tensor

    @property
    def target(self) -> Tensor:
        """The label as 0.0 or 1.0."""
        return torch.tensor(self.table["dx"] == "ill").float()

    def batches(self, size: int) -> list[tuple[Tensor, Tensor]]:
        """Return `(inputs, metadata)` in batches; the last one may be shorter."""
        return list(zip(self.inputs.split(size), self.metadata.split(size), strict=True))

    def confound(self, name: str) -> np.ndarray:
        """Return a confound as one numeric column `(n, 1)`."""
        column = self.table[name]
        values = column == "M" if name == "sex" else column
        return values.to_numpy(float)[:, None]


def make_cohort(n: int = 120, seed: int = 0, slope: float = 1.5) -> Cohort:
    """Draw people; with a slope of 0 label and confounds are independent, and spread as before."""
    table, inputs = _draw(n, seed, slope)
    design = dc.Design(["age", "sex"], keep=["dx"]).fit(_draw(2000, 99, 1.5)[0])
    return Cohort(inputs, table, design, torch.from_numpy(design.encode(table)))


def _draw(n: int, seed: int, slope: float) -> tuple[pd.DataFrame, Tensor]:
    rng = np.random.default_rng([seed, n])
    is_ill = rng.permutation(np.arange(n) % 2)
    # The remainder keeps the variance at 1 + 1.5² / 4, whatever the slope.
    noise = np.sqrt(1 + (1.5**2 - slope**2) / 4)
    age = slope * (is_ill - 0.5) + noise * rng.normal(size=n)
    is_male = rng.random(n) < 0.5 + 0.2 * slope * (is_ill - 0.5)
    table = pd.DataFrame(
        {
            "age": 70 + 8 * age,
            "sex": np.where(is_male, "M", "F"),
            "dx": np.where(is_ill, "ill", "well"),
        }
    )
    signals = np.stack([1.5 * (is_ill - 0.5), age, is_male - 0.5], axis=1)
    columns = np.concatenate([signals, np.zeros((n, 3))], axis=1) + 0.5 * rng.normal(size=(n, 6))
    rotation = np.linalg.qr(np.random.default_rng(7).normal(size=(6, 6)))[0]
    return table, torch.from_numpy((columns @ rotation).astype(np.float32))


def make_mlp(seed: int = 0) -> nn.Sequential:
    """Return a network with 6 inputs, 8 hidden units and one output."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))


def count_hooks(network: nn.Module) -> int:
    """Return the number of forward hooks and forward pre-hooks in a network."""
    return sum(
        len(part._forward_hooks) + len(part._forward_pre_hooks) for part in network.modules()
    )


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """Assert that parameters, buffers, modes, hooks and the random state end as they began."""
    before = _snapshot(module)
    yield
    for name, value in _snapshot(module).items():
        assert value == before[name], f"{name} changed"


def _snapshot(module: nn.Module) -> dict[str, object]:
    return {
        "state": {name: value.numpy().tobytes() for name, value in module.state_dict().items()},
        "modes": [part.training for part in module.modules()],
        "hooks": count_hooks(module),
        "random state": torch.get_rng_state().numpy().tobytes(),
    }


def sum_of_squares_left(
    features: np.ndarray, regressors: np.ndarray, weight: np.ndarray | None = None
) -> np.ndarray:
    """Return SSE of each feature after (weighted) regression on columns and an intercept."""
    root = np.sqrt(np.ones(len(features)) if weight is None else weight)[:, None]
    regressors = root * np.concatenate([regressors, np.ones((len(features), 1))], axis=1)
    solution = np.linalg.lstsq(regressors, root * features, rcond=None)[0]
    return np.square(root * features - regressors @ solution).sum(0)


def partial_r2(
    features: Tensor, confound: np.ndarray, labels: np.ndarray, weight: np.ndarray | None = None
) -> tuple[float, float]:
    """Return partial R² given the labels: the mean by variance, and the largest of a feature."""
    values = features.detach().double().numpy()
    unexplained = sum_of_squares_left(values, labels, weight)
    left = sum_of_squares_left(values, np.concatenate([labels, confound], axis=1), weight)
    gain = unexplained - left
    return gain.sum() / unexplained.sum(), (gain / unexplained).max()
