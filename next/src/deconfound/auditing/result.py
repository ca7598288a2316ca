"""The result of an audit: typed rows, from which tables, sentences, figures and pages are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from deconfound.metrics import Calibration, Estimate, HonestScore, ProbeScore

Answer = Literal["found", "not found", "no answer"]
Grade = Literal["none", "faint", "weak", "clear", "strong"]

# The largest p-value of a finding.
LEVEL = 0.05
# A test that finds a smaller share of planted leaks could have missed a leak.
LEAST_POWER = 0.8
# The effect reads as a squared correlation: these are correlations of .1, .25 and .5.
GRADES: tuple[tuple[float, Grade], ...] = ((0.01, "faint"), (0.06, "weak"), (0.25, "clear"))


def grade_of(effect: float) -> Grade:
    """Return the size of a leak in words."""
    return next((name for limit, name in GRADES if effect < limit), "strong")


@dataclass(frozen=True)
class GroupLeak:
    """The leak within one label group.

    Attributes:
        group: The label group, such as "AD".
        effect: The effect with its interval; `p` is adjusted for all groups and their pairs.
    """

    group: str
    effect: Estimate


@dataclass(frozen=True)
class Sensitivity:
    """How often a planted leak would have been found in this table.

    Attributes:
        group: The label group whose rows were shifted; None if all were.
        shift: The size of the planted leak in sd of the outputs within labels and folds: between
            the two largest levels, or per sd of a number.
        share: The share of trials in which the leak was found, with its interval; n trials.
    """

    group: str | None
    shift: float
    share: Estimate


@dataclass(frozen=True)
class Verdict:
    """What is left of one confound in the outputs or features of one model.

    Attributes:
        model: The model.
        is_features: True for features, False for outputs.
        confound: The confound.
        answer: "found" if Holm's p over the confounds of the model is at most .05; "no answer" if
            nothing can be known, for `reason`.
        grade: The size of a leak that was found: below .01 faint, .06 weak, .25 clear, else strong
            (correlations of .1, .25 and .5).
        effect: 0 for independence given the labels, 1 for the largest possible leak; `p` is raw.
        holm: Holm's p over the confounds of the model.
        independent: The 95 % quantile of the effect if there were no leak.
        by_group: The leak within each label group that is tested on its own.
        sensitivity: What would have been found: planted leaks in all rows and in each label group.
        probe: How well simple models read the confound from the outputs; None if not computed.
        paper: The paper's measure: |correlation| or dcor², averaged over folds; NaN if unknown.
        rows: The number of rows that were compared.
        reason: Why there is no answer, else "".
        collect: What data would give an answer, else "".
    """

    model: str
    is_features: bool
    confound: str
    answer: Answer
    grade: Grade
    effect: Estimate
    holm: float
    independent: float
    by_group: tuple[GroupLeak, ...]
    sensitivity: tuple[Sensitivity, ...]
    probe: ProbeScore | None
    paper: float
    rows: int
    reason: str
    collect: str


@dataclass(frozen=True)
class Performance:
    """What one model is worth for one label.

    Attributes:
        model: The model.
        label: The label.
        classes: Its classes in the order of the scores, of two the positive one last; empty for a
            numeric label.
        positive: The class that a single score stands for, else "".
        honest: The scores: as sampled, within strata, under balancing weights, in the worst group.
        confounds_alone: The score of a model that sees the confounds alone, cross-fitted by person.
        calibration: Probabilities beside shares of cases; None without probabilities.
        balance: Why there are no balancing weights, else "".
    """

    model: str
    label: str
    classes: tuple[str, ...]
    positive: str
    honest: HonestScore
    confounds_alone: Estimate
    calibration: Calibration | None
    balance: str


@dataclass(frozen=True)
class About:
    """What was audited, and how.

    Attributes:
        rows: Number of rows.
        people: Number of people.
        folds: Number of test folds.
        models: The models.
        features: The names of the features that were audited.
        labels: The labels.
        confounds: The confounds.
        groups: Number of people in each label group.
        permutations: Number of permutations behind each p-value.
        bootstraps: Number of bootstrap samples behind each interval.
        planted: The size of planted leaks in sd; None if none were planted.
        has_people: Whether rows of one person were known as such.
        has_weights: Whether rows had weights.
        reading: Sentences on how the columns of the outputs were read.
        version: The version of deconfound.
    """

    rows: int
    people: int
    folds: int
    models: tuple[str, ...]
    features: tuple[str, ...]
    labels: tuple[str, ...]
    confounds: tuple[str, ...]
    groups: dict[str, int]
    permutations: int
    bootstraps: int
    planted: float | None
    has_people: bool
    has_weights: bool
    reading: tuple[str, ...]
    version: str
