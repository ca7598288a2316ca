"""What is left of each confound in one array of outputs or features."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from deconfound.auditing.checks import (
    FEWEST_MOVABLE_ROWS,
    NoAnswer,
    constant_outputs,
    find_obstacle,
    too_few_rows,
)
from deconfound.auditing.intake import Column, Intake
from deconfound.auditing.result import GroupLeak, Sensitivity
from deconfound.metrics import (
    Estimate,
    Leak,
    LeakTest,
    OutputSimilarity,
    ProbeScore,
    Resampling,
    paper_association,
    plant_leaks,
    probe,
    within_group_dcor_sqr,
)

Array = NDArray[np.float64]

# A plant takes time with the square of the rows. This many pairs of rows take about a second.
PAIRS_OF_ALL_PLANTS = 25_000_000
MOST_PLANTS, FEWEST_PLANTS = 100, 20
# Probes are cross-validated by person, which needs a few of them.
FEWEST_PEOPLE = 10
# Probes and the paper's dcor² describe at most this many rows, as the test compares.
MOST_ROWS = 3000


@dataclass(frozen=True, eq=False)
class Source:
    """One array to be audited.

    Attributes:
        model: The model's name, or that of the features.
        is_features: True for features, False for outputs.
        values: The array, shape `(n, d)`.
    """

    model: str
    is_features: bool
    values: Array


@dataclass(frozen=True)
class Measurement:
    """What was measured of one confound, before verdicts over all confounds.

    Attributes:
        confound: The confound.
        leak: The leak; None without an answer.
        obstacle: Why there is no answer; None if there is one.
        sensitivity: Planted leaks.
        probe: The probes; None if they were not asked for.
        paper: The paper's measure.
    """

    confound: Column
    leak: Leak | None
    obstacle: NoAnswer | None
    sensitivity: tuple[Sensitivity, ...]
    probe: ProbeScore | None
    paper: float

    @property
    def effect(self) -> Estimate:
        """The effect over all pairs with its interval and raw p; NaN without an answer."""
        if self.leak is None:
            return Estimate(float("nan"))
        return _estimate(self.leak)

    @property
    def by_group(self) -> tuple[GroupLeak, ...]:
        """The leak within each label group."""
        groups = {} if self.leak is None else self.leak.by_group
        return tuple(GroupLeak(str(name), _estimate(one)) for name, one in groups.items())


def _estimate(leak: Leak) -> Estimate:
    """Return an effect with an interval that contains it, also where noise made it negative."""
    low, high = min(leak.low, leak.effect), max(leak.high, leak.effect)
    return Estimate(leak.effect, low, high, leak.p, leak.rows)


def measure_confounds(
    source: Source,
    intake: Intake,
    *,
    resampling: Resampling,
    planted: float | None,
    probes: bool,
    on_step: Callable[[str], None],
) -> Iterator[Measurement]:
    """Measure each confound in one array; the similarity of rows is computed once for all.

    Args:
        source: The array.
        intake: What is known about its rows.
        resampling: Numbers of permutations and bootstrap samples, and their seed.
        planted: The size of planted leaks in sd; None plants none.
        probes: Whether to cross-validate probes.
        on_step: Called with a description before each confound.
    """
    on_step(f"{source.model}: comparing rows")
    # Outputs of different folds have the same meaning; features come from different networks.
    similarity = OutputSimilarity.from_outputs(
        source.values, intake.rows, compare_folds=not source.is_features, seed=resampling.seed
    )
    for confound in intake.confounds:
        on_step(f"{source.model}: {confound.name}")
        yield _measure(source, confound, intake, similarity, resampling, planted, probes)


def _measure(
    source: Source,
    confound: Column,
    intake: Intake,
    similarity: OutputSimilarity,
    resampling: Resampling,
    planted: float | None,
    probes: bool,
) -> Measurement:
    obstacle = find_obstacle(confound, intake)
    leak: Leak | None = None
    sensitivity: tuple[Sensitivity, ...] = ()
    if obstacle is None:
        test = LeakTest.from_confound(
            similarity,
            confound.values,
            categorical=confound.is_categorical,
            resampling=resampling,
        )
        leak, obstacle = _result(test, confound)
        if leak is not None and planted is not None:
            sensitivity = measure_sensitivity(test, planted, resampling.seed)
    used = intake.rows.sample(MOST_ROWS, resampling.seed)
    score = None
    if probes and len(np.unique(confound.values[used])) > 1 and intake.people >= FEWEST_PEOPLE:
        score = probe(
            source.values[used],
            confound.values[used],
            categorical=confound.is_categorical,
            person=intake.person[used],
            seed=resampling.seed,
        )
    paper = _paper_measure(source, confound, intake, used)
    return Measurement(confound, leak, obstacle, sensitivity, score, paper)


def _result(test: LeakTest, confound: Column) -> tuple[Leak | None, NoAnswer | None]:
    """Return the leak, or why there is none."""
    movable = int(test.movable.sum())
    if movable < FEWEST_MOVABLE_ROWS:
        return None, too_few_rows(confound, movable)
    if not test.has_answer:
        return None, constant_outputs()
    return test.result(), None


def measure_sensitivity(test: LeakTest, shift: float, seed: int) -> tuple[Sensitivity, ...]:
    """Plant leaks into the user's own table and count how many the test finds."""
    affordable = PAIRS_OF_ALL_PLANTS // len(test.similarity) ** 2
    trials = min(max(affordable, FEWEST_PLANTS), MOST_PLANTS)
    rows = []
    for planted in plant_leaks(test, shift=shift, trials=trials, seed=seed):
        interval = binomtest(planted.detections, planted.trials).proportion_ci(method="wilson")
        share = Estimate(
            planted.detections / planted.trials, interval.low, interval.high, n=planted.trials
        )
        group = None if planted.group is None else str(planted.group)
        rows.append(Sensitivity(group, planted.shift, share))
    return tuple(rows)


def _paper_measure(
    source: Source, confound: Column, intake: Intake, used: NDArray[np.intp]
) -> float:
    """Return |correlation| or dcor² of outputs, and dcor² within label groups of features."""
    values, levels = source.values[used], confound.values[used]
    if not source.is_features:
        return paper_association(
            values, levels, intake.fold[used], categorical=confound.is_categorical
        )
    columns = levels[:, None].astype(np.float64)
    if confound.is_categorical:
        columns = np.eye(len(confound.levels))[levels.astype(np.intp)]
    try:
        return within_group_dcor_sqr(values, columns, intake.rows.group[used])
    except ValueError:  # A label group with fewer than four rows.
        return float("nan")
