"""A small confounded table problem on which every method can be trained in a second."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

import deconfound as dc
from deconfound.methods import Method, Setting, TrainingBatch, method
from deconfound.training import bce
from tests.conftest import make_table


@dataclass(frozen=True)
class Problem:
    """Rows of a table, their features, and a design; `train` says on which rows a method may be trained."""

    table: dict[str, np.ndarray]
    design: dc.Design
    x: Tensor
    metadata: Tensor
    target: Tensor
    at: tuple[str, ...] | None = None
    weight: Tensor | None = None

    def __len__(self) -> int:
        return len(self.x)

    def batches(self, size: int = 50, order: Tensor | None = None) -> Iterable[TrainingBatch]:
        for rows in (torch.arange(len(self)) if order is None else order).split(size):
            controls = self.target[rows].reshape(len(rows), -1)[:, 0] == 0
            weight = None if self.weight is None else self.weight[rows]
            yield TrainingBatch(self.x[rows], self.metadata[rows], self.target[rows], controls, weight=weight)

    def setting(self, size: int = 50, **changes: object) -> Setting:
        return replace(Setting(self.design, self.at, lambda: self.batches(size), site="site"), **changes)


def make_problem(n: int = 300, seed: int = 0, like: Problem | None = None, tie: float = 1.0) -> Problem:
    """Features of which two follow the label, two the confounds, two both, and two neither.

    Args:
        n: Rows.
        seed: Of the table and the features.
        like: Takes its design, so that the rows can stand for new people.
        tie: How strongly the confounds show in the features.
    """
    table = make_table(n, seed)
    rng = np.random.default_rng(seed + 1000)
    age, sex, site = (table["age"] - 70) / 10, table["sex"] == "M", table["site"]
    label = table["dx"] - 0.5
    confound = tie * (1.5 * age + 1.0 * sex + 2.0 * (site == "A") - 1.0 * (site == "B"))
    parts = [label, label, confound, -confound, label + confound, label - confound, 0 * label, 0 * label]
    x = np.column_stack([*parts]) + rng.normal(size=(n, 8)) + 3.0
    design = like.design if like else dc.Design(confounds=["age", "sex", "site"], keep=["dx"]).fit(table)
    metadata = torch.from_numpy(design.encode(table))
    return Problem(table, design, torch.from_numpy(x).float(), metadata, torch.tensor(table["dx"]).float()[:, None])


def make_network(inputs: int = 8, outputs: int = 1) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))


def prepare(name: str | type[Method], problem: Problem, network: nn.Module | None = None, **options: object) -> Method:
    kind = method(name) if isinstance(name, str) else name
    return kind.prepare(network or make_network(problem.x.shape[1]), problem.setting(), **options)


def fit(
    trained: Method,
    problem: Problem,
    epochs: int = 1,
    size: int = 50,
    lr: float = 1e-2,
    criterion: Callable[[Tensor, Tensor], Tensor] = bce,
) -> list[float]:
    """What the engine does, in its smallest form; the task's loss of each step."""
    optimizer = torch.optim.Adam(trained.network_parameters(), lr=lr)
    trained.train()
    history = []
    for epoch in range(epochs):
        order = torch.randperm(len(problem), generator=torch.Generator().manual_seed(epoch))
        for batch in problem.batches(size, order):
            trained.before_step(batch)
            loss = trained.loss(batch, criterion)
            optimizer.zero_grad()
            loss.total.backward()
            optimizer.step()
            history.append(float(loss.parts.get("task", loss.total.detach())))
    return history


def within_groups(scores: Tensor, problem: Problem) -> dict[str, float]:
    """The largest |correlation| of a score with the columns of each confound, among people of one label."""
    found: dict[str, float] = {}
    for column, values in zip(problem.design.confound_columns, problem.metadata.T, strict=False):
        for group in (0, 1):
            rows = problem.target[:, 0] == group
            strength = abs(float(np.corrcoef(scores[rows].detach().numpy(), values[rows].numpy())[0, 1]))
            found[column.term] = max(found.get(column.term, 0.0), strength)
    return found
