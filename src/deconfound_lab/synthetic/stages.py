"""Data that drift: one network goes through five stages, and is measured on every stage after each.

The main effect fades from stage to stage (ceilings 75, 68.75, 62.5, 56.25 and 50 %) while the confound stays tied to
the group, so that a network which follows the confound does better and better than it should.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from deconfound_lab.synthetic.grid import Cell
from deconfound_lab.synthetic.images import ceiling
from deconfound_lab.synthetic.learner import Learner
from deconfound_lab.synthetic.measures import measure
from deconfound_lab.synthetic.problems import make_problem


def run_stages(
    cell: Cell, seed: int, device: torch.device, tick: Callable[[int], None], test_per_group: int
) -> dict[str, Any]:
    """Train through the stages; the network goes on, the design stays that of the first stage."""
    design = None
    problems = []
    for stage, main in enumerate(cell.stages):
        made = make_problem(cell.problem, 1000 + 50 * seed + stage, device, main, test_per_group, design)
        design = made.design
        problems.append(made)
    table: list[list[float]] = []
    state = None
    for stage, problem in enumerate(problems):
        learner = Learner(cell, seed, problem, cell.steps)
        if state is not None:
            learner.load(state)
        for step in range(1, cell.steps + 1):
            learner.step()
            if step % 50 == 0:
                tick(stage * cell.steps + step)
        learner.validate()
        state = learner.copied()
        learner.load(learner.last)
        row = []
        for other in problems:
            learner.problem = other
            row.append(measure(learner)["accuracy"])
        table.append(row)
    ceilings = [ceiling(main) for main in cell.stages]
    return {"seed": seed, "accuracy": table, "ceilings": ceilings, **transfer(table, ceilings)}


def transfer(accuracy: list[list[float]], ceilings: list[float]) -> dict[str, float]:
    """How far accuracies lie from their ceilings, in the past, the present and the future of each stage.

    Args:
        accuracy: Of stage j after training on stage i, `[i][j]`.
        ceilings: The best accuracy of each stage without the confound.

    Returns:
        `deviation`: the mean of |accuracy − ceiling| over stages just trained. `backward`: of stages trained before
        the present one. `forward`: of stages still to come.
    """
    away = [[abs(value - best) for value, best in zip(row, ceilings, strict=True)] for row in accuracy]
    stages = range(len(away))

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    return {
        "deviation": mean([away[i][i] for i in stages]),
        "backward": mean([away[i][j] for i in stages for j in stages if j < i]),
        "forward": mean([away[i][j] for i in stages for j in stages if j > i]),
    }
