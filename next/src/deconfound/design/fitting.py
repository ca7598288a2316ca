"""Fitting a design: read the training rows, measure each column, whiten."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from deconfound.design.columns import (
    CodedRows,
    Coding,
    FittedTerm,
    LevelCoding,
    NumericCoding,
    missing_note,
)
from deconfound.design.diagnosis import Association, measure_associations
from deconfound.design.gram import StandardColumns
from deconfound.design.terms import Term, source_columns, spline_columns
from deconfound.design.whitening import Whitening, whiten
from deconfound.errors import ShapeError, TableError
from deconfound.table import Kind, Table, format_names, read_columns, read_table

Array = NDArray[np.float64]
Unseen = Literal["error", "mean"]
Role = Literal["confound", "keep"]


@dataclass(frozen=True)
class Column:
    """One column of the design.

    Attributes:
        name: `age`, `site[UCSF]`, `spline(age)[2]` or `age:sex[M]`.
        role: "confound" or "keep".
        term: The term that it belongs to, as the user wrote it.
        unit: Divide a coefficient per standardised column by it for one per unit of the user's
            column, such as a year.
        is_used: False if the column is constant or explained by columns before it.
    """

    name: str
    role: Role
    term: Term
    unit: float
    is_used: bool


@dataclass(frozen=True)
class Fit:
    """What fitting measures. A design replaces it as a whole, so a failed fit changes nothing.

    Attributes:
        codings: How each column of the table becomes numbers.
        confounds: The fitted confound terms.
        keep: The fitted keep terms.
        whitening: T, shape `(p, q)`.
        confound_directions: q_C; these columns of T come first.
        associations: R² within the training rows, for the diagnosis.
    """

    codings: Mapping[str, Coding]
    confounds: tuple[FittedTerm, ...]
    keep: tuple[FittedTerm, ...]
    whitening: Array
    confound_directions: int
    associations: tuple[Association, ...]

    @property
    def terms(self) -> tuple[FittedTerm, ...]:
        """All terms, in the order of their columns."""
        return self.confounds + self.keep

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the design, in order. Layers read them in every batch."""
        is_used = iter(np.any(self.whitening != 0, axis=1).tolist())
        columns = []
        for index, term in enumerate(self.terms):
            role: Role = "confound" if index < len(self.confounds) else "keep"
            for name, unit in zip(term.names, term.unit.tolist(), strict=True):
                columns.append(Column(name, role, term.term, unit, next(is_used)))
        return tuple(columns)


def fit_design(
    table: Table,
    confounds: Sequence[Term],
    keep: Sequence[Term],
    *,
    types: Mapping[str, Kind],
    unseen: Unseen,
    weight: Any,
) -> tuple[Fit, list[str]]:
    """Measure the training rows under their weights.

    Rows of weight 0 take no part: their levels stay unseen, and their missing cells are no fault.

    Returns:
        The fit, and one sentence for each reason why columns have no coefficient.

    Raises:
        TableError: Lists the faults of all columns.
    """
    columns, faults = _read_training(table, [*confounds, *keep], types)
    if not columns:
        raise TableError(*faults)
    weights = _check_weight(weight, len(next(iter(columns.values()))))
    # A row of weight 0 is absent: its levels stay unseen, and its missing cells do no harm.
    places = np.flatnonzero(weights)
    labels = [name for name in source_columns(keep) if name not in source_columns(confounds)]
    faults += _empty_cells(columns, places, labels, unseen)
    if faults:
        raise TableError(*faults)
    rows = _code_rows({name: column.iloc[places] for name, column in columns.items()}, weights)
    weights = weights[places]
    # Terms are fitted one by one, so that each with too few distinct values is reported.
    fitted: list[FittedTerm] = []
    for term in [*confounds, *keep]:
        try:
            fitted.append(FittedTerm.fit(term, rows, weights))
        except TableError as error:
            faults += error.faults
    if faults:
        raise TableError(*faults)
    _check_names(fitted)
    return _whiten_terms(tuple(fitted), len(confounds), rows, weights / weights.sum())


