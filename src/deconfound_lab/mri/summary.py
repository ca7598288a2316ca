"""From finished trainings to the experiment's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from deconfound.auditing import embed
from deconfound_lab.cohort.cohort import Cohort
from deconfound_lab.cohort.counting import paper_table_one, table_one
from deconfound_lab.cohort.truth import bayes_accuracy
from deconfound_lab.footing import Judged
from deconfound_lab.harness import Finished
from deconfound_lab.harness.estimates import Value, of_draws
from deconfound_lab.harness.provenance import distinct
from deconfound_lab.mri.measures import bootstrap, correlations, group_accuracies, standardised, within_groups
from deconfound_lab.mri.plan import ARMS, Plan
from deconfound_lab.mri.results import OURS, Cloud, Line, Results, Trial
from deconfound_lab.mri.training import CONFOUNDS, LABELS

SHOWN = ("baseline", "mdn", "pmdn-paper", OURS)
"""Arms of the t-SNE figure."""

SHOWN_BATCH = 80
_RANDOM_SCORES = 50
Training = tuple[int, int, str]
"""Batch size, fold, arm."""


def summarise(
    plan: Plan, cohort: Cohort, independent: Cohort, trained: Mapping[Training, Finished], failures: Mapping[str, str]
) -> Results:
    """Measure every arm at every batch size, as far as they are trained: on the cohort and on independent people."""
    sources = distinct(each.provenance for each in trained.values())
    lines = []
    for batch in plan.batch_sizes:
        for arm in plan.arms:
            found = {f: trained[batch, f, arm] for f in range(plan.folds) if (batch, f, arm) in trained}
            for judged, judgements in _judgements(found).items():
                trials = tuple(_trial(*each, cohort, independent, sources) for each in judgements.items())
                left = left_within([each.result for each in judgements.values()], cohort, plan.bootstraps)
                lines.append(Line(batch, arm, judged, trials, *left, 1 / (plan.folds - 1)))
    labels = np.stack([cohort.table[name] for name in LABELS], axis=1).astype(np.float64)
    tables = {"simulated": table_one(cohort.table), "paper": paper_table_one()}
    return Results(
        plan.to_dict(),
        cohort.fingerprint,
        {arm: asdict(ARMS[arm]) for arm in plan.arms},
        sources,
        failures,
        tuple(lines),
        correlations(labels, cohort, np.arange(len(cohort))),
        _chance(cohort, trained),
        bayes_accuracy(cohort.strengths),
        bayes_accuracy(cohort.strengths, confounds=True),
        {name: [asdict(line) for line in table] for name, table in tables.items()},
        _clouds(plan, cohort, trained),
    )


def _judgements(found: Mapping[int, Finished]) -> dict[Judged, dict[int, Finished]]:
    """The folds' trainings as they are refitted and as they were trained; once where there is nothing to refit."""
    both = {fold: each for fold, each in found.items() if "logits as trained" in each.result}
    if not both:
        return {"as trained": dict(found)} if found else {}

    def before(each: Finished) -> Finished:
        own = each.result
        as_trained = {"logits": own["logits as trained"], "independent": own["independent as trained"]}
        return replace(each, result={**own, **as_trained})

    return {"as trained": {fold: before(each) for fold, each in both.items()}, "refitted": both}


def _trial(
    fold: int, training: Finished, cohort: Cohort, independent: Cohort, sources: Sequence[Mapping[str, Any]]
) -> Trial:
    result = training.result
    return Trial(
        fold,
        correlations(result["logits"], cohort, result["rows"]),
        within_groups(result["logits"], cohort, result["rows"]),
        group_accuracies(result["logits"], cohort, result["rows"]),
        float(np.mean([*group_accuracies(result["independent"], independent, np.arange(len(independent))).values()])),
        result["best"],
        result["validation"],
        result["seconds"],
        sources.index(training.provenance),
    )


def left_within(
    results: Sequence[Mapping[str, Any]], cohort: Cohort, bootstraps: int
) -> tuple[dict[str, Value], Value]:
    """Each correlation within groups over the test people of all folds, and the mean of the three."""
    rows = np.concatenate([each["rows"] for each in results])
    # Folds are trained apart: their scores are brought to one scale before people of all folds are looked at together.
    scores = np.concatenate([standardised(each["logits"]) for each in results])
    within, draws = within_groups(scores, cohort, rows), bootstrap(scores, cohort, rows, bootstraps)
    each = {name: of_draws(within[name], draws[name], centred=True) for name in CONFOUNDS}
    mean = of_draws(float(np.mean(list(within.values()))), np.mean(list(draws.values()), axis=0), centred=True)
    return each, mean


def _chance(cohort: Cohort, trained: Mapping[Training, Finished]) -> dict[str, float]:
    """The correlations within groups of random scores, of as many people as the most complete line has."""
    by_line: dict[tuple[int, str], list[Any]] = {}
    for (batch, _, arm), each in trained.items():
        by_line.setdefault((batch, arm), []).append(each.result["rows"])
    rows = np.concatenate(max(by_line.values(), key=len))
    random = np.random.default_rng(0)
    noise = [within_groups(random.standard_normal((len(rows), 2)), cohort, rows) for _ in range(_RANDOM_SCORES)]
    return {name: float(np.mean([each[name] for each in noise])) for name in CONFOUNDS}


def _clouds(plan: Plan, cohort: Cohort, trained: Mapping[Training, Finished]) -> tuple[Cloud, ...]:
    """Of the batch size and fold that most of the shown arms have; the paper's batch of 80 if it is among them."""
    arms = [name for name in SHOWN if name in plan.arms]
    places = dict.fromkeys((batch, fold) for batch, fold, _ in trained)
    batch, fold = max(places, key=lambda at: (sum((*at, arm) in trained for arm in arms), at[0] == SHOWN_BATCH, -at[1]))
    clouds = []
    for arm in arms:
        if (batch, fold, arm) in trained:
            result = trained[batch, fold, arm].result
            found = embed(arm, result["features"].astype(np.float64), np.arange(len(result["rows"])))
            levels = {name: np.asarray(cohort.table[name])[result["rows"]].tolist() for name in ("site", "sex")}
            clouds.append(Cloud(arm, batch, fold, found.method, found.x, found.y, levels))
    return tuple(clouds)
