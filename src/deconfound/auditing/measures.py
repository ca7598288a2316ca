"""Everything that is measured about one confound in one set of outputs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deconfound.auditing.verdicts import PROBE_LEVEL
from deconfound.metrics.columns import Column
from deconfound.metrics.conditional import SMALLEST_GROUP, partial_distance_correlation
from deconfound.metrics.confounder_tests import full_confounder_test, partial_confounder_test
from deconfound.metrics.distance_tests import Draws, dcor_draws, dcor_test
from deconfound.metrics.paper import paper_test
from deconfound.metrics.probes import probe
from deconfound.metrics.resampling import Estimate, Resampling
from deconfound.metrics.residual_tests import residual_draws, residuals

FOLDS = 5
# Below this a cross-validated probe is mostly noise.
FEWEST_FOR_PROBES = 25
# Folds whose means vary by so much more than by chance are not drawn by chance.
FOLDS_DIFFER = 3.0
# With fewer permutations no p-value is as small as a probe that decides alone needs.
FEWEST_OF_A_PROBE = round(1 / PROBE_LEVEL) - 1


@dataclass(frozen=True)
class Measured:
    """The rows to measure: `outputs (n, k)`, a confound without gaps, and codes of label group, person and fold."""

    outputs: Tensor
    confound: Column
    groups: Tensor
    units: Tensor
    folds: Tensor


@dataclass(frozen=True)
class Left:
    """The numbers of one confound, the one that decides first, and its bootstrap replicates."""

    estimates: tuple[Estimate, ...]
    replicates: Tensor


def left_in(given: Measured, labels: Sequence[Column], resampling: Resampling, *, logits: bool) -> Left:
    """What is left of a confound in the outputs: distance correlations, probes and tests, in the order of a report.

    Without labels everything is marginal. Probes take a tenth of the permutations, at least 99. `logits`: whether the
    paper's per-logit measure makes sense.
    """
    n = len(given.outputs)
    labels = [*labels, *fold_labels(given, labels)]
    if n < SMALLEST_GROUP or len(torch.unique(given.confound.values)) < 2:
        return Left((Estimate("dcor_sqr", float("nan"), n),), torch.zeros(0))
    encoded, units = scaled(given.confound), _several(given.units)
    pooled = standardised_within(given.outputs, given.folds)
    main, draws = _main(given, labels, resampling, pooled, encoded, units)
    found = [main]
    marginal = dcor_test(given.outputs, encoded, given.folds, units, resampling) if labels else main
    if labels:
        found.append(marginal)
        condition = torch.cat([scaled(label) for label in labels], dim=1)
        found.append(Estimate("partial_dcor", float(partial_distance_correlation(pooled, encoded, condition)), n))
    if logits and given.confound.kind == "categorical" and given.outputs.shape[1] == 1:
        found.append(replace(marginal, statistic="paper_dcor_sqr"))
    elif logits:
        found.append(paper_test(given.outputs, given.confound, given.folds, units, resampling))
    found += _probes(given, labels, resampling, pooled, encoded)
    if labels:
        found.append(partial_confounder_test(pooled, given.confound, labels, resampling, units))
        found.append(full_confounder_test(pooled, given.confound, labels, resampling, units))
    return Left(tuple(found), draws.replicates)


def fold_labels(given: Measured, labels: Sequence[Column]) -> list[Column]:
    """The fold as one more label, where folds differ in a numeric label or in the confound.

    Outputs are brought to one mean in every fold. A curve in the label over all folds then has an offset in each whose
    labels lie higher, and a confound that differs by fold goes with it, however innocent the model: as when one
    site at a time is left out. Within folds there is no such offset.
    """
    numeric = [label.values for label in labels if label.kind == "numeric"]
    found = torch.unique(given.folds)
    if not numeric or len(found) == 1:
        return []
    columns = torch.cat([torch.stack(numeric, dim=1), scaled(given.confound)], dim=1)
    if not bool((variance_ratio(columns, given.folds) > FOLDS_DIFFER).any()):
        return []
    codes = torch.searchsorted(found, given.folds).double()
    levels = tuple(str(int(fold)) for fold in found)
    return [Column("fold", "binary" if len(found) == 2 else "categorical", codes, levels)]


def variance_ratio(columns: Tensor, folds: Tensor) -> Tensor:
    """F of an analysis of variance of each column, `(n, k)`, by fold: 1 on average where folds are drawn by chance."""
    found = torch.unique(folds)
    centred = columns - columns.mean(0)
    between = torch.zeros(columns.shape[1], dtype=columns.dtype)
    for fold in found:
        part = centred[folds == fold]
        between += len(part) * part.mean(0).square()
    within = (centred.square().sum(0) - between).clamp_min(1e-300)
    return (between / (len(found) - 1)) / (within / max(1, len(columns) - len(found)))


def _main(
    given: Measured,
    labels: Sequence[Column],
    resampling: Resampling,
    pooled: Tensor,
    encoded: Tensor,
    units: Tensor | None,
) -> tuple[Estimate, Draws]:
    """The number that decides, with what its difference to another model is made of."""
    statistic, stuck = main_statistic(labels), False
    if statistic == "residual_dcor_sqr":
        draws = residual_draws(pooled, encoded, labels, units, resampling)
    else:
        cells = given.folds * (int(given.groups.max()) + 1) + given.groups if labels else given.folds
        draws = dcor_draws(given.outputs, encoded, cells, units, resampling)
        stuck = _one_odd_row(given.confound.values, cells)
    if not draws.movable or stuck:  # the confound does not vary where it is compared: a zero would be no measurement
        nothing = Estimate(statistic, float("nan"), draws.n, movable=draws.movable)
        return nothing, replace(draws, replicates=torch.zeros(0))
    return draws.estimate(statistic), draws


def _one_odd_row(values: Tensor, cells: Tensor) -> bool:
    """Whether every cell has at most one row that differs from all others: its bias-corrected dcor² is always zero."""
    return all(
        len(part) - int(torch.unique(part, return_counts=True)[1].max()) < 2
        for part in (values[cells == cell] for cell in torch.unique(cells))
    )


def main_statistic(labels: Sequence[Column]) -> str:
    """The number that decides: beyond numeric labels, within label groups, or over all rows without a label."""
    if any(label.kind == "numeric" for label in labels):
        return "residual_dcor_sqr"
    return "within_group_dcor_sqr" if labels else "dcor_sqr"


def _probes(
    given: Measured, labels: Sequence[Column], resampling: Resampling, pooled: Tensor, encoded: Tensor
) -> list[Estimate]:
    """Probes of the outputs; beyond a numeric label, of what its curve leaves of them."""
    confound, groups, units = given.confound, given.groups, given.units
    if any(label.kind == "numeric" for label in labels):
        left = residuals(pooled, encoded, labels, units)
        pooled, groups, units, confound = left.x, left.strata, units[left.rows], confound.take(left.rows)
        if confound.kind == "numeric":
            confound = replace(confound, values=left.y[:, 0])
    if len(torch.unique(units)) < FEWEST_FOR_PROBES:
        return []
    fewer = replace(resampling, permutations=max(FEWEST_OF_A_PROBE, resampling.permutations // 10))
    return [
        probe(pooled, confound, kind, groups=groups, units=units, folds=FOLDS, resampling=fewer)
        for kind in ("linear", "nonlinear")
    ]


def _several(units: Tensor) -> Tensor | None:
    return None if len(torch.unique(units)) == len(units) else units


def scaled(column: Column) -> Tensor:
    """The encoded column, a number in units of its sd so that it weighs like a 0/1 column."""
    if column.kind != "numeric":
        return column.encoded
    return column.encoded / column.values.std().clamp_min(1e-300)


def standardised_within(outputs: Tensor, folds: Tensor) -> Tensor:
    """Outputs of different folds come from different models: each fold is brought to mean zero and sd one."""
    out, found = outputs.clone(), torch.unique(folds)
    if len(found) == 1:
        return out
    for fold in found:
        rows = folds == fold
        part = outputs[rows]
        out[rows] = (part - part.mean(0)) / part.std(0).clamp_min(1e-12)
    return out
