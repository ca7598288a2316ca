"""Losses: the formula of each, the weighted mean that they share, and the choice by name."""

import numpy as np
import pytest
import torch
from scipy.special import expit, log_softmax
from sklearn.metrics import log_loss

from deconfound.errors import OptionError, ShapeError
from deconfound.methods import Batch
from deconfound.training import (
    Focal,
    Ranking,
    Task,
    binary_cross_entropy,
    cross_entropy,
    make_criterion,
    mean_squared_error,
)

BINARY = Task("binary", ("dx", "ill"), (("CN", "AD"), ("0", "1")))
CLASSES = Task("classes", ("dx",), (("AD", "CN", "MCI"),))
NUMERIC = Task("numeric", ("age",), ((),))


def make_batch(target, weight=None):
    return Batch(torch.empty(0), torch.empty(0), target, weight=weight)


def draw(n=40, outputs=2, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(0, 3, (n, outputs)), rng.random((n, outputs)) < 0.4, rng.integers(3, size=n)


def test_binary_cross_entropy_is_the_log_loss_of_scikit_learn():
    logits, is_case, _ = draw()
    expected = [log_loss(is_case[:, k], expit(logits[:, k])) for k in range(2)]
    rows = make_batch(torch.from_numpy(is_case).double())
    assert binary_cross_entropy(torch.from_numpy(logits), rows).item() == pytest.approx(
        np.mean(expected)
    )


def test_cross_entropy_is_the_log_loss_of_scikit_learn():
    logits, _, codes = draw(outputs=3)
    expected = log_loss(codes, np.exp(log_softmax(logits, axis=1)))
    loss = cross_entropy(torch.from_numpy(logits), make_batch(torch.from_numpy(codes)))
    assert loss.item() == pytest.approx(expected)


def test_squared_error_is_numpys():
    outputs, _, _ = draw(seed=1)
    target, _, _ = draw(seed=2)
    loss = mean_squared_error(torch.from_numpy(outputs), make_batch(torch.from_numpy(target)))
    assert loss.item() == pytest.approx(np.mean((outputs - target) ** 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_focal_loss_with_gamma_0_is_cross_entropy_also_in_its_gradient(dtype):
    """Acceptance 58; at γ = 2 both the value and the gradient differ (control)."""
    logits, is_case, codes = draw(outputs=3)
    logits[0] = [40, -40, 200]  # p is 1 in float32, where a power of 1 − p could spoil gradients.
    for target, plain in (
        (torch.from_numpy(is_case).to(dtype), binary_cross_entropy),
        (torch.from_numpy(codes), cross_entropy),
    ):
        gradients, values = [], []
        for criterion in (plain, Focal(gamma=0), Focal(gamma=2)):
            leaf = torch.from_numpy(logits).to(dtype).requires_grad_()
            value = criterion(leaf, make_batch(target))
            value.backward()
            values.append(value.detach())
            gradients.append(leaf.grad)
        torch.testing.assert_close(values[1], values[0])
        torch.testing.assert_close(gradients[1], gradients[0])
        assert values[2] < 0.99 * values[0]
        assert (gradients[2] - gradients[0]).abs().max() > 1e-3


def test_focal_loss_with_gamma_2_and_two_labels_by_hand():
    """Mean over rows and labels of −(1 − p)² log p (acceptance 58)."""
    logits, is_case, codes = draw()
    p = np.where(is_case, expit(logits), expit(-logits))
    loss = Focal()(torch.from_numpy(logits), make_batch(torch.from_numpy(is_case).double()))
    assert loss.item() == pytest.approx(np.mean(-((1 - p) ** 2) * np.log(p)))
    logits = draw(outputs=3)[0]
    p = np.exp(log_softmax(logits, axis=1))[np.arange(40), codes]
    loss = Focal(1.5)(torch.from_numpy(logits), make_batch(torch.from_numpy(codes)))
    assert loss.item() == pytest.approx(np.mean(-((1 - p) ** 1.5) * np.log(p)))


def test_focal_loss_with_a_small_gamma_has_finite_gradients_where_p_is_1():
    """Kills (1 − p)^γ without a bound, whose slope at 0 is infinite for γ < 1."""
    logits = torch.tensor([[200.0], [0.5]], requires_grad=True)
    Focal(gamma=0.5)(logits, make_batch(torch.ones(2, 1))).backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[1] != 0


CASES = {
    "cross-entropy": (cross_entropy, 3, "codes"),
    "binary-cross-entropy": (binary_cross_entropy, 2, "members"),
    "mean-squared-error": (mean_squared_error, 2, "members"),
    "focal": (Focal(), 2, "members"),
    "focal of classes": (Focal(), 3, "codes"),
}


@pytest.mark.parametrize("name", CASES)
def test_weights_are_divided_by_the_number_of_rows(name):
    """Σ w ℓ / n, where n counts rows: batches of one part add up to the loss of the part.

    Kills division by the sum of the weights, under which they do not.
    """
    criterion, outputs, kind = CASES[name]
    logits, is_case, codes = draw(outputs=outputs)
    target = torch.from_numpy(codes) if kind == "codes" else torch.from_numpy(is_case).double()
    logits = torch.from_numpy(logits)
    rng = np.random.default_rng(3)
    weight = torch.from_numpy(rng.gamma(0.5, size=40))
    weight = weight / weight.mean()
    rows = [criterion(logits[i : i + 1], make_batch(target[i : i + 1])) for i in range(40)]
    expected = (torch.stack(rows) * weight).sum() / 40
    whole = criterion(logits, make_batch(target, weight))
    torch.testing.assert_close(whole, expected)
    halves = [
        criterion(logits[part], make_batch(target[part], weight[part]))
        for part in (slice(0, 20), slice(20, 40))
    ]
    torch.testing.assert_close(sum(halves) / 2, whole)
    divided = (torch.stack(rows[:20]) * weight[:20]).sum() / weight[:20].sum()
    assert abs(divided - halves[0]) > 0.01  # control


def test_a_network_with_one_output_may_leave_out_its_axis():
    logits, is_case, _ = draw(outputs=1)
    rows = make_batch(torch.from_numpy(is_case).double())
    for criterion in (binary_cross_entropy, mean_squared_error, Focal()):
        flat = criterion(torch.from_numpy(logits[:, 0]), rows)
        torch.testing.assert_close(flat, criterion(torch.from_numpy(logits), rows))


@pytest.mark.parametrize("criterion", [binary_cross_entropy, mean_squared_error, Focal()])
def test_outputs_that_do_not_match_the_labels_are_refused(criterion):
    """Kills broadcasting, which compares every row with every other one."""
    with pytest.raises(ShapeError, match="one output per label; got outputs of shape"):
        criterion(torch.zeros(4, 2), make_batch(torch.zeros(4, 1)))
    with pytest.raises(ShapeError, match=r"\(1, 4\) and targets of shape \(4, 1\)"):
        criterion(torch.zeros(1, 4), make_batch(torch.zeros(4, 1)))


@pytest.mark.parametrize(
    ("task", "expected"),
    [(BINARY, binary_cross_entropy), (CLASSES, cross_entropy), (NUMERIC, mean_squared_error)],
)
def test_each_task_has_its_usual_loss(task, expected):
    assert make_criterion(None, task) is expected


def test_losses_are_known_by_name():
    assert make_criterion("focal", CLASSES) == Focal(gamma=2)
    assert make_criterion("ranking", BINARY, [0.2, 0.4]) == Ranking(0.1, [0.2, 0.4])
    assert make_criterion("mean-squared-error", NUMERIC, [65.0]) is mean_squared_error


def test_a_mistyped_loss_shows_the_nearest_name():
    with pytest.raises(OptionError, match="There is no loss 'focall'"):
        make_criterion("focall", BINARY)


def test_a_loss_of_another_task_shows_the_suitable_ones():
    with pytest.raises(OptionError) as error:
        make_criterion("ranking", NUMERIC)
    assert str(error.value) == (
        "The loss 'ranking' serves tasks of kind 'binary' and 'classes'; got a task of kind "
        "'numeric'. Write 'mean-squared-error'."
    )
    with pytest.raises(OptionError, match="Write 'cross-entropy' or 'focal' or 'ranking'"):
        make_criterion("binary-cross-entropy", CLASSES)


@pytest.mark.parametrize("gamma", [-1, float("nan"), float("inf"), "2"])
def test_gamma_is_a_number(gamma):
    with pytest.raises(OptionError, match="gamma must be a number, 0 or more"):
        Focal(gamma)
