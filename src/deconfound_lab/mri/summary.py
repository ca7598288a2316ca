"""From finished trainings to the experiment's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from deconfound.auditing.embedding import embed
from deconfound_lab.cohort.cohort import Cohort
from deconfound_lab.cohort.counting import paper_table_one, table_one
from deconfound_lab.cohort.truth import bayes_accuracy
from deconfound_lab.mri.fold import CONFOUNDS, LABELS, Outcome
from deconfound_lab.mri.measures import correlations, drawn_again, group_accuracy, standardised, within_groups
from deconfound_lab.mri.plan import Plan
from deconfound_lab.mri.results import OURS, Cloud, Line, Results, Trial, around
from deconfound_lab.mri.store import Cell, Kept, definition

SHOWN = ("baseline", "mdn", OURS)
"""Arms of the t-SNE figure."""

SHOWN_BATCH = 80
_RANDOM_SCORES = 50


def summarise(
    plan: Plan, cohort: Cohort, independent: Cohort, kept: Mapping[Cell, Kept], failures: Mapping[str, str]
) -> Results:
    """Measure every arm at every batch size, as far as they are trained.

    Args:
        plan: What was to be trained.
        cohort: Whose people were tested.
        independent: The people in whom labels are independent of the confounds.
        kept: The finished trainings, at least one.
        failures: The failed ones.
    """
    sources: list[Mapping[str, Any]] = []
    for each in kept.values():
        if each.provenance not in sources:
            sources.append(each.provenance)
    lines = []
    for batch in plan.batch_sizes:
        for arm in plan.arms:
            found = {fold: kept[batch, fold, arm] for fold in range(plan.run_folds) if (batch, fold, arm) in kept}
            if found:
                lines.append(_line(plan, (batch, arm), cohort, independent, found, sources))
    labels = np.stack([cohort.table[name] for name in LABELS], axis=1).astype(np.float64)
    tables = {"simulated": table_one(cohort.table), "paper": paper_table_one()}
    return Results(
        plan.to_dict(),
        cohort.fingerprint,
        {arm: definition(arm) for arm in plan.arms},
        sources,
        failures,
        tuple(lines),
        correlations(labels, cohort, np.arange(len(cohort))),
        _chance(cohort, kept),
        bayes_accuracy(cohort.strengths),
        bayes_accuracy(cohort.strengths, confounds=True),
        {name: [asdict(line) for line in table] for name, table in tables.items()},
        _clouds(plan, cohort, kept),
    )


def _line(
    plan: Plan,
    key: tuple[int, str],
    cohort: Cohort,
    independent: Cohort,
    found: Mapping[int, Kept],
    sources: list[Mapping[str, Any]],
) -> Line:
    outcomes = [each.outcome for each in found.values()]
    trials = tuple(
        _trial(fold, each.outcome, cohort, independent, sources.index(each.provenance)) for fold, each in found.items()
    )
    rows = np.concatenate([each.rows for each in outcomes])
    # Folds are trained apart: their scores are brought to one scale before people of all folds are looked at together.
    scores = np.concatenate([standardised(each.logits) for each in outcomes])
    within = within_groups(scores, cohort, rows)
    draws = drawn_again(scores, cohort, rows, plan.bootstraps)
    return Line(
        *key,
        trials,
        {name: around(within[name], draws[name].tolist()) for name in CONFOUNDS},
        around(float(np.mean(list(within.values()))), np.mean(list(draws.values()), axis=0).tolist()),
        1 / (plan.folds - 1),
    )


def _trial(fold: int, outcome: Outcome, cohort: Cohort, independent: Cohort, source: int) -> Trial:
    return Trial(
        fold,
        correlations(outcome.logits, cohort, outcome.rows),
        within_groups(outcome.logits, cohort, outcome.rows),
        group_accuracy(outcome.logits, cohort, outcome.rows),
        group_accuracy(outcome.independent, independent, np.arange(len(independent))),
        outcome.best,
        outcome.seconds,
        source,
    )


def _chance(cohort: Cohort, kept: Mapping[Cell, Kept]) -> dict[str, float]:
    """The correlations within groups of random scores, of as many people as the most complete line has."""
    by_line: dict[tuple[int, str], list[Any]] = {}
    for (batch, _, arm), each in kept.items():
        by_line.setdefault((batch, arm), []).append(each.outcome.rows)
    rows = np.concatenate(max(by_line.values(), key=len))
    random = np.random.default_rng(0)
    noise = [within_groups(random.standard_normal((len(rows), 2)), cohort, rows) for _ in range(_RANDOM_SCORES)]
    return {name: float(np.mean([each[name] for each in noise])) for name in CONFOUNDS}


def _clouds(plan: Plan, cohort: Cohort, kept: Mapping[Cell, Kept]) -> tuple[Cloud, ...]:
    """Of the batch size and fold that most of the shown arms have; the paper's batch of 80 if it is among them."""
    arms = [name for name in SHOWN if name in plan.arms]
    places = dict.fromkeys((batch, fold) for batch, fold, _ in kept)
    batch, fold = max(places, key=lambda at: (sum((*at, arm) in kept for arm in arms), at[0] == SHOWN_BATCH, -at[1]))
    clouds = []
    for arm in arms:
        if (batch, fold, arm) in kept:
            outcome = kept[batch, fold, arm].outcome
            found = embed(arm, outcome.features.astype(np.float64), np.arange(len(outcome.rows)))
            levels = {name: np.asarray(cohort.table[name])[outcome.rows].tolist() for name in ("site", "sex")}
            clouds.append(Cloud(arm, batch, fold, found.method, found.x, found.y, levels))
    return tuple(clouds)