def _read_training(
    table: Table, terms: Sequence[Term], types: Mapping[str, Kind]
) -> tuple[dict[str, pd.Series], list[Any]]:
    """Return the columns with the dtype of their kind, and the faults of the others."""
    names, splines = source_columns(terms), spline_columns(terms)
    faults: list[Any] = []
    try:
        # `types` may be shared by several designs of a table, but must name columns of it.
        raw = read_columns(table, [*names, *types])
    except TableError as error:
        # Absent columns must not hide the faults of those that exist.
        faults += error.faults
        raw = read_columns(table, (), optional=names)
    columns: dict[str, pd.Series] = {}
    for name, column in ((name, raw[name]) for name in names if name in raw):
        kind: Kind | None = "numeric" if name in splines else types.get(name)
        try:
            typed = read_table({name: column}, [name], types={name: kind} if kind else None)
            columns[name] = typed[name]
        except TableError as error:
            faults += error.faults
    return columns, faults


def _check_weight(weight: Any, n: int) -> Array:
    """Return the weights of n rows as numbers, all ones for None."""
    if weight is None:
        return np.ones(n)
    try:
        weights = np.asarray(weight, dtype=np.float64)
    except (TypeError, ValueError):
        raise TableError(f"weight must be numbers; got a {type(weight).__name__}.") from None
    if weights.shape != (n,):
        raise ShapeError(f"weight must have one number per row, shape ({n},); got {weights.shape}.")
    if not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise TableError(
            "weight must be finite, not negative, and positive in some row; got numbers from "
            f"{weights.min()} to {weights.max()}."
        )
    # A power of two keeps sums within range and rounds nothing: 2 is exactly twice 1.
    _, exponent = np.frexp(weights.max())
    return np.asarray(np.ldexp(weights, -exponent))


def _empty_cells(
    columns: Mapping[str, pd.Series],
    places: NDArray[np.intp],
    labels: Sequence[str],
    unseen: Unseen,
) -> list[Any]:
    """Return a fault for each column with missing cells among the training rows."""
    faults: list[Any] = []
    for name, column in columns.items():
        empty = places[column.iloc[places].isna()]
        if len(empty) == len(places):
            faults.append(f"Column {name!r} has no value in any row. Leave it out of the design.")
        elif len(empty) and (unseen == "error" or name in labels):
            faults.append(missing_note(name, empty, is_label=name in labels))
    return faults


def _code_rows(columns: Mapping[str, pd.Series], weights: Array) -> CodedRows:
    """Fit the coding of each column to its training rows, and code these."""
    codings: dict[str, Coding] = {}
    for name, column in columns.items():
        is_numeric = pd.api.types.is_float_dtype(column.dtype)
        coding = NumericCoding if is_numeric else LevelCoding
        codings[name] = coding.fit(column, weights[weights > 0])
    codes = {name: codings[name].encode(column.to_numpy()) for name, column in columns.items()}
    return CodedRows(codings, codes)


def _check_names(terms: Sequence[FittedTerm]) -> None:
    """Refuse a column of the table that has the name of another column's level or curve."""
    counts = Counter(name for term in terms for name in term.names)
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated:
        raise TableError(
            f"Two columns of the design would be called {repeated[0]!r}. Rename a column of the "
            "table."
        )


def _whiten_terms(
    terms: tuple[FittedTerm, ...], count: int, rows: CodedRows, share: Array
) -> tuple[Fit, list[str]]:
    """Whiten the columns of all terms, of which the first `count` are confounds."""
    scaled = sparse.hstack([term.scaled_columns(rows) for term in terms], format="csr")
    means = np.concatenate([term.mean / term.sd for term in terms])
    columns = StandardColumns(sparse.csr_array(scaled), means, share)
    gram = columns.gram()
    # Confounds stand first in the columns of the design, whatever the order of whitening.
    p_c = sum(len(term.names) for term in terms[:count])
    whitening = whiten(gram, p_c, columns.gram_of if columns.allows_second_pass else None)
    confounds, keep = terms[:count], terms[count:]
    associations = measure_associations(gram, confounds, keep)
    directions = whitening.confound_directions
    fit = Fit(rows.codings, confounds, keep, whitening.matrix, directions, associations)
    return fit, _reasons_without_coefficient(fit, whitening)


