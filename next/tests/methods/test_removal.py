"""Trained on confounded people, each method leaves less of the confounds than the plain network."""

from __future__ import annotations

from functools import cache

import pytest
import torch

import deconfound as dc
from deconfound.methods import Method, Setting, make_method
from tests.attach.test_removal import partial_share
from tests.methods.problem import Problem, make_network, make_problem, outputs, train

CONFOUNDS = ("age", "site")
# The options, and the largest share of the plain network's confounds that may be left. The
# adversary weighs the confounds against the task; the others remove what is linear.
METHODS_THAT_REMOVE = {
    "mdn": ({"gram": "batch"}, 0.5),
    "rmdn": ({}, 0.5),
    "pmdn": ({}, 0.3),
    "adversarial": ({"weight": 0.3}, 0.7),
    "residualized-inputs": ({}, 0.3),
}


@cache
def people() -> Problem:
    """Return 3,000 people: 1,000 to train, 500 to refit, and 1,500 new ones."""
    problem = make_problem(3000, association=0.6, d=12, noise=2.0, sites=2)
    design = dc.Design(CONFOUNDS, keep=["label"]).fit(problem.table[:1000])
    metadata = torch.from_numpy(design.encode(problem.table))
    return Problem(problem.x, problem.table, design, metadata, problem.target)


def part(start: int, stop: int) -> Problem:
    """Return some of these people."""
    whole, rows = people(), slice(start, stop)
    x, table, metadata = whole.x[rows], whole.table[rows], whole.metadata[rows]
    return Problem(x, table, whole.design, metadata, whole.target[rows])


@cache
def shares(name: str) -> tuple[float, float]:
    """Return the shares of a trained network's output that confounds and label explain."""
    options = METHODS_THAT_REMOVE[name][0] if name != "none" else {}
    setting = Setting(people().design, people().x[:2])
    method: Method = make_method(name, make_network(d=12), setting, options)
    training, held_out, new = part(0, 1000), part(1000, 1500), part(1500, 3000)
    method.fit(training.batches(100))
    train(method, training.batches(50), epochs=10)
    method.refit(held_out.batches(500))
    logits = outputs(method, new.x, new.metadata).double().numpy()
    of_confounds = partial_share(logits, new.table, CONFOUNDS, ("label",))
    return of_confounds, partial_share(logits, new.table, ("label",), CONFOUNDS)


@pytest.mark.parametrize("name", METHODS_THAT_REMOVE)
def test_confounds_leave_the_output_and_the_label_stays(name):
    """The plain network is the control. Kills a method that trains as if it were `none`."""
    plain, label_of_plain = shares("none")
    assert plain > 0.05
    left, label = shares(name)
    assert left < METHODS_THAT_REMOVE[name][1] * plain
    assert label > 0.5 * label_of_plain
