"""Confounded people, a small network, and a training loop of a few lines, for tests of methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import deconfound as dc
from deconfound.methods import Batch, Batches, Method, Setting, make_method
from tests.helpers import make_people

CONFOUNDS = ("age", "sex", "site")

# Each method under a short name: its own name and its options.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("none", {}),
    "mdn": ("mdn", {}),
    "rmdn": ("rmdn", {}),
    "pmdn": ("pmdn", {}),
    "pmdn-frozen": ("pmdn", {"gradient": "frozen"}),
    "adversarial": ("adversarial", {}),
    "regression": ("residualized-inputs", {"by": "regression"}),
    "combat": ("residualized-inputs", {"by": "combat"}),
    "literal": ("tests.methods.literal:LiteralPMDN", {}),
}


@dataclass(frozen=True)
class Problem:
    """Some people, with everything that methods read of them."""

    x: Tensor
    table: pd.DataFrame
    design: dc.Design
    metadata: Tensor
    target: Tensor

    def setting(self, at: Any = None) -> Setting:
        """Return the setting of these people."""
        return Setting(self.design, self.x[:2], at, "site")

    def batch(self, rows: Any = slice(None), layer_weight: Tensor | None = None) -> Batch:
        """Return some rows as a batch."""
        weight = None if layer_weight is None else layer_weight[rows]
        x, metadata, target = self.x[rows], self.metadata[rows], self.target[rows]
        return Batch(x, metadata, target, layer_weight=weight)

    def batches(self, size: int = 40, layer_weight: Tensor | None = None) -> Batches:
        """Return what gives all rows in batches, each time from the first."""
        parts = torch.arange(len(self.x)).split(size)
        return lambda: (self.batch(rows, layer_weight) for rows in parts)


def make_problem(n: int = 120, seed: int = 0, **options: Any) -> Problem:
    """Return people with three sites and six features of mean 0 and sd 1."""
    x, table = make_people(n, seed, **{"sites": 3, "d": 6, **options})
    design = dc.Design(CONFOUNDS, keep=["label"]).fit(table)
    metadata = torch.from_numpy(design.encode(table))
    target = torch.tensor((table["label"] == "case").to_numpy()).float().unsqueeze(1)
    return Problem(((x - x.mean(0)) / x.std(0)).float(), table, design, metadata, target)


def make_network(seed: int = 0, d: int = 6) -> nn.Sequential:
    """Return a network with d inputs, two hidden layers and one output."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(d, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 1))


def make_case(case: str, problem: Problem, seed: int = 0) -> Method:
    """Return a method of `CASES` with a new network, not fitted."""
    name, options = CASES[case]
    return make_method(name, make_network(seed, problem.x.shape[1]), problem.setting(), options)


def criterion(logits: Tensor, batch: Batch) -> Tensor:
    """Return the mean binary cross-entropy."""
    return nn.functional.binary_cross_entropy_with_logits(logits, batch.target)


def make_adam(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Return an optimiser that learns fast."""
    return torch.optim.AdamW(parameters, lr=3e-3)


def update(loss: Tensor, optimizer: Optimizer) -> None:
    """Take one step of an optimiser."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def train(
    method: Method,
    batches: Batches,
    epochs: int = 1,
    make: Callable[[Iterable[nn.Parameter]], Optimizer] = make_adam,
) -> list[Tensor]:
    """Train in the order that `deconfound.methods.base` describes, and return the losses."""
    optimizers = method.optimizers(make)
    method.train()
    return [
        method.step(method, batch, criterion, optimizers, update)
        for _ in range(epochs)
        for batch in batches()
    ]


@torch.no_grad()
def outputs(method: nn.Module, x: Tensor, metadata: Tensor | None) -> Tensor:
    """Return what a method says of some rows in evaluation mode."""
    return method.eval()(x, metadata)
