"""How columns of a table become columns of the design.

There are two steps. A *coding* turns one column of the table into standard scores or level codes.
A *fitted term* turns the codes of its columns into raw columns of the design (products, curves,
one 0/1 column per level), which it centres and scales with the training rows' mean and sd.

Raw columns are sparse, so that time and memory grow with the rows and not with rows × levels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import product
from math import prod
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from deconfound.design.terms import Spline, Term, factors_of, source_columns
from deconfound.errors import TableError, nearest_names
from deconfound.table import Note, format_rows, is_missing, level_text, to_levels, to_numbers

Array = NDArray[np.float64]
Codes: TypeAlias = NDArray[Any]

UNKNOWN = -1
# Rounding gives a constant column a tiny sd instead of zero.
_CONSTANT = 1e-12
_HOW_TO_ENCODE = (
    "Leave out these rows, or write unseen='mean' to treat them as the mean of the training rows."
)


@dataclass(frozen=True)
class NumericCoding:
    """A numeric column: its weighted mean and sd (0 if constant) on the training rows."""

    mean: float
    sd: float

    @classmethod
    def fit(cls, values: pd.Series, weight: Array) -> NumericCoding:
        """Measure a column of numbers; NaN cells do not take part."""
        is_number = values.notna().to_numpy()
        numbers, share = values.to_numpy()[is_number], weight[is_number] / weight[is_number].sum()
        largest = float(np.abs(numbers).max()) or 1.0  # Squares of 1e200 have no double.
        mean = float(share @ (numbers / largest))
        sd = float(np.sqrt(share @ np.square(numbers / largest - mean)))
        return cls(mean * largest, 0.0 if sd <= _CONSTANT * abs(mean) else sd * largest)

    def read(self, values: pd.Series, name: str) -> Array:
        """Return the numbers of a raw column of any table, NaN where a cell is missing."""
        return to_numbers(values, name)

    def encode(self, numbers: NDArray[Any]) -> Codes:
        """Return standard scores, shape `(n,)`, NaN where the cell is missing."""
        centred: Array = numbers - self.mean
        # A constant column has no scale. Its scores are 0, also for another value in a new table.
        return centred / self.sd if self.sd else centred * 0.0

    def to_data(self) -> list[Any]:
        """Return JSON-safe data."""
        return [self.mean, self.sd]

    def __str__(self) -> str:
        return f"mean {self.mean:.4g}, sd {self.sd:.4g}"


@dataclass(frozen=True)
class LevelCoding:
    """A categorical column: its levels, the reference first, and the training rows of each."""

    levels: tuple[str, ...]
    counts: tuple[int, ...]

    @classmethod
    def fit(cls, values: pd.Series, weight: Array) -> LevelCoding:
        """Collect the levels of a column of categories, in the order of `read_table`."""
        counts = values.cat.remove_unused_categories().value_counts(sort=False)
        return cls(tuple(map(str, counts.index)), tuple(map(int, counts)))

    @cached_property
    def _codes(self) -> dict[str, int]:
        return {level: code for code, level in enumerate(self.levels)}

    def read(self, values: pd.Series, name: str) -> NDArray[np.object_]:
        """Return the level texts of a raw column of any table, None where a cell is missing."""
        levels = to_levels(values)
        # In a table of numbers "NA" is a missing cell. Here the training levels decide, because a
        # batch may hold a single person, of the site "NA".
        for row in np.flatnonzero(pd.isna(levels)):
            cell = values.iloc[row]
            if not is_missing(cell) and level_text(cell) in self._codes:
                levels[row] = level_text(cell)
        return levels

    def encode(self, levels: NDArray[Any]) -> Codes:
        """Return level codes, shape `(n,)`, -1 where the cell is missing or the level unseen."""
        codes = (self._codes.get(level, UNKNOWN) for level in levels.tolist())
        return np.fromiter(codes, np.intp, len(levels))

    def to_data(self) -> list[Any]:
        """Return JSON-safe data."""
        return [list(self.levels), list(self.counts)]

    def __str__(self) -> str:
        shown = zip(self.levels[:6], self.counts, strict=False)
        text = ", ".join(f"{level} {count:,}" for level, count in shown)
        more = f", … {len(self.levels):,} levels" if len(self.levels) > 6 else ""
        return f"{text}{more}; reference {self.levels[0]}"


Coding: TypeAlias = NumericCoding | LevelCoding


@dataclass(frozen=True)
class CodedRows:
    """Some rows of a table: the coding of each column, and the code of each row in it."""

    codings: Mapping[str, Coding]
    codes: Mapping[str, Codes]

    def __len__(self) -> int:
        return len(next(iter(self.codes.values())))

    def is_unknown(self, term: Term) -> NDArray[np.bool_]:
        """Return the rows in which a column of the term is missing or unseen, shape `(n,)`."""
        columns = [is_unknown(self.codes[name]) for name in source_columns([term])]
        return np.asarray(np.logical_or.reduce(columns))


def is_unknown(codes: Codes) -> NDArray[np.bool_]:
    """Return which codes stand for a missing cell or an unseen level, shape `(n,)`."""
    return codes == UNKNOWN if codes.dtype.kind == "i" else np.isnan(codes)


def unknown_notes(name: str, values: NDArray[Any], codes: Codes, coding: Coding) -> list[Note]:
    """Return a note on the missing cells of a column, and one on each unseen level."""
    rows = np.flatnonzero(is_unknown(codes))
    if not len(rows):
        return []
    if isinstance(coding, NumericCoding):
        return [missing_note(name, rows)]
    rows_of_level: dict[str | None, list[int]] = {}
    for row in rows.tolist():
        rows_of_level.setdefault(values[row], []).append(row)
    notes = [missing_note(name, np.array(rows_of_level.pop(None)))] if None in rows_of_level else []
    for level, places in rows_of_level.items():
        text = (
            f"Column {name!r} has {level!r} in {format_rows(places)}, a level unseen in training."
        )
        fix = f"{nearest_names(str(level), coding.levels)} {_HOW_TO_ENCODE}"
        notes.append(Note("unseen", name, text, fix, tuple(places)))
    return notes


def missing_note(name: str, rows: NDArray[np.intp], is_label: bool = False) -> Note:
    """Return the note on the missing cells of a column."""
    places = tuple(rows.tolist())
    text = f"Column {name!r} must have a value in every row, and has none in {format_rows(places)}."
    fix = "Leave out these rows, or give them the weight 0." if is_label else _HOW_TO_ENCODE
    return Note("missing", name, text, fix, places)


@dataclass(frozen=True, eq=False)
class FittedTerm:
    """A term with the names and moments of its raw columns.

    Attributes:
        term: The term as the user wrote it.
        names: One name per column.
        mean: Weighted mean of each raw column on the training rows, shape `(k,)`.
        sd: Weighted sd of each raw column, 1 for a constant one.
        unit: Divide a coefficient per standardised column by it for one per unit of the user's
            column.
        knots: For each factor, the knots of its spline in standard scores; empty without a spline.
    """

    term: Term
    names: tuple[str, ...]
    mean: Array
    sd: Array
    unit: Array
    knots: tuple[Array, ...]

    @classmethod
    def fit(cls, term: Term, rows: CodedRows, weight: Array) -> FittedTerm:
        """Place the knots and measure the raw columns on the training rows."""
        knots = tuple(_place_knots(factor, rows, weight) for factor in factors_of(term))
        known_weight = np.where(rows.is_unknown(term), 0.0, weight)
        if not known_weight.any():
            raise TableError(f"No row has a value in each column of {term}. Leave the term out.")
        raw = _raw_columns(term, rows, knots)
        mean, sd = _measure(raw, known_weight / known_weight.sum())
        return cls.from_moments(term, rows.codings, mean, sd, knots)

    @classmethod
    def from_moments(
        cls,
        term: Term,
        codings: Mapping[str, Coding],
        mean: Array,
        sd: Array,
        knots: tuple[Array, ...],
    ) -> FittedTerm:
        """Build a term from its moments; names and units follow from the codings."""
        columns = [_name_columns(factor, codings) for factor in factors_of(term)]
        names = tuple(":".join(name for name, _ in parts) for parts in product(*columns))
        units = np.array([prod(unit for _, unit in parts) for parts in product(*columns)])
        knot_counts = [f.df + 1 if isinstance(f, Spline) else 0 for f in factors_of(term)]
        if not mean.shape == sd.shape == (len(names),) or [len(k) for k in knots] != knot_counts:
            raise ValueError(f"{term} has another number of columns or knots")
        if not (np.isfinite([*mean, *sd, *np.concatenate(knots)]).all() and (sd > 0).all()):
            raise ValueError(f"{term} has moments that are not finite or not positive")
        return cls(term, names, mean, sd, sd * units, knots)

    def encode(self, rows: CodedRows, fill: float) -> Array:
        """Return the standardised columns, shape `(n, k)`; unknown rows become `fill`."""
        columns: Array = (_raw_columns(self.term, rows, self.knots).toarray() - self.mean) / self.sd
        columns[rows.is_unknown(self.term)] = fill
        return columns

    def scaled_columns(self, rows: CodedRows) -> sparse.csr_array:
        """Return the raw columns over their sd, shape `(n, k)`; unknown rows have the mean."""
        unknown = rows.is_unknown(self.term)
        # Filled with the mean, unknown rows become 0 when the columns are centred.
        known = sparse.diags_array((~unknown).astype(np.float64))
        raw = known @ _raw_columns(self.term, rows, self.knots)
        if unknown.any():
            fill = sparse.csr_array(unknown[:, None].astype(np.float64)) @ self.mean[None, :]
            raw = raw + sparse.csr_array(fill)
        return sparse.csr_array(raw @ sparse.diags_array(1 / self.sd))


def _raw_columns(term: Term, rows: CodedRows, knots: tuple[Array, ...]) -> sparse.csr_array:
    """Return the columns of a term before scaling, shape `(n, k)`; 0 where a cell is unknown."""
    factors = zip(factors_of(term), knots, strict=True)
    return reduce(_multiply_rows, (_factor_columns(factor, rows, own) for factor, own in factors))


def _multiply_rows(left: sparse.csr_array, right: sparse.csr_array) -> sparse.csr_array:
    """Return every product of a column of `left` with a column of `right`, shape `(n, k l)`."""
    # Column by column of the left factor: the last factor's columns lie next to each other.
    columns = left.tocsc()
    blocks = [right.multiply(columns[:, [i]].toarray()) for i in range(left.shape[1])]
    return sparse.csr_array(sparse.hstack(blocks, format="csr")) if blocks else left


def _factor_columns(factor: str | Spline, rows: CodedRows, knots: Array) -> sparse.csr_array:
    """Return the curves of a spline, the 0/1 columns of levels, or the scores of a number."""
    if isinstance(factor, Spline):
        return sparse.csr_array(natural_spline(np.nan_to_num(rows.codes[factor.column]), knots))
    codes, coding = rows.codes[factor], rows.codings[factor]
    if isinstance(coding, NumericCoding):
        return sparse.csr_array(np.nan_to_num(codes)[:, None])
    # Code 0 is the reference level and has no column, so code 1 has column 0.
    has_column = np.flatnonzero(codes > 0)
    entries = np.ones(len(has_column)), (has_column, codes[has_column] - 1)
    return sparse.csr_array(entries, shape=(len(codes), len(coding.levels) - 1))


def _name_columns(factor: str | Spline, codings: Mapping[str, Coding]) -> list[tuple[str, float]]:
    """Return name and unit of each raw column of a factor; levels and curves have the unit 1."""
    name = factor.column if isinstance(factor, Spline) else factor
    coding = codings[name]
    if isinstance(coding, LevelCoding):
        return [(f"{name}[{level}]", 1.0) for level in coding.levels[1:]]
    curves = range(2, factor.df + 1) if isinstance(factor, Spline) else ()
    return [(name, coding.sd or 1.0), *((f"spline({name})[{number}]", 1.0) for number in curves)]


def natural_spline(x: Array, knots: Array) -> Array:
    """Return a basis of the natural cubic splines on k knots, without the constant.

    The first column is x itself. Each other column is 0 up to its knot, cubic between the knots,
    and straight beyond the last one: there it continues along its slope, because a difference of
    large cubes would lose all digits.

    Args:
        x: Values, shape `(n,)`.
        knots: Increasing knots, shape `(k,)`.

    Returns:
        The columns, shape `(n, k - 1)`.
    """
    last, second_last = knots[-1], knots[-2]
    inside = np.minimum(x, last)

    def cube_above(knot: float) -> Array:
        cube: Array = np.clip(inside - knot, 0.0, None) ** 3
        return cube

    columns = [x]
    for knot in knots[:-2]:
        # The second cube makes the curvature vanish at the last knot; the slope there is `slope`.
        ratio = (last - knot) / (last - second_last)
        slope = 3 * (last - knot) * (second_last - knot)
        curve = cube_above(knot) - ratio * cube_above(second_last) + slope * (x - inside)
        columns.append(curve / (last - knots[0]) ** 2)
    return np.stack(columns, axis=1)


def _place_knots(spline: str | Spline, rows: CodedRows, weight: Array) -> Array:
    """Return `df + 1` knots at quantiles of the training rows under their weights."""
    if not isinstance(spline, Spline):
        return np.empty(0)
    scores = rows.codes[spline.column]
    scores, weight = scores[~np.isnan(scores)], weight[~np.isnan(scores)]
    shares = np.linspace(0.05, 0.95, spline.df + 1)
    distinct = np.unique(scores)
    if len(distinct) < spline.df + 1:
        raise TableError(
            f"{spline} with df={spline.df} needs at least {spline.df + 1} distinct values; "
            f"column {spline.column!r} has {len(distinct)}. Use a smaller df, or the plain column."
        )
    knots = np.quantile(scores, shares, method="inverted_cdf", weights=weight)
    if len(np.unique(knots)) < len(knots):
        # Many equal values: quantiles of the distinct values differ.
        knots = np.quantile(distinct, shares)
    return np.asarray(knots, dtype=np.float64)


def _measure(raw: sparse.csr_array, share: Array) -> tuple[Array, Array]:
    """Return mean and sd of each raw column, shape `(k,)`; `share` is the weight of each row.

    The sd is a sum of squared distances from the mean, because a difference of two large sums would
    give a constant column an sd of its own.
    """
    k = raw.shape[1]
    rows, columns = raw.nonzero()
    values = np.asarray(raw[rows, columns])
    mean = np.asarray(share @ raw)
    squares = np.bincount(columns, share[rows] * (values - mean[columns]) ** 2, k)
    share_of_zeros = 1.0 - np.bincount(columns, share[rows], k)
    sd = np.sqrt(squares + np.maximum(share_of_zeros, 0.0) * mean**2)
    return mean, np.where(sd <= _CONSTANT * np.maximum(1.0, np.abs(mean)), 1.0, sd)
