"""The penalty sees what no linear method sees, within labels, at any batch size and under weights."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import deconfound as dc
from deconfound.errors import OptionError
from deconfound.methods.dependence import centred, distances, squared_dcor
from deconfound.metrics import u_distance_correlation_sqr
from deconfound.training import bce
from tests.methods.problem import Problem, fit, make_problem, prepare


def reference(x, z):
    """The U-statistic of the metrics room."""
    return float(u_distance_correlation_sqr(torch.as_tensor(x), torch.as_tensor(z)))


def estimate(x, z, weight=None):
    weight = torch.ones(len(x), dtype=torch.float64) if weight is None else weight
    share = weight / weight.sum()
    pair = [centred(distances(torch.as_tensor(values, dtype=torch.float64)), share) for values in (x, z)]
    return float(squared_dcor(*pair, share))


@pytest.mark.parametrize("strength", [0.0, 1.0])
def test_it_is_the_bias_corrected_distance_correlation(strength):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(250, 4))
    z = rng.normal(size=(250, 1)) + strength * x[:, :1] ** 2
    assert estimate(x, z) == pytest.approx(reference(x, z), abs=4e-3)


def test_chance_is_taken_off_also_under_weights_and_in_small_samples():
    rng = np.random.default_rng(1)
    weight = torch.tensor(np.tile([0.2, 1.8], 15))
    found = [estimate(rng.normal(size=(30, 3)), rng.normal(size=(30, 1)), weight) for _ in range(200)]
    assert abs(np.mean(found)) < 3 * np.std(found) / np.sqrt(200) + 0.005


def test_rows_of_weight_zero_take_no_part():
    rng = np.random.default_rng(2)
    x, z = rng.normal(size=(60, 3)), rng.normal(size=(60, 1))
    weight = torch.from_numpy((np.arange(60) < 40).astype(float))
    assert estimate(x, z, weight) == pytest.approx(estimate(x[:40], z[:40]), abs=1e-5)


def curved_problem(n=400):
    """A confound of which no linear method sees anything, in a feature that helps to predict the label."""
    rng = np.random.default_rng(3)
    age = rng.normal(size=n)
    dx = (age**2 + rng.normal(size=n) > 1).astype(int)
    table = {"age": 60 + 10 * age, "dx": dx}
    design = dc.Design(confounds=["age"], keep=["dx"]).fit(table)
    x = np.column_stack([age**2 + 0.3 * rng.normal(size=n), dx + rng.normal(size=n), rng.normal(size=(n, 6))])
    metadata = torch.from_numpy(design.encode(table))
    return Problem(table, design, torch.from_numpy(x).float(), metadata, torch.tensor(dx).float()[:, None], ("0",))


@pytest.mark.parametrize("size", [300, 20])
def test_it_removes_a_dependence_that_is_not_linear(size):
    problem = curved_problem(300)

    def left(weight):
        made = prepare("dependence", problem, weight=weight)
        fit(made, problem, epochs=50 if size == 300 else 6, size=size, lr=0.02)
        with torch.no_grad():
            hidden = made.eval().model[0](problem.x).double().numpy()
        groups = [problem.table["dx"] == level for level in (0, 1)]
        return np.mean([reference(hidden[g], problem.table["age"][g][:, None]) for g in groups])

    plain, penalised = left(0.0), left(3.0)
    assert plain > 0.04  # the control
    assert penalised < 0.5 * plain


def test_within_labels_a_confound_that_follows_the_label_alone_costs_nothing():
    problem = make_problem(200)
    table = {**problem.table, "age": 60 + 10.0 * problem.table["dx"] + np.random.default_rng(9).normal(size=200)}
    design = dc.Design(confounds=["age"], keep=["dx"]).fit(table)
    metadata = torch.from_numpy(design.encode(table))
    x = problem.x.clone()
    x[:, :4] = 3 * problem.target + torch.randn(200, 4)
    within = replace(problem, design=design, metadata=metadata, x=x, at=("0",))
    batch = next(iter(within.batches(200)))
    penalty = prepare("dependence", within, weight=1.0).loss(batch, bce).parts["dependence"]
    assert abs(float(penalty)) < 0.02
    assert estimate(x, metadata[:, :1]) > 0.3  # over all rows, the control


def test_a_numeric_label_is_regressed_out():
    rng = np.random.default_rng(4)
    score = rng.normal(size=300)
    table = {"age": 60 + 10 * score + rng.normal(size=300), "score": score}
    design = dc.Design(confounds=["age"], keep=["score"]).fit(table)
    x = torch.from_numpy(score[:, None] + 0.1 * rng.normal(size=(300, 8))).float()
    target = torch.from_numpy(score).float()[:, None]
    problem = Problem(table, design, x, torch.from_numpy(design.encode(table)), target, ("0",))
    penalty = prepare("dependence", problem).loss(next(iter(problem.batches(300))), bce).parts["dependence"]
    assert abs(float(penalty)) < 0.04
    assert estimate(x, score[:, None]) > 0.8


def test_small_batches_are_filled_up_with_the_newest_rows_and_pull_as_a_whole_window_does():
    problem = replace(make_problem(128), at=("0",))
    whole = prepare("dependence", problem, weight=1.0, window=128)
    small = prepare("dependence", problem, weight=1.0, window=128)
    expected = whole.loss(next(iter(problem.batches(128))), bce).parts["dependence"]
    for batch in problem.batches(8):
        found = small.loss(batch, bce)
    torch.testing.assert_close(found.parts["dependence"], expected, atol=1e-5, rtol=1e-4)
    assert small.recent["0"].features.requires_grad is False
    first = prepare("dependence", problem, weight=1.0).loss(next(iter(problem.batches(2))), bce)
    assert float(first.parts["dependence"]) == 0.0  # two rows tell nothing


def test_options_that_cannot_be_are_refused():
    with pytest.raises(OptionError, match="weight must be a number of at least 0; got -1"):
        prepare("dependence", make_problem(40), weight=-1)
    with pytest.raises(OptionError, match="window must be a whole number of at least 4; got 3"):
        prepare("dependence", make_problem(40), window=3)
