"""Losses against their formulas, and intervals against theirs."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from deconfound.training.intervals import difference, interval, within
from deconfound.training.losses import bce, criterion, cross_entropy, focal, mse
from deconfound.training.scaling import Scaler, fit_scaler


def test_binary_losses_are_their_formulas_for_logits_with_and_without_an_axis():
    logits, target = torch.tensor([2.0, -1.0, 0.3]), torch.tensor([[1.0], [1.0], [0.0]])
    p = [1 / (1 + math.exp(-value)) for value in (2.0, -1.0)] + [1 - 1 / (1 + math.exp(-0.3))]
    assert float(bce(logits, target).mean()) == pytest.approx(np.mean([-math.log(q) for q in p]), rel=1e-6)
    expected = np.mean([(1 - q) ** 2 * -math.log(q) for q in p])
    assert float(focal(logits, target).mean()) == pytest.approx(expected, rel=1e-5)
    assert float(focal(logits[:, None], target).mean()) == pytest.approx(expected, rel=1e-5)


def test_focal_loss_of_classes_turns_away_from_easy_samples():
    logits, target = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1, 2])
    torch.testing.assert_close(focal(logits, target, gamma=0.0), cross_entropy(logits, target))
    p = logits.double().softmax(1)[torch.arange(6), target]
    assert float(focal(logits, target, 3.0).mean()) == pytest.approx(float(((1 - p) ** 3 * -p.log()).mean()), rel=1e-5)


def test_a_balanced_focal_loss_weighs_rows_with_and_without_each_label_alike():
    logits, share = torch.zeros(10, 2), torch.tensor([0.2, 0.5])
    target = torch.zeros(10, 2)
    target[:2, 0] = target[:5, 1] = 1
    each = 0.25 * math.log(2)
    assert float(focal(logits, target, 2.0, share).mean()) == pytest.approx(each, rel=1e-6)
    rare = torch.zeros_like(logits)
    rare[0, 0] = -3.0  # one of two rows with the rare label is wrong: a quarter of what that label counts
    p = 1 / (1 + math.exp(3))
    wrong = (1 - p) ** 2 * -math.log(p)
    expected = (each + each * 0.75 + wrong * 0.25) / 2
    assert float(focal(rare, target, 2.0, share).mean()) == pytest.approx(expected, rel=1e-5)


def test_each_task_has_its_usual_loss():
    assert criterion("auto", "binary") is bce
    assert criterion("auto", "multiclass") is cross_entropy
    assert criterion("auto", "regression") is mse
    assert criterion("focal", "multiclass", 1.5).keywords == {"gamma": 1.5}


def test_the_interval_is_nadeau_and_bengios():
    values = np.array([0.61, 0.66, 0.58, 0.63, 0.70])
    found = interval(list(enumerate(values.tolist())), test_share=0.25)
    error = math.sqrt((1 / 5 + 0.25) * values.var(ddof=1))
    low, high = stats.t.interval(0.95, 4, values.mean(), error)
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    uncorrected = stats.t.interval(0.95, 4, values.mean(), values.std(ddof=1) / math.sqrt(5))
    assert found.high - found.low > 1.4 * (uncorrected[1] - uncorrected[0])
    assert interval([(0, 0.1), (1, 0.1)], 0.25).p == 0.0


def test_seeds_on_one_test_set_count_once():
    once = interval([(0, 0.60), (1, 0.70)], 0.25)
    assert interval([(0, 0.58), (0, 0.62), (1, 0.69), (1, 0.71)], 0.25) == pytest.approx(once)
    assert once.sets == 2


def test_differences_are_paired_by_test_set_and_seed():
    base = {(fold, seed): 0.1 * fold + 0.01 * seed for fold in range(5) for seed in range(2)}
    better = {key: value + 0.02 for key, value in base.items()}
    found = difference(better, base, 0.25)
    assert found.mean == pytest.approx(0.02)
    assert found.high - found.low < 1e-12  # although the folds themselves differ by 0.4
    assert math.isnan(difference({}, base, 0.25).mean)
    assert interval([(0, float("nan")), (1, 0.5)], 0.25).sets == 1


def test_the_interval_holds_the_truth_nineteen_times_in_twenty():
    random = np.random.default_rng(0)
    held = []
    for _ in range(400):  # with overlap of the training sets the values share an error of variance n_test / n_train
        values = random.normal(0, math.sqrt(0.25)) + random.normal(0, 1, 10)
        found = interval(list(enumerate(values.tolist())), 0.25)
        held.append(found.low <= 0 <= found.high)
    assert 0.92 < np.mean(held) < 0.98


def test_scaling_is_that_of_the_filled_cells_and_leaves_constants_alone():
    random = np.random.default_rng(0)
    x = random.normal(1e6, 3, (500, 4))
    x[:, 1] = 7.3
    x[5:40, 2] = np.nan
    scaler = fit_scaler([x[:100], x[100:]])
    assert np.allclose(scaler.mean, np.nanmean(x, 0))
    assert np.allclose(scaler.scale[[0, 2, 3]], np.nanstd(x, 0)[[0, 2, 3]])
    scaled = scaler(x)
    assert scaled.dtype == np.float32
    assert (scaled[5:40, 2] == 0).all()
    assert np.abs(scaled[:, 1]).max() == 0
    assert np.array_equal(Scaler.from_dict(scaler.to_dict())(x), scaled)
    assert np.array_equal(Scaler()(x), x.astype(np.float32), equal_nan=True)


def test_an_interval_ends_where_its_measure_ends():
    wide = interval([(0, 0.5), (1, 0.99), (2, 0.9)], test_share=0.5)
    assert wide.low < 0 < 1 < wide.high
    assert (within(wide, 0.0, 1.0).low, within(wide, 0.0, 1.0).high) == (0.0, 1.0)
    assert within(wide, -np.inf, np.inf) == wide
    assert np.isnan(within(interval([(0, 0.5)], test_share=0.5), 0.0, 1.0).low)
