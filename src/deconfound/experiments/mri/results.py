"""Table 2 from the outputs of every training, with what the paper's table could not have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from deconfound.data.cohort import Cohort
from deconfound.data.counting import paper_table_one, table_one
from deconfound.data.people import GROUPS
from deconfound.data.truth import bayes_accuracy
from deconfound.experiments.mri.fold import CONFOUNDS, LABELS, Outcome
from deconfound.experiments.mri.plan import ARMS, Plan
from deconfound.metrics import column, pearson, u_distance_correlation_sqr


@dataclass(frozen=True)
class Value:
    """A number with its spread.

    Attributes:
        mean: Over folds, or over all people.
        low: End of the 95 % interval.
        high: The other end.
    """

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """One arm at one batch size.

    Attributes:
        batch: The batch size.
        arm: Its name in `ARMS`.
        marginal: The paper's three correlations, by confound: within folds, then averaged.
        within: The same three within diagnostic groups, over all folds' test people.
        accuracy: The mean of the four groups' accuracies on the test folds.
        independent: The same on the people in whom labels are independent of the confounds.
        seconds: Mean time of a training.
    """

    batch: int
    arm: str
    marginal: Mapping[str, Value]
    within: Mapping[str, Value]
    accuracy: Value
    independent: Value
    seconds: float

    @property
    def within_mean(self) -> float:
        """The mean of the three correlations within groups: the smaller, the less of the confounds is left."""
        return float(np.mean([value.mean for value in self.within.values()]))


@dataclass(frozen=True)
class Results:
    """The experiment's numbers.

    Attributes:
        lines: One for each batch size and arm.
        truth: The paper's three correlations of the true labels themselves, which are not zero.
        chance: The three correlations within groups of random scores: what is left of nothing.
        ceiling: The best accuracy without the confounds.
        ceiling_with_confounds: The best accuracy on the cohort with the site's help.
        table_one: The simulated Table 1, and the paper's.
    """

    lines: tuple[Line, ...]
    truth: Mapping[str, float]
    chance: Mapping[str, float]
    ceiling: float
    ceiling_with_confounds: float
    table_one: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def summarise(
    plan: Plan, cohort: Cohort, independent: Cohort, outcomes: Mapping[tuple[int, int, str], Outcome]
) -> Results:
    """Measure every arm at every batch size."""
    lines = []
    for batch in plan.batch_sizes:
        for arm in plan.arms:
            found = [outcomes[batch, fold, arm] for fold in range(plan.run_folds)]
            lines.append(_line(plan, batch, arm, cohort, independent, found))
    labels = np.stack([cohort.table[name] for name in LABELS], axis=1).astype(np.float64)
    rows = np.concatenate([outcomes[plan.batch_sizes[0], fold, plan.arms[0]].rows for fold in range(plan.run_folds)])
    random = np.random.default_rng(0)
    noise = [within_groups(random.standard_normal((len(rows), 2)), cohort, rows) for _ in range(20)]
    tables = {"simulated": table_one(cohort.table), "paper": paper_table_one()}
    return Results(
        tuple(lines),
        correlations(labels, cohort, np.arange(len(cohort))),
        {name: float(np.mean([each[name] for each in noise])) for name in CONFOUNDS},
        bayes_accuracy(cohort.strengths),
        bayes_accuracy(cohort.strengths, confounds=True),
        {name: [asdict(line) for line in table] for name, table in tables.items()},
    )


def correlations(scores: NDArray[Any], cohort: Cohort, rows: NDArray[Any]) -> dict[str, float]:
    """The paper's measures: mean over the scores of |Pearson| for age and sex, and of dcor² for the site."""
    values = torch.from_numpy(np.ascontiguousarray(scores, dtype=np.float64))
    found = {}
    for name in CONFOUNDS:
        known = column(name, np.asarray(cohort.table[name])[rows], "categorical" if name == "site" else None)
        if name == "site":
            each = [u_distance_correlation_sqr(score[:, None], known.encoded) for score in values.T]
            found[name] = float(torch.stack(each).mean())
        else:
            found[name] = float(pearson(values, known.values).abs().mean())
    return found


