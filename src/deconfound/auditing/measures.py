"""Everything that is measured about one confound in one set of outputs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deconfound.metrics.columns import Column
from deconfound.metrics.conditional import SMALLEST_GROUP, partial_distance_correlation
from deconfound.metrics.confounder_tests import full_confounder_test, partial_confounder_test
from deconfound.metrics.distance_tests import dcor_test
from deconfound.metrics.paper import paper_test
from deconfound.metrics.probes import probe
from deconfound.metrics.resampling import Estimate, Resampling

FOLDS = 5
# Below this a cross-validated probe is mostly noise.
FEWEST_FOR_PROBES = 25


@dataclass(frozen=True)
class Measured:
    """The rows to measure: `outputs (n, k)`, a confound without gaps, and codes of label group, person and fold."""

    outputs: Tensor
    confound: Column
    groups: Tensor
    units: Tensor
    folds: Tensor


def left_in(given: Measured, labels: Sequence[Column], resampling: Resampling, *, logits: bool) -> tuple[Estimate, ...]:
    """What is left of a confound in the outputs: distance correlations, probes and tests, in the order of a report.

    Args:
        given: the rows.
        labels: the label columns at these rows; with none, everything is marginal.
        resampling: permutations and bootstrap samples; probes take a tenth of the permutations, at least 39.
        logits: whether the paper's per-logit measure makes sense.
    """
    n = len(given.outputs)
    if n < SMALLEST_GROUP or len(torch.unique(given.confound.values)) < 2:
        return (Estimate("dcor_sqr", float("nan"), n),)
    outputs, encoded = given.outputs, _scaled(given.confound)
    found = []
    if labels:
        cells = given.folds * (int(given.groups.max()) + 1) + given.groups
        found.append(dcor_test(outputs, encoded, cells, given.units, resampling, "within_group_dcor_sqr"))
    found.append(dcor_test(outputs, encoded, given.folds, given.units, resampling))
    people = _people(given, labels)
    if labels:
        condition = torch.cat([_scaled(label) for label in people[2]], dim=1)
        value = partial_distance_correlation(people[0], _scaled(people[1]), condition)
        found.append(Estimate("partial_dcor", float(value), len(people[0])))
    if logits:
        found.append(paper_test(outputs, given.confound, given.folds, given.units, resampling))
    if len(people[0]) >= FEWEST_FOR_PROBES:
        fewer = replace(resampling, permutations=max(39, resampling.permutations // 10))
        scores = _standardised_within(outputs, given.folds)
        for kind in ("linear", "nonlinear"):
            found.append(
                probe(
                    scores,
                    given.confound,
                    kind,
                    groups=given.groups,
                    units=given.units,
                    folds=FOLDS,
                    resampling=fewer,
                )
            )
    if labels and _testable(labels):
        found.append(partial_confounder_test(*people, resampling))
        found.append(full_confounder_test(*people, resampling))
    return tuple(found)


def _scaled(column: Column) -> Tensor:
    """The encoded column, a quantity in units of its sd so that it weighs like a 0/1 column."""
    if column.kind != "numeric":
        return column.encoded
    return column.encoded / column.values.std().clamp_min(1e-300)


def _testable(labels: Sequence[Column]) -> bool:
    return len(labels) == 1 or all(label.kind != "numeric" for label in labels)


def _people(given: Measured, labels: Sequence[Column]) -> tuple[Tensor, Column, list[Column]]:
    """One row per person (tests of conditional independence need that): the mean output and the first of the rest."""
    scores = _standardised_within(given.outputs, given.folds)
    _, unit = torch.unique(given.units, return_inverse=True)
    count = int(unit.max()) + 1
    mean = torch.zeros(count, scores.shape[1], dtype=scores.dtype).index_add(0, unit, scores)
    mean = mean / torch.bincount(unit)[:, None]
    first = torch.full((count,), len(unit)).scatter_reduce(0, unit, torch.arange(len(unit)), "amin")
    return mean, given.confound.take(first), [label.take(first) for label in labels]


def _standardised_within(outputs: Tensor, folds: Tensor) -> Tensor:
    """Outputs of different folds come from different models: each fold is brought to mean zero and sd one."""
    out = outputs.clone()
    if len(torch.unique(folds)) == 1:
        return out
    for fold in torch.unique(folds):
        rows = folds == fold
        part = outputs[rows]
        out[rows] = (part - part.mean(0)) / part.std(0).clamp_min(1e-12)
    return out
