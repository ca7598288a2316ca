"""People, networks and layers that tests of several rooms share."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

import deconfound as dc
from deconfound.layers import AlternatingPMDN, MetadataLayer

CONFOUNDS = ("age", "volume", "dose", "site", "sex")
# Three columns of very unlike mean and scale. A removal that ignores either leaves something.
NUMBERS = {"age": (70.0, 8.0), "volume": (1.4e6, 1e5), "dose": (1e-3, 2e-4)}

# One entry for each kind of layer. Every promise of the family is tested on all of them.
LAYERS: dict[str, Callable[..., MetadataLayer]] = {
    "mdn": dc.MDN,
    "mdn-batch": lambda design, shape: dc.MDN(design, shape, gram="batch"),
    "rmdn": dc.RMDN,
    "pmdn": dc.PMDN,
    "pmdn-frozen": lambda design, shape: dc.PMDN(design, shape, gradient="frozen"),
    "alternating": AlternatingPMDN,
}


def make_people(
    n: int = 400,
    seed: int = 0,
    association: float = 0.8,
    sites: int = 2,
    *,
    d: int = 3,
    offset: float = 0.0,
    noise: float = 1.0,
) -> tuple[Tensor, pd.DataFrame]:
    """Return features `(n, d)` in float64 and the table of these people.

    Each confound moves every feature by about one unit, and so does the label.

    Args:
        n: Number of people, half of them cases.
        seed: Seed of everything that is random.
        association: Share of people whose site and sex follow their label, and the shift of the
            numeric confounds between cases and controls in sd.
        sites: Number of sites.
        d: Number of features.
        offset: The mean of each feature.
        noise: The sd of what neither confounds nor label explain.
    """
    rng = np.random.default_rng(seed)
    is_case = np.arange(n) % 2
    scores = {name: rng.normal(size=n) + association * (is_case - 0.5) for name in NUMBERS}
    follows = rng.random((2, n)) < association
    site = np.where(follows[0], is_case, rng.integers(sites, size=n))
    sex = np.where(follows[1], is_case, rng.integers(2, size=n))
    causes = np.column_stack([*scores.values(), np.eye(sites)[site], sex, is_case])
    effects = rng.choice([-1.0, 1.0], (causes.shape[1], d)) * rng.uniform(0.5, 1.5, (1, d))
    features = offset + causes @ effects + noise * rng.normal(size=(n, d))
    table = {name: mean + sd * scores[name] for name, (mean, sd) in NUMBERS.items()}
    table["site"] = np.array([f"site {chr(65 + code)}" for code in range(sites)])[site]
    table["sex"] = np.array(["F", "M"])[sex]
    table["label"] = np.array(["control", "case"])[is_case]
    return torch.from_numpy(features), pd.DataFrame(table)


def fit_design(
    table: pd.DataFrame, confounds: Sequence[str] = CONFOUNDS, keep: Sequence[str] = ("label",)
) -> dc.Design:
    """Return the design of `make_people`, fitted."""
    return dc.Design(confounds, keep=keep).fit(table)


def encode(design: dc.Design, table: pd.DataFrame) -> Tensor:
    """Return metadata in float64, so that theorems hold to many digits."""
    return torch.from_numpy(design.encode(table, dtype=np.float64))


def learn(
    layer: MetadataLayer, x: Tensor, metadata: Tensor, weight: Tensor | None = None
) -> Tensor:
    """Run a training forward pass, and for `AlternatingPMDN` the step on β that belongs to it."""
    residual = layer(x, metadata, weight)
    if isinstance(layer, AlternatingPMDN):
        layer.beta.grad = None
        layer.penalty.backward()
        with torch.no_grad():
            layer.beta.sub_(layer.beta.grad)  # SGD with learning rate 1
        layer.beta.grad = None
    return residual


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """Return an independent copy of a module's state."""
    return copy.deepcopy(module.state_dict())


def assert_same_state(module: nn.Module, before: dict[str, Tensor]) -> None:
    """Assert that every number of a module's state is the same, NaN included."""
    after = module.state_dict()
    assert after.keys() == before.keys()
    for name, value in after.items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0, equal_nan=True)


class Mlp(nn.Module):
    """Linear maps with a metadata layer and a tanh after each of them but the last.

    Args:
        weights: One matrix `(inputs, outputs)` per linear map.
        make: Makes the layer for a number of features.
    """

    def __init__(self, weights: Sequence[Tensor], make: Callable[[int], MetadataLayer]) -> None:
        super().__init__()
        self.maps = nn.ParameterList([nn.Parameter(weight.clone()) for weight in weights])
        self.norms = nn.ModuleList([make(weight.shape[1]) for weight in weights[:-1]])

    def forward(self, x: Tensor, metadata: Tensor, weight: Tensor | None = None) -> Tensor:
        for linear, norm in zip(self.maps, self.norms, strict=False):
            x = norm(x @ linear, metadata, weight).tanh()
        return x @ self.maps[-1]


def random_weights(*sizes: int, seed: int = 0) -> list[Tensor]:
    """Return the matrices of an MLP with these widths, in float64."""
    generator = torch.Generator().manual_seed(seed)
    pairs = pairwise(sizes)
    return [torch.randn(a, b, generator=generator, dtype=torch.float64) / a**0.5 for a, b in pairs]
