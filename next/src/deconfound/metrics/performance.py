"""How well scores and predictions agree with the truth.

Where scikit-learn has the same measure, the numbers are equal. A row with a weight of 2 counts as
two rows, and one with a weight of 0 is absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import ArrayLike

from deconfound.errors import OptionError, ShapeError
from deconfound.metrics.arrays import Array, as_codes, as_vector, check_lengths
from deconfound.metrics.sampled_scores import Flags, auc_of_samples


def auc(scores: ArrayLike, truth: ArrayLike) -> float:
    """Return the area under the ROC curve: how often a case scores above a control.

    Pairs with equal scores count half.

    Args:
        scores: Shape `(n,)`; a case should have the higher score.
        truth: 1 or True for cases and 0 or False for controls, shape `(n,)`.

    Returns:
        A number from 0 to 1; NaN without cases or without controls.

    Example:
        >>> auc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
        0.75
    """
    return weighted_auc(scores, truth, None)


def weighted_auc(scores: ArrayLike, truth: ArrayLike, weight: ArrayLike | None) -> float:
    """Return the area under the ROC curve, where a pair weighs the product of its rows' weights.

        AUC = Σ w_i w_j ([s_i > s_j] + ½ [s_i = s_j]) / Σ w_i w_j,   i a case, j a control

    Args:
        scores: Shape `(n,)`; a case should have the higher score.
        truth: 1 or True for cases and 0 or False for controls, shape `(n,)`.
        weight: Weight of each row, not negative, shape `(n,)`; None weighs all rows equally.

    Returns:
        A number from 0 to 1; NaN if the cases or the controls have no weight.

    Example:
        >>> weighted_auc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], weight=[1, 3, 1, 1])
        0.625
    """
    numbers, is_case = as_vector(scores, "scores"), as_flags(truth, "truth")
    weights = as_weights(weight, check_lengths(scores=numbers, truth=is_case))
    return float(auc_of_samples(numbers, is_case, weights[None])[0])


def accuracy(predicted: ArrayLike, truth: ArrayLike, weight: ArrayLike | None = None) -> float:
    """Return the share of correct rows.

    Args:
        predicted: Predicted classes, shape `(n,)`, or `(n, labels)` for several labels. A row is
            then correct if all of its labels are.
        truth: True classes, of the same shape.
        weight: Weight of each row, not negative, shape `(n,)`; None weighs all rows equally.

    Example:
        >>> accuracy(["AD", "CN", "CN", "CN"], ["AD", "AD", "CN", "CN"])
        0.75
    """
    is_correct = correct_rows(predicted, truth)
    return float(np.average(is_correct, weights=as_weights(weight, len(is_correct))))


def balanced_accuracy(
    predicted: ArrayLike, truth: ArrayLike, weight: ArrayLike | None = None
) -> float:
    """Return the accuracy within each true class, averaged over the classes.

    Args:
        predicted: Predicted classes, shape `(n,)`.
        truth: True classes, shape `(n,)`.
        weight: Weight of each row, not negative, shape `(n,)`; None weighs all rows equally.

    Example:
        >>> balanced_accuracy(["AD", "CN", "CN", "CN"], ["AD", "CN", "CN", "AD"])
        0.75
    """
    return group_accuracy(predicted, truth, truth, weight)


def group_accuracy(
    predicted: ArrayLike,
    truth: ArrayLike,
    groups: ArrayLike,
    weight: ArrayLike | None = None,
) -> float:
    """Return the accuracy within each group, averaged over the groups.

    This is the accuracy of the paper, whose groups are the four combinations of two labels and
    whose rows are correct if both labels are.

    Args:
        predicted: Predicted classes, shape `(n,)`, or `(n, labels)` for several labels.
        truth: True classes, of the same shape.
        groups: Group of each row, shape `(n,)`.
        weight: Weight of each row, not negative, shape `(n,)`; None weighs all rows equally. A
            group without weight takes no part.

    Example:
        >>> group_accuracy([1, 1, 0, 0], [1, 1, 1, 0], groups=["a", "a", "b", "b"])
        0.75
    """
    is_correct = correct_rows(predicted, truth)
    codes, _ = as_codes(groups, "groups")
    weights = as_weights(weight, check_lengths(predicted=is_correct, groups=codes))
    total = np.bincount(codes, weights)
    shares = np.bincount(codes, weights * is_correct)[total > 0] / total[total > 0]
    return float(shares.mean())


def r_squared(predicted: ArrayLike, truth: ArrayLike, weight: ArrayLike | None = None) -> float:
    """Return the explained share of variance, R² = 1 − Σ w (y − ŷ)² / Σ w (y − ȳ)².

    It is negative where the mean of the truth would be a better prediction.

    Args:
        predicted: ŷ, shape `(n,)`.
        truth: y, shape `(n,)`.
        weight: w, not negative, shape `(n,)`; None weighs all rows equally.

    Returns:
        A number of at most 1; NaN if the truth does not vary.

    Example:
        >>> r_squared([1.0, 2.0, 4.0], [1.0, 2.0, 3.0])
        0.5
    """
    guesses, numbers = as_vector(predicted, "predicted"), as_vector(truth, "truth")
    weights = as_weights(weight, check_lengths(predicted=guesses, truth=numbers))
    mean = np.average(numbers, weights=weights)
    variation = float(weights @ (numbers - mean) ** 2)
    errors = float(weights @ (numbers - guesses) ** 2)
    return 1 - errors / variation if np.ptp(numbers[weights > 0]) > 0 else nan


def brier_score(
    probabilities: ArrayLike, truth: ArrayLike, weight: ArrayLike | None = None
) -> float:
    """Return the mean squared distance of probabilities from the truth of 0 or 1.

    A perfect model has 0, and one that always answers .5 has .25.

    Args:
        probabilities: Predicted probability of being a case, shape `(n,)`.
        truth: 1 or True for cases and 0 or False for controls, shape `(n,)`.
        weight: Weight of each row, not negative, shape `(n,)`; None weighs all rows equally.

    Example:
        >>> brier_score([0.5, 1.0], [0, 1])
        0.125
    """
    numbers, is_case = _as_probabilities(probabilities), as_flags(truth, "truth")
    weights = as_weights(weight, check_lengths(probabilities=numbers, truth=is_case))
    return float(np.average((numbers - is_case) ** 2, weights=weights))


@dataclass(frozen=True)
class Calibration:
    """Predicted probabilities beside the observed shares of cases, in bins of rows.

    Attributes:
        error: Expected calibration error, Σ n_bin |observed − predicted| / n.
        predicted: Mean probability of each bin.
        observed: Share of cases in each bin.
        counts: Number of rows in each bin.
    """

    error: float
    predicted: tuple[float, ...]
    observed: tuple[float, ...]
    counts: tuple[int, ...]


def calibration(probabilities: ArrayLike, truth: ArrayLike, bins: int = 10) -> Calibration:
    """Compare predicted probabilities with the observed shares of cases.

    Args:
        probabilities: Predicted probability of being a case, shape `(n,)`.
        truth: 1 or True for cases and 0 or False for controls, shape `(n,)`.
        bins: Number of bins, between quantiles of the probabilities. Equal probabilities stay
            together, so there may be fewer bins.

    Example:
        >>> calibration([0.1, 0.3, 0.6, 1.0], [0, 1, 1, 1], bins=2).observed
        (0.5, 1.0)
    """
    if not isinstance(bins, int | np.integer) or bins < 1:
        raise OptionError(f"`bins` cannot be {bins!r}. Pass a whole number of at least 1.")
    numbers, is_case = _as_probabilities(probabilities), as_flags(truth, "truth")
    check_lengths(probabilities=numbers, truth=is_case)
    # Equal probabilities fall into one bin, so that bins may be empty.
    inner_edges = np.quantile(numbers, np.linspace(0, 1, bins + 1))[1:-1]
    bin_of_row = np.searchsorted(inner_edges, numbers)
    counts = np.bincount(bin_of_row)
    used = counts > 0
    predicted = np.bincount(bin_of_row, numbers)[used] / counts[used]
    observed = np.bincount(bin_of_row, is_case)[used] / counts[used]
    error = float(np.average(np.abs(observed - predicted), weights=counts[used]))
    return Calibration(
        error, tuple(predicted.tolist()), tuple(observed.tolist()), tuple(counts[used].tolist())
    )


def as_flags(values: ArrayLike, name: str) -> Flags:
    """Return 0 and 1, or False and True, as booleans of shape `(n,)`."""
    numbers = as_vector(values, name)
    others = np.setdiff1d(numbers, [0, 1])
    if len(others):
        raise OptionError(
            f"`{name}` holds {others[0]:g}. Pass 1 or True for cases and 0 or False for controls."
        )
    is_case: Flags = numbers == 1
    return is_case


def as_weights(weight: ArrayLike | None, rows: int, name: str = "weight") -> Array:
    """Return one weight for each row, shape `(rows,)`; ones for None."""
    if weight is None:
        return np.ones(rows)
    weights = as_vector(weight, name)
    if len(weights) != rows:
        raise ShapeError(f"`{name}` has {len(weights)} rows for {rows}. Pass one number for each.")
    if weights.min() < 0 or weights.max() == 0:
        raise OptionError(
            f"`{name}` runs from {weights.min():g} to {weights.max():g}. "
            "Pass numbers of 0 or more, at least one of them positive."
        )
    return weights


def correct_rows(predicted: ArrayLike, truth: ArrayLike) -> Flags:
    """Return which rows have all of their labels right, shape `(n,)`."""
    guesses, classes = np.asarray(predicted), np.asarray(truth)
    if guesses.shape != classes.shape or guesses.ndim not in (1, 2) or not guesses.size:
        raise ShapeError(
            f"`predicted` has shape {guesses.shape} and `truth` {classes.shape}. "
            "Pass one class for each row in both, shape (n,) or (n, labels)."
        )
    for name, values in (("predicted", guesses), ("truth", classes)):
        for column in values.reshape(len(values), -1).T:
            as_codes(column, name)
    # NumPy compares text with numbers as unequal everywhere, which would look like a bad model.
    are_texts = [isinstance(values.ravel()[0], str) for values in (guesses, classes)]
    if are_texts[0] != are_texts[1]:
        raise OptionError(
            f"`predicted` holds {guesses.dtype} and `truth` {classes.dtype}. "
            "Pass the same classes in both."
        )
    is_equal = np.asarray(guesses == classes).reshape(len(guesses), -1)
    return np.asarray(is_equal.all(axis=1))


def _as_probabilities(values: ArrayLike) -> Array:
    numbers = as_vector(values, "probabilities")
    if numbers.min() < 0 or numbers.max() > 1:
        raise OptionError(
            f"`probabilities` runs from {numbers.min():g} to {numbers.max():g}. "
            "Pass numbers from 0 to 1; apply a sigmoid or softmax to logits first."
        )
    return numbers
