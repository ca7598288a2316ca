"""Honest performance: what a model is worth where label and confounds are independent.

A model can reach a high score by reading the confounds alone, if cases and controls differ in
them. Three scores leave no room for that: the score among people of one stratum (a site, or people
of similar age), the score under weights that make label and confounds independent, and the score of
the stratum in which the model does worst.

Every score is a function of how often each row counts. The table counts each row once, and a
bootstrap sample counts the rows of the people that it drew. One set of samples serves all
intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import nan
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from deconfound.metrics.arrays import (
    Array,
    Codes,
    as_codes,
    as_matrix,
    as_vector,
    check_lengths,
)
from deconfound.metrics.bootstrap import Estimate, Resampling, draw_people, percentile_interval
from deconfound.metrics.label_scores import Label, LabelKind, read_label
from deconfound.metrics.performance import as_weights
from deconfound.metrics.sampled_scores import Flags, RowNumbers, ratio

# A stratum with fewer people (of each class) is not compared with others.
FEWEST_PEOPLE_IN_STRATUM = 10
# With fewer effective people (of any class) a balanced score is shown but not judged.
FEWEST_EFFECTIVE_PER_CLASS = 50
# Numbers in one block of bootstrap samples. It bounds the memory.
BLOCK_SIZE = 5_000_000

# From the weights of the rows in each sample, shape (samples, n), to one score per sample.
SampleScore: TypeAlias = Callable[[Array], Array]
# For each confound the codes of the rows, shape (n,), and the levels that they index.
Levels: TypeAlias = Mapping[str, tuple[Codes, NDArray[np.generic]]]


@dataclass(frozen=True)
class WorstGroup:
    """The stratum in which a model does worst.

    Attributes:
        confound: The confound that defines the strata.
        level: The level of this stratum.
        score: Balanced accuracy in this stratum; the mean absolute error for a numeric label.
        strata: Number of strata that were compared. The worst of many looks worse than it is.
    """

    confound: str
    level: str
    score: Estimate
    strata: int


@dataclass(frozen=True)
class HonestScore:
    """What a model is worth where label and confounds are independent.

    For a label of two classes `plain`, `within_strata` and `balanced` are AUCs. For more classes
    they are the mean AUC of each class against the rest.

    Attributes:
        label: The kind of the label: "binary", "classes" or "numeric".
        plain: The score on the table as it is; R² for a numeric label.
        within_strata: For each confound, the score among people of one stratum. For a numeric
            label, the correlation after the means of the strata are subtracted from both sides.
        balanced: The score under the weights; R² for a numeric label. NaN without weights.
        effective: Effective number of people under the weights, (Σw)² / Σw², of each class in
            sorted order (controls, cases); one number for a numeric label; empty without weights.
        worst_group: The stratum with the least balanced accuracy, or with the largest mean absolute
            error for a numeric label. None without predicted classes, or without two strata, of any
            confounds, that have 10 people of each class.
    """

    label: LabelKind
    plain: Estimate
    within_strata: Mapping[str, Estimate]
    balanced: Estimate
    effective: tuple[float, ...]
    worst_group: WorstGroup | None

    @property
    def has_enough_people(self) -> bool:
        """True if each class has 50 effective people, so that `balanced` may be judged."""
        return bool(self.effective) and min(self.effective) >= FEWEST_EFFECTIVE_PER_CLASS


def honest_performance(
    scores: ArrayLike,
    truth: ArrayLike,
    strata: Mapping[str, ArrayLike],
    weights: ArrayLike | None = None,
    *,
    person: ArrayLike | None = None,
    fold: ArrayLike | None = None,
    threshold: float | None = None,
    resampling: Resampling | None = None,
) -> HonestScore:
    """Score a model within strata, under balancing weights, and in its worst stratum.

    AUCs are taken within test folds, because scores of different networks have no common scale.
    The AUCs of several cells (strata, folds) are averaged with the inverse of their variance under
    chance as weights:

        AUC = Σ_s a_s AUC_s / Σ_s a_s,   a_s = n₁ n₀ / (n₁ + n₀)

    Intervals come from bootstrap samples of people within classes. Each person is drawn with all
    rows. The balancing weights are not fitted again in each sample.

    Args:
        scores: Shape `(n,)`: the score of being a case, or the prediction of a numeric label. Shape
            `(n, k)`: one score for each of k classes, of which the highest is the prediction.
        truth: Shape `(n,)`. For scores `(n, k)` the column of the true class, 0 to k − 1. For
            scores `(n,)` 0 and 1 (or booleans); other numbers are values of a numeric label.
        strata: For each confound the level of each row, shape `(n,)`. Use `thirds` for numbers.
        weights: Weights under which label and confounds are independent, shape `(n,)`: the label's
            column of `deconfound.balance(…).weights` for these rows. Use overlap weights for
            classes and entropy weights for a numeric label.
        person: Person of each row, shape `(n,)`; None if each row is another person.
        fold: Test fold of each row, shape `(n,)`; None if one model gave all scores.
        threshold: The score from which a row is predicted to be a case: 0 for logits, .5 for
            probabilities. Without it a label of two classes has no worst group.
        resampling: Number of bootstrap samples and their seed; None takes the defaults.

    Raises:
        ShapeError: The arrays differ in their numbers of rows.
        OptionError: The truth does not fit the number of columns of the scores.

    Example:
        The scores depend on the site alone.

        >>> site = ["A"] * 20 + ["B"] * 20
        >>> truth = [1] * 15 + [0] * 5 + [1] * 5 + [0] * 15
        >>> honest = honest_performance([0.9] * 20 + [0.1] * 20, truth, {"site": site})
        >>> honest.plain.value, honest.within_strata["site"].value
        (0.75, 0.5)
    """
    outputs, values = as_matrix(scores, "scores"), as_vector(truth, "truth")
    check_lengths(scores=outputs, truth=values)
    label = read_label(outputs, values, threshold)
    levels = {name: as_codes(column, f"strata[{name!r}]") for name, column in strata.items()}
    for name, (codes, _) in levels.items():
        check_lengths(scores=outputs, **{f"strata[{name!r}]": codes})
    rows = _read_rows(label, person, fold, resampling or Resampling())
    score = partial(label.score, rows.cells())
    within = {
        name: rows.estimate(partial(label.score_within, rows.cells(codes)))
        for name, (codes, _) in levels.items()
    }
    balanced = Estimate(nan)
    effective: tuple[float, ...] = ()
    if weights is not None:
        weight = as_weights(weights, len(values), "weights")
        balanced = rows.estimate(score, weight)
        effective = tuple(rows.effective_people(weight * members) for members in label.classes)
    worst = _worst_group(label, levels, rows)
    return HonestScore(label.kind, rows.estimate(score), within, balanced, effective, worst)


def thirds(values: ArrayLike) -> NDArray[np.str_]:
    """Return the strata of a numeric confound: the third of each row, shape `(n,)`.

    Args:
        values: Numbers, shape `(n,)`. Equal numbers are in the same third.

    Example:
        >>> thirds([55, 61, 66, 70, 75, 81]).tolist()[1:3]
        ['lower third (55 to 61)', 'middle third (66 to 70)']
    """
    numbers = as_vector(values, "values")
    third = np.searchsorted(np.quantile(numbers, [1 / 3, 2 / 3]), numbers)
    names = np.empty(len(numbers), dtype=object)
    for code, word in enumerate(["lower", "middle", "upper"]):
        members = numbers[third == code]
        if len(members):
            names[third == code] = f"{word} third ({members.min():.10g} to {members.max():.10g})"
    return names.astype(np.str_)


@dataclass(frozen=True)
class _Rows:
    """People, folds and bootstrap samples of the rows.

    Attributes:
        person: Codes of the person of each row, shape `(n,)`.
        fold: Codes of the test fold of each row, shape `(n,)`.
        counts: How often each row counts in each sample, shape `(1 + bootstraps, n)`. The first
            sample is the table, in which each row counts once.
    """

    person: Codes
    fold: Codes
    counts: NDArray[np.intp]

    def estimate(self, score: SampleScore, weight: Array | None = None) -> Estimate:
        """Return a score of the table with its bootstrap interval."""
        blocks = np.array_split(self.counts, -(-self.counts.size // BLOCK_SIZE))
        factor = np.ones(len(self.person)) if weight is None else weight
        scores = np.concatenate([score(block * factor) for block in blocks])
        people = len(np.unique(self.person))
        return Estimate(float(scores[0]), *percentile_interval(scores[1:]), n=people)

    def cells(self, strata: Codes | None = None) -> list[RowNumbers]:
        """Return the rows of each test fold, or of each stratum in each test fold."""
        codes = self.fold if strata is None else self.fold + strata * (self.fold.max() + 1)
        return [np.flatnonzero(codes == code) for code in np.unique(codes)]

    def people(self, members: Flags) -> int:
        """Return the number of people with rows among the members, shape `(n,)`."""
        return len(np.unique(self.person[members]))

    def effective_people(self, weight: Array) -> float:
        """Return (Σw)² / Σw², where w is the sum of the weights of a person."""
        of_person = np.bincount(self.person, weight)
        return float(ratio(of_person.sum() ** 2, (of_person**2).sum()))


def _read_rows(
    label: Label, person: ArrayLike | None, fold: ArrayLike | None, resampling: Resampling
) -> _Rows:
    n = len(label.classes[0])
    people = np.arange(n) if person is None else as_codes(person, "person")[0]
    folds = np.zeros(n, dtype=np.intp) if fold is None else as_codes(fold, "fold")[0]
    check_lengths(scores=label.classes[0], person=people, fold=folds)
    # One class for a numeric label, whose people are therefore drawn together.
    class_of_row = np.argmax(label.classes, axis=0)
    drawn = draw_people(people, class_of_row, resampling.bootstraps, resampling.seed)
    return _Rows(people, folds, np.concatenate([np.ones((1, n), dtype=np.intp), drawn]))


def _worst_group(label: Label, strata: Levels, rows: _Rows) -> WorstGroup | None:
    """Return the stratum with the worst score among those with enough people of each class."""
    groups: dict[tuple[str, str], Flags] = {}
    for confound, (codes, names) in strata.items():
        for code, name in enumerate(names):
            members = codes == code
            smallest = min(rows.people(members & in_class) for in_class in label.classes)
            if smallest >= FEWEST_PEOPLE_IN_STRATUM:
                groups[confound, str(name)] = members
    if len(groups) < 2 or not label.is_predicted:
        return None
    table = np.ones((1, len(rows.person)))
    scores = {name: label.score_group(members, table)[0] for name, members in groups.items()}
    worst = (max if label.group_score_is_error else min)(scores, key=scores.__getitem__)
    estimate = rows.estimate(partial(label.score_group, groups[worst]))
    estimate = replace(estimate, n=rows.people(groups[worst]))
    return WorstGroup(*worst, score=estimate, strata=len(groups))