def _reasons_without_coefficient(fit: Fit, whitening: Whitening) -> list[str]:
    """Return one sentence for each reason why columns have no coefficient."""
    names = [column.name for column in fit.columns]
    explained = {*whitening.redundant, *whitening.shared}
    unused = [i for i, column in enumerate(fit.columns) if not column.is_used]
    # What whitening left out and does not call redundant or shared has no variance.
    constant = [names[i] for i in unused if i not in explained]
    codings = fit.codings.items()
    constant += [n for n, c in codings if isinstance(c, LevelCoding) and len(c.levels) == 1]
    keep = ", ".join(str(term.term) for term in fit.keep)
    columns_of_reason = {
        "constant in the training rows": constant,
        "a combination of columns before them": [names[i] for i in whitening.redundant],
        f"shared with the labels, and credited to keep ({keep})": [
            names[i] for i in whitening.shared
        ],
    }
    sentences = []
    for reason, columns in columns_of_reason.items():
        count = f" ({len(columns)} columns)" if len(columns) > 5 else ""
        if columns:
            sentences.append(f"The design leaves out {format_names(columns)}{count}: {reason}.")
    return sentences


def fit_to_data(fit: Fit) -> dict[str, Any]:
    """Return a fit as JSON-safe data."""
    codings = {name: coding.to_data() for name, coding in fit.codings.items()}
    terms = [
        [term.mean.tolist(), term.sd.tolist(), [knots.tolist() for knots in term.knots]]
        for term in fit.terms
    ]
    return {
        "codings": codings,
        "terms": terms,
        # Base64 of little-endian doubles: a design with thousands of levels has millions.
        "whitening": base64.b64encode(fit.whitening.astype("<f8").tobytes()).decode(),
        "confound_directions": fit.confound_directions,
        "associations": [list(astuple(association)) for association in fit.associations],
    }


def fit_from_data(data: Mapping[str, Any], confounds: Sequence[Term], keep: Sequence[Term]) -> Fit:
    """Return the fit that `fit_to_data` wrote. Damaged data raise errors of many types."""
    codings: dict[str, Coding] = {}
    for name in source_columns([*confounds, *keep]):
        first, second = data["codings"][name]
        if isinstance(first, list):
            codings[name] = LevelCoding(tuple(map(str, first)), tuple(map(int, second)))
        else:
            codings[name] = NumericCoding(float(first), float(second))
    terms = []
    for term, (mean, sd, knots) in zip([*confounds, *keep], data["terms"], strict=True):
        moments = np.array(mean, dtype=np.float64), np.array(sd, dtype=np.float64)
        places = tuple(np.array(own, dtype=np.float64) for own in knots)
        terms.append(FittedTerm.from_moments(term, codings, *moments, places))
    p, directions = sum(len(term.names) for term in terms), int(data["confound_directions"])
    values = np.frombuffer(base64.b64decode(data["whitening"], validate=True), dtype="<f8")
    whitening = values.astype(np.float64).reshape(p, -1) if len(values) else np.zeros((p, 0))
    if not (np.isfinite(whitening).all() and 0 <= directions <= whitening.shape[1]):
        raise ValueError("the whitening transform is damaged")
    associations = tuple(
        Association(str(target), str(by), float(r2)) for target, by, r2 in data["associations"]
    )
    count = len(confounds)
    return Fit(
        codings, tuple(terms[:count]), tuple(terms[count:]), whitening, directions, associations
    )
