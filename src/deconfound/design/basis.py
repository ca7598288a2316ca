"""How a term becomes standardised columns: curves, products, and their mean and sd on the training rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from deconfound.design.codecs import Codec, Coded, LevelCodec, NumericCodec, weighted_moments
from deconfound.design.terms import Interaction, Linear, Polynomial, Spline, Term, from_data, sources, to_data
from deconfound.errors import Fault, TableError

_LISTS = ("labels", "mean", "sd", "unit", "knots")


class TooFarError(TableError):
    """A value is so far from the training rows that its standardised form overflows."""

    def __init__(self, term: FittedTerm, row: int, column: int) -> None:
        name = term.labels[column]
        text = f"{name} must be near the training rows; got a value in row {row} too far away to be standardised."
        super().__init__(Fault("not finite", name, text, rows=(row,), advice="Correct it or leave the row out."))
        self.place = term, row, column


@dataclass(frozen=True)
class FittedTerm:
    """A term with all that the training rows taught it.

    `unit[j]` turns a coefficient per standardised column into one per unit of the user's own column:
    divide by it.
    """

    term: Term
    labels: tuple[str, ...]
    mean: tuple[float, ...]
    sd: tuple[float, ...]
    unit: tuple[float, ...]
    knots: tuple[float, ...] = ()
    factors: tuple[FittedTerm, ...] = ()

    def standardise(
        self, coded: Mapping[str, Coded], fill: float = np.nan, dtype: DTypeLike = np.float64
    ) -> NDArray[Any]:
        """`(n, k)`: the term's columns, centred and scaled; `fill` where a source has no value."""
        raw, index = _raw(self.term, self.knots, self.factors, coded)
        if index is None:
            return self._scaled(raw, fill, dtype)
        key = (str(fill), np.dtype(dtype).str)
        if key not in self._of_levels:  # the levels of a column do not change with the rows
            self._of_levels[key] = self._scaled(raw, fill, dtype)
        return self._of_levels[key][index]

    def _scaled(self, raw: NDArray[np.float64], fill: float, dtype: DTypeLike) -> NDArray[Any]:
        mean, sd = self._moments
        rows = ((raw - mean) / sd).astype(dtype)
        infinite = np.isinf(rows)
        if infinite.any():
            raise TooFarError(self, *(int(place) for place in np.argwhere(infinite)[0]))
        return np.where(np.isnan(rows), np.array(fill, dtype), rows)

    @cached_property
    def _of_levels(self) -> dict[tuple[str, str], NDArray[Any]]:
        return {}

    @cached_property
    def _moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return np.array(self.mean), np.array(self.sd)


def fit_term(
    term: Term, codecs: Mapping[str, Codec], coded: Mapping[str, Coded], weight: NDArray[np.float64]
) -> FittedTerm:
    """Learn a term's knots from the coded training columns, and its means and scales under the weights `(n,)`."""
    factors: tuple[FittedTerm, ...] = ()
    knots: tuple[float, ...] = ()
    if isinstance(term, Interaction):
        factors = tuple(fit_term(factor, codecs, coded, weight) for factor in term.factors)
    elif isinstance(term, Spline):
        knots = _knots(term, codecs, coded)
    elif isinstance(term, Polynomial):
        _require_numeric(term, codecs)
    raw, index = _raw(term, knots, factors, coded)
    raw = raw if index is None else raw[index]
    mean, sd = weighted_moments(raw, weight)
    sd[sd < 1e-12] = 1.0
    unit = sd * _units(term, codecs, factors)
    if np.isinf(raw).any() or not np.isfinite(unit).all() or not unit.all():
        name = sources(term)[0]
        text = f"{term} must have values and powers within the range of numbers; got {name!r}, which leaves it."
        raise TableError(Fault("not finite", name, text, advice="Change its units, correct it, or use a lower power."))
    labels = _labels(term, codecs, factors)
    return FittedTerm(term, labels, tuple(mean.tolist()), tuple(sd.tolist()), tuple(unit.tolist()), knots, factors)


def _raw(
    term: Term, knots: tuple[float, ...], factors: tuple[FittedTerm, ...], coded: Mapping[str, Coded]
) -> tuple[NDArray[np.float64], NDArray[np.intp] | None]:
    """The term's distinct rows before centring, and which of them each row of the table has."""
    match term:
        case Linear(column):
            return coded[column].distinct, coded[column].index
        case Polynomial(column, degree):
            return coded[column].spread() ** np.arange(1, degree + 1), None
        case Spline(column):
            return _natural_cubic(coded[column].spread(), np.array(knots)), None
    crossed = factors[0].standardise(coded)
    for factor in factors[1:]:
        columns = factor.standardise(coded)
        crossed = (crossed[:, :, None] * columns[:, None, :]).reshape(len(crossed), -1)
    return crossed, None


