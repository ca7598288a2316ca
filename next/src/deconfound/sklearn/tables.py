"""Where the confounds of X come from: columns of X, or a table beside X."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing

from deconfound.design import Interaction, Spline, Term, source_columns
from deconfound.errors import OptionError, ShapeError, TableError, nearest_names
from deconfound.table import Table, read_columns

# A number is that of a column of X.
ColumnTerm: TypeAlias = Term | int
Columns: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Roles:
    """Roles of the columns of X, and of a table beside X, in `fit`.

    Attributes:
        confounds: Terms that are removed.
        keep: Terms that are kept.
        columns: The columns that these terms read, by name.
        features: The numbers of the columns of X that are features.
    """

    confounds: Sequence[Term]
    keep: Sequence[Term]
    columns: Columns
    features: NDArray[np.intp]


def split_columns(
    X: Any,
    table: Table | None,
    confounds: Sequence[ColumnTerm] | None,
    keep: Sequence[ColumnTerm] | None,
) -> Roles:
    """Return the roles of all columns.

    Args:
        X: A table or a two-dimensional array.
        table: A table beside X, with one row for each row of X; None if X has the confounds.
        confounds: The terms that are removed. None takes the columns of the table that are not
            kept.
        keep: The terms that are kept; None keeps nothing.
    """
    if table is None:
        return _split_x(X, confounds, keep)
    return _read_beside(X, table, confounds, keep)


def _split_x(
    X: Any, confounds: Sequence[ColumnTerm] | None, keep: Sequence[ColumnTerm] | None
) -> Roles:
    """Return the roles of the columns of X, some of which are confounds."""
    if confounds is None:
        raise OptionError(
            "There are no confounds. Name columns of X, as in ConfoundResidualizer(['age']), or "
            "pass a table of them, as in fit(X, y, confounds=table)."
        )
    names = column_names(X)
    removed = name_terms(confounds, names, "confounds")
    kept = name_terms(keep, names, "keep")
    columns = columns_of(X, source_columns([*removed, *kept]))
    features = [number for number, name in enumerate(names) if name not in columns]
    if not features:
        raise TableError(
            f"X has {len(names)} feature(s), all of which are confounds or kept. "
            "Add the columns from which the confounds are removed."
        )
    return Roles(removed, kept, columns, np.array(features))


def _read_beside(
    X: Any,
    table: Table,
    confounds: Sequence[ColumnTerm] | None,
    keep: Sequence[ColumnTerm] | None,
) -> Roles:
    """Return the roles of the columns of a table; all columns of X are features."""
    removed, kept = name_terms(confounds, (), "confounds"), name_terms(keep, (), "keep")
    if confounds is None:
        columns = columns_beside(X, table)
        removed += [name for name in columns if name not in source_columns(kept)]
    else:
        columns = columns_beside(X, table, source_columns([*removed, *kept]))
    names = column_names(X)
    shared = [name for name in columns if is_frame(X) and name in names]
    if shared:
        raise TableError(
            f"X and the table of confounds both have {', '.join(map(repr, shared))}. Leave these "
            "columns out of X, where they would stay as features."
        )
    return Roles(removed, kept, columns, np.arange(len(names)))


def is_frame(X: Any) -> bool:
    """Return True for tables with named columns, such as those of pandas and polars."""
    return hasattr(X, "columns") and hasattr(X, "dtypes")


def column_names(X: Any) -> list[str]:
    """Return the names of the columns of X; those of an array are x0, x1, …, as in scikit-learn."""
    if is_frame(X):
        return [str(name) for name in X.columns]
    return [f"x{number}" for number in range(X.shape[1])]


def name_terms(terms: Sequence[ColumnTerm] | None, names: Sequence[str], role: str) -> list[Term]:
    """Return terms in which numbers of columns are replaced by names; an empty list for None.

    Args:
        terms: What the user wrote.
        names: The names of the columns of X; empty if the terms belong to a table beside X.
        role: The argument's name, for the message of an error.
    """
    if terms is None:
        return []
    if isinstance(terms, str) or not isinstance(terms, Iterable):
        raise OptionError(f"{role} must be a list of columns; got {terms!r}. Write [{terms!r}].")
    return [name_term(term, names, role) for term in terms]


def name_term(term: Any, names: Sequence[str], role: str) -> Any:
    """Return the name of a column that is given by its number, and any other term as it is."""
    if isinstance(term, str | Spline | Interaction):
        return term
    if isinstance(term, bool) or not isinstance(term, int | np.integer):
        raise OptionError(
            f"{role} takes names and numbers of columns, Spline and Interaction; got {term!r}."
        )
    if not names:
        raise OptionError(
            f"{role} has the number {term}, and the confounds are in a table beside X. "
            "Write the name of the column."
        )
    if not 0 <= term < len(names):
        raise OptionError(
            f"{role} has the column number {term}, and X has {len(names)} columns. "
            f"Write a number from 0 to {len(names) - 1}."
        )
    return names[int(term)]


def name_types(types: Mapping[Any, Any] | None, names: Sequence[str]) -> dict[str, Any]:
    """Return the kinds of columns by name, where the user may have written column numbers."""
    return {name_term(key, names, "types"): kind for key, kind in (types or {}).items()}


def find_columns(X: Any, wanted: Sequence[str]) -> list[int]:
    """Return the numbers of columns of X by name, or raise an error that shows what to write."""
    names = column_names(X)
    absent = [name for name in wanted if name not in names]
    if absent:
        hint = nearest_names(absent[0], names)
        if not is_frame(X):
            hint = (
                "X is an array, whose columns have numbers: write [0], pass a DataFrame (a step "
                "before this one keeps it with set_output(transform='pandas')), or pass the "
                "confounds beside X, as in fit(X, y, confounds=table)."
            )
        raise TableError(f"X has no column {', '.join(map(repr, absent))}. {hint}")
    return [names.index(name) for name in wanted]


def columns_of(X: Any, wanted: Sequence[str]) -> Columns:
    """Return columns of X by name, where X is a table or a two-dimensional array."""
    numbers = find_columns(X, wanted)
    values = [_safe_indexing(X, number, axis=1) for number in numbers]
    return dict(zip(wanted, values, strict=True))


def columns_beside(X: Any, table: Table, wanted: Sequence[str] | None = None) -> Columns:
    """Return columns of a table beside X, in the order of the rows of X.

    Args:
        X: The features, of which the number of rows and their pandas index are used.
        table: A DataFrame, or a mapping from names to values. Where X and the table both have a
            pandas index, rows belong together by index, else by order.
        wanted: The names of the columns; None reads all.
    """
    columns = read_columns(table, wanted)
    index = getattr(X, "index", None)
    if isinstance(table, pd.DataFrame) and isinstance(index, pd.Index):
        return _align(columns, table.index, index)
    rows = len(next(iter(columns.values())))
    if rows != X.shape[0]:
        raise ShapeError(
            f"The confounds have {rows} rows for {X.shape[0]} rows of X. Pass one row for each. "
            "Cross-validation splits a DataFrame together with X, but not a dict."
        )
    return dict(columns)


def _align(columns: Mapping[str, pd.Series], given: pd.Index, wanted: pd.Index) -> Columns:
    """Return the columns in the order of the wanted index, which must name the same rows."""
    if given.equals(wanted):
        return dict(columns)
    others = given.symmetric_difference(wanted)
    if len(others) or not given.is_unique or not wanted.is_unique:
        reason = f"{len(others)} names are in one of them alone" if len(others) else "names repeat"
        raise TableError(
            f"The indexes of X ({len(wanted)} rows) and of the confounds ({len(given)} rows) do "
            f"not name the same rows: {reason}. Pass table.loc[X.index], or "
            "table.to_dict('list') if the rows are in the order of X."
        )
    order = given.get_indexer(wanted)
    return {name: column.iloc[order] for name, column in columns.items()}
