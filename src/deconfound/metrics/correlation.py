"""Correlations between columns of every type, and the paper's rules for what is left in the logits."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deconfound.errors import ShapeError
from deconfound.metrics.checks import matrix, samples, tensor
from deconfound.metrics.columns import Column
from deconfound.metrics.distance import u_distance_correlation_sqr

if TYPE_CHECKING:
    from deconfound.metrics.checks import Samples


@dataclass(frozen=True)
class Association:
    """How strongly two columns go together, and by which measure."""

    statistic: str
    value: float


def pearson(x: "Samples", y: "Samples") -> Tensor:
    """Pearson's correlation of each column of `x (n,) or (n, d)` with `y (n,)`; 0 where one is constant."""
    x = tensor(x, "x")
    one_column = x.ndim == 1
    x, y = samples(x, y, at_least=2)
    if y.shape[1] != 1:
        raise ShapeError(f"y must be one column; got {y.shape[1]}. Call pearson once for each.")
    a, b = unit_length(x), unit_length(y)
    value = (a * b).sum(0).to(x.dtype)
    return value[0] if one_column else value


def point_biserial(x: "Samples", two_levels: "Samples") -> Tensor:
    """Correlation of each column of `x` with being in the higher level: `(m₁ - m₀) sqrt(p₀ p₁) / sd`."""
    two_levels = tensor(two_levels, "two_levels")
    levels = torch.unique(two_levels)
    if len(levels) > 2:
        raise ShapeError(f"two_levels must hold two distinct values; got {len(levels)}. Use correlation_ratio.")
    return pearson(x, (two_levels == levels[-1:]).double())


def correlation_ratio(x: "Samples", levels: "Samples") -> Tensor:
    """η: the share of sd of each column of `x` that lies between levels, `sqrt(SS_between / SS_total)`."""
    x = tensor(x, "x")
    one_column = x.ndim == 1
    codes = torch.unique(tensor(levels, "levels"), return_inverse=True)[1]
    x = samples(x, codes, at_least=2)[0]
    counts = torch.bincount(codes)[:, None]
    sums = x.new_zeros(len(counts), x.shape[1], dtype=torch.float64).index_add(0, codes, unit_length(x))
    between = (sums.square() / counts).sum(0)
    value: Tensor = between.clamp(0, 1).sqrt().to(x.dtype)
    return value[0] if one_column else value


def cramers_v(first: "Samples", second: "Samples") -> Tensor:
    """Cramér's V of two categories, `sqrt(χ² / (n (min(levels) - 1)))`; 0 where one has a single level."""
    first, second = tensor(first, "first"), tensor(second, "second")
    samples(first, second, at_least=1)
    a, b = (torch.unique(side, return_inverse=True)[1] for side in (first, second))
    rows, columns = int(a.max()) + 1, int(b.max()) + 1
    if min(rows, columns) == 1:
        return torch.zeros((), dtype=torch.float64, device=a.device)
    table = torch.bincount(a * columns + b, minlength=rows * columns).double().view(rows, columns)
    expected = table.sum(1, keepdim=True) * table.sum(0) / table.sum()
    chi_sqr = ((table - expected).square() / expected).sum()
    return (chi_sqr / (table.sum() * (min(rows, columns) - 1))).sqrt()


def unit_length(x: Tensor) -> Tensor:
    """Columns with mean zero and length one, in float64; a constant column becomes zero."""
    centred = x.double() - x[:1].double()
    centred = centred / centred.abs().amax(0).clamp_min(1e-300)
    centred = centred - centred.mean(0)
    length = centred.norm(dim=0)
    return torch.where(length > 1e-14 * len(x) ** 0.5, centred / length.clamp_min(1e-300), 0)


def association(first: Column, second: Column) -> Association:
    """The measure that fits the types of two columns, over the rows where both have a value.

    Two numeric columns: |Pearson|. A numeric column and two levels: |point-biserial|. A numeric column and more
    levels: the correlation ratio. Two categories: Cramér's V. All lie in [0, 1]; NaN below two such rows.
    """
    both = first.present & second.present
    first, second = first.take(both), second.take(both)
    if first.kind != "numeric":
        first, second = second, first
    a, b = first.values, second.values
    measure: Callable[[Tensor, Tensor], Tensor]
    if first.kind != "numeric":
        name, measure = "cramers_v", cramers_v
    elif second.kind == "numeric":
        name, measure = "abs_pearson", pearson
    elif second.kind == "binary":
        name, measure = "abs_point_biserial", point_biserial
    else:
        name, measure = "correlation_ratio", correlation_ratio
    return Association(name, abs(float(measure(a, b))) if len(a) > 1 else float("nan"))


def paper_association(outputs: "Samples", confound: Column, folds: "Samples | None" = None) -> Association:
    """The paper's measure of a confound in the outputs `(n,) or (n, k)`, chosen by the confound's type.

    A numeric confound: |Pearson| averaged over the k logits. Two levels: |point-biserial| averaged over them. More
    levels: the bias-corrected dcor² of the one-hot levels with each logit, averaged. With `folds (n,)` each
    is taken within a fold and the folds are averaged.
    """
    name = {"numeric": "abs_pearson", "binary": "abs_point_biserial", "categorical": "dcor_sqr"}[confound.kind]
    outputs = matrix(outputs, "outputs")
    folds = torch.zeros(len(outputs)) if folds is None else tensor(folds, "folds")
    for what, given in (("confound", confound.values), ("folds", folds)):
        if len(given) != len(outputs):
            raise ShapeError(f"{what} must have one value per row of outputs; got {len(given)} for {len(outputs)}.")
    values = []
    for fold in torch.unique(folds):
        rows = (folds == fold) & confound.present
        x, part = outputs[rows], confound.take(rows)
        if confound.kind == "categorical":
            each = [u_distance_correlation_sqr(logit, part.encoded) for logit in x.T]
            values.append(torch.stack(each).mean())
        else:
            values.append(pearson(x, part.values).abs().mean())
    return Association(name, float(torch.stack(values).mean()))