def within_groups(scores: NDArray[Any], cohort: Cohort, rows: NDArray[Any]) -> dict[str, float]:
    """The same within each diagnostic group, averaged over the groups in which the confound varies."""
    groups = np.asarray(cohort.table["group"])[rows]
    found: dict[str, list[float]] = {name: [] for name in CONFOUNDS}
    for group in GROUPS:
        mine = groups == group
        if mine.sum() < 4:
            continue
        for name, value in correlations(scores[mine], cohort, rows[mine]).items():
            if len(set(np.asarray(cohort.table[name])[rows[mine]].tolist())) > 1:
                found[name].append(value)
    return {name: float(np.mean(values)) if values else 0.0 for name, values in found.items()}


def group_accuracy(logits: NDArray[Any], cohort: Cohort, rows: NDArray[Any]) -> float:
    """The share of people with both labels right, in each group, averaged."""
    truth = np.stack([cohort.table[name][rows] for name in LABELS], axis=1)
    right = ((logits > 0) == truth).all(axis=1)
    groups = np.asarray(cohort.table["group"])[rows]
    return float(np.mean([right[groups == group].mean() for group in GROUPS if (groups == group).any()]))


def _line(plan: Plan, batch: int, arm: str, cohort: Cohort, independent: Cohort, found: list[Outcome]) -> Line:
    assert arm in ARMS
    marginal = [correlations(each.logits, cohort, each.rows) for each in found]
    everyone = np.arange(len(independent))
    rows = np.concatenate([each.rows for each in found])
    # Folds are trained apart: their scores are brought to one scale before people of all folds are looked at together.
    scores = np.concatenate([standardised(each.logits) for each in found])
    within = within_groups(scores, cohort, rows)
    draws = _bootstrap(scores, cohort, rows, plan.bootstraps)
    return Line(
        batch,
        arm,
        {name: over_folds([each[name] for each in marginal]) for name in CONFOUNDS},
        {name: around(within[name], draws[name]) for name in CONFOUNDS},
        over_folds([group_accuracy(each.logits, cohort, each.rows) for each in found]),
        over_folds([group_accuracy(each.independent, independent, everyone) for each in found]),
        float(np.mean([each.seconds for each in found])),
    )


def standardised(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Logits of one fold with mean 0 and sd 1 each."""
    spread = logits.std(axis=0)
    scaled: NDArray[np.float64] = (logits - logits.mean(axis=0)) / np.where(spread > 0, spread, 1)
    return scaled


def around(value: float, draws: list[float]) -> Value:
    """A 95 % interval from replicates, moved by their mean error: drawing people again adds to a |correlation|."""
    low, high = np.quantile(draws, [0.025, 0.975]) - (np.mean(draws) - value)
    return Value(value, float(low), float(high))


def over_folds(values: list[float]) -> Value:
    """The mean over folds with a t interval; the mean alone for a single fold."""
    mean, n = float(np.mean(values)), len(values)
    if n < 2:
        return Value(mean, mean, mean)
    # Quantiles of Student's t at 97.5 %, by degrees of freedom.
    t = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}.get(n - 1, 2.0)
    half = t * float(np.std(values, ddof=1)) / float(np.sqrt(n))
    return Value(mean, mean - half, mean + half)


def _bootstrap(scores: NDArray[Any], cohort: Cohort, rows: NDArray[Any], draws: int) -> dict[str, list[float]]:
    """The correlations within groups of people drawn again, within groups."""
    random = np.random.default_rng(0)
    groups = np.asarray(cohort.table["group"])[rows]
    members = [np.flatnonzero(groups == group) for group in GROUPS]
    drawn: dict[str, list[float]] = {name: [] for name in CONFOUNDS}
    for _ in range(draws):
        chosen = np.concatenate([random.choice(each, len(each)) for each in members if len(each)])
        for name, value in within_groups(scores[chosen], cohort, rows[chosen]).items():
            drawn[name].append(value)
    return drawn