def _natural_cubic(x: NDArray[np.float64], knots: NDArray[np.float64]) -> NDArray[np.float64]:
    """The column itself and k − 2 curves, cubic between k knots and straight beyond the outermost two.

    Beyond the last knot a curve goes on along its slope there, instead of as the difference of huge cubes.
    """
    last, before = knots[-1], knots[-2]
    inside = np.minimum(x, last)

    def cubed(knot: float) -> NDArray[np.float64]:
        beyond: NDArray[np.float64] = np.clip(inside - knot, 0.0, None) ** 3
        return beyond

    curves = [
        cubed(knot)
        - cubed(before) * (last - knot) / (last - before)
        + 3 * (last - knot) * (before - knot) * (x - inside)
        for knot in knots[:-2]
    ]
    return np.concatenate([x, *(curve / (last - knots[0]) ** 2 for curve in curves)], axis=1)


def _knots(term: Spline, codecs: Mapping[str, Codec], coded: Mapping[str, Coded]) -> tuple[float, ...]:
    _require_numeric(term, codecs)
    x = coded[term.column].spread()[:, 0]
    x = x[~np.isnan(x)]
    levels = np.linspace(0.05, 0.95, term.df + 1)
    knots = np.quantile(x, levels)
    if len(np.unique(knots)) < len(knots):
        knots = np.quantile(np.unique(x), levels)
    if len(np.unique(x)) < term.df + 1:
        text = f"{term} must have at least {term.df + 1} distinct values in column {term.column!r}; "
        text += f"got {len(np.unique(x))}."
        raise TableError(Fault("too few", term.column, text, advice="Use a smaller df, or the plain column."))
    return tuple(float(knot) for knot in knots)


def _require_numeric(term: Polynomial | Spline, codecs: Mapping[str, Codec]) -> None:
    codec = codecs[term.column]
    if not isinstance(codec, NumericCodec):
        text = f"{term} must stand on a numeric column; got {term.column!r}, which is {codec.kind}."
        raise TableError(Fault("type", term.column, text))


def _units(term: Term, codecs: Mapping[str, Codec], factors: tuple[FittedTerm, ...]) -> NDArray[np.float64]:
    """How many of the user's units one unit of each raw column is."""
    if isinstance(term, Interaction):
        units = np.array(factors[0].unit)
        for factor in factors[1:]:
            units = np.outer(units, factor.unit).ravel()
        return units
    codec = codecs[term.column]
    if not isinstance(codec, NumericCodec):
        return np.ones(len(codec.labels))
    if isinstance(term, Polynomial):
        return codec.sd ** np.arange(1.0, term.degree + 1)
    if isinstance(term, Spline):
        return np.array([codec.sd, *[1.0] * (term.df - 1)])
    return np.array([codec.sd])


def shown_labels(fitted: FittedTerm, codecs: Mapping[str, Codec]) -> tuple[str, ...]:
    """The names of a term's columns as they are shown; `labels` are those that a saved design has."""
    codec = codecs[fitted.term.column] if isinstance(fitted.term, Linear) else None
    if isinstance(codec, LevelCodec):
        return codec.shown_labels
    if not fitted.factors:
        return fitted.labels
    return tuple(":".join(names) for names in product(*(shown_labels(factor, codecs) for factor in fitted.factors)))


def _labels(term: Term, codecs: Mapping[str, Codec], factors: tuple[FittedTerm, ...]) -> tuple[str, ...]:
    match term:
        case Linear(column):
            return codecs[column].labels
        case Polynomial(column, degree):
            return (column, *(f"{column}^{power}" for power in range(2, degree + 1)))
        case Spline(column, df):
            return (column, *(f"spline({column})[{number}]" for number in range(2, df + 1)))
    names: tuple[str, ...] = factors[0].labels
    for factor in factors[1:]:
        names = tuple(f"{left}:{right}" for left in names for right in factor.labels)
    return names


def fitted_to_data(fitted: FittedTerm) -> dict[str, Any]:
    """A fitted term as JSON-safe data."""
    lists = {name: list(getattr(fitted, name)) for name in _LISTS}
    return {"term": to_data(fitted.term), **lists, "factors": [fitted_to_data(factor) for factor in fitted.factors]}


def fitted_from_data(data: dict[str, Any]) -> FittedTerm:
    """The fitted term that `fitted_to_data` wrote."""
    factors = tuple(fitted_from_data(factor) for factor in data["factors"])
    lists: dict[str, tuple[Any, ...]] = {name: tuple(data[name]) for name in _LISTS}
    return FittedTerm(from_data(data["term"]), **lists, factors=factors)
