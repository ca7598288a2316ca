"""Taking X and its confounds apart: which columns are features, and where the confounds are found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import _check_sample_weight, check_array, validate_data  # type: ignore[import-untyped]

from deconfound.design import Design
from deconfound.design.codecs import SUSPICIOUS_LEVELS, Kind
from deconfound.design.table import absent, in_rows, is_category
from deconfound.design.terms import Term, as_term, sources
from deconfound.errors import OptionError, ShapeError, TableError

# The name under which the labels given to `fit` enter a design.
LABEL = "y"

Columns = dict[str, Any]
Terms = Sequence[str | Term]


@dataclass(frozen=True)
class Roles:
    """What `fit` finds out about its inputs, and what later calls have to obey.

    The origin says where confounds and keep are: columns of "X", a "table" beside it, or None for no confounds. The
    features are positions among the columns of X; None for all of X.
    """

    origin: Literal["X", "table"] | None
    confounds: tuple[str | Term, ...] = ()
    keep: tuple[str | Term, ...] = ()
    features: NDArray[np.intp] | None = None

    @property
    def kept(self) -> list[str]:
        """Table columns that `keep` alone reads: known in `fit`, needed by nothing after it."""
        needed = _names(self.confounds, "confounds")
        return [name for name in _names(self.keep, "keep") if name not in needed]


def roles_of(X: Any, named: Terms | None, table: Any, keep: Terms = ()) -> Roles:
    """Where the confounds are, from those `named` in the constructor and the `table` given to `fit`, and the roles."""
    for role, terms in (("confounds", named), ("keep", keep)):
        if isinstance(terms, str):
            raise OptionError(f"{role} must be a list of columns; got the text {terms!r}. Write [{terms!r}].")
    if table is not None:
        columns = as_columns(table)
        confounds = (
            tuple(named) if named is not None else tuple(name for name in columns if name not in _names(keep, "keep"))
        )
        roles = _checked(Roles("table", confounds, tuple(keep)), list(columns))
        twice = [name for name in _names((*confounds, *keep), "confounds") if is_frame(X) and name in X.columns]
        if twice:
            raise TableError(
                f"confounds given beside X must not be among its columns too; got {', '.join(map(repr, twice))}. Leave "
                "them out of X, or name them in the constructor and pass X alone."
            )
        return roles
    if named is None:
        if len(keep):
            raise OptionError("keep must come with confounds; got none. Name them, or pass fit(X, y, confounds=table).")
        return Roles(None)
    if not is_frame(X):
        raise _needs_frame(X)
    available = [str(name) for name in X.columns]
    taken = {*_names(named, "confounds"), *_names(keep, "keep")}
    features = np.array([place for place, name in enumerate(available) if name not in taken], dtype=np.intp)
    roles = _checked(Roles("X", tuple(named), tuple(keep), features), available)
    if not len(features):
        raise TableError("X must hold at least one feature; got only confounds and keep.")
    return roles


def features_of(X: Any, roles: Roles) -> Any:
    """The columns of X that are features, still of the user's kind."""
    return X if roles.features is None else X[[X.columns[place] for place in roles.features]]


def numbers_of(estimator: Any, X: Any, roles: Roles, **checks: Any) -> NDArray[Any]:
    """The features of new rows, after X has been found to be what `fit` saw; `checks` are those of `check_array`."""
    refuse_masked(X, "X")
    if roles.features is None:
        whole: NDArray[Any] = validate_data(estimator, X, reset=False, **checks)
        return whole
    if not is_frame(X):
        raise _needs_frame(X)
    validate_data(estimator, X, reset=False, skip_check_array=True)
    picked: NDArray[Any] = check_array(features_of(X, roles), estimator=estimator, **checks)
    return picked


def table_of(X: Any, table: Any, roles: Roles, n: int, caller: str) -> Columns | None:
    """The confounds of these rows, and the keep columns that are there; None for a model without confounds."""
    if roles.origin == "table" and table is None:
        raise TableError(
            f"{caller} must be given the confounds of its rows, since fit was; got none. Write "
            f"{caller}(X, confounds=table). scikit-learn's scorers cannot pass them: name the confounds among the "
            "columns of a DataFrame X instead, confounds=[…] in the constructor."
        )
    if roles.origin != "table" and table is not None:
        where = "took them from columns of X" if roles.origin == "X" else "had none"
        raise TableError(f"confounds must come from where fit found them; got a table in {caller}, and fit {where}.")
    if roles.origin is None:
        return None
    wanted = _names((*roles.confounds, *roles.keep), "confounds")
    available = as_columns(_aligned(table, X)) if roles.origin == "table" else {name: X[name] for name in wanted}
    columns = {name: _cells(available[name]) for name in wanted if name in available}
    for name, values in columns.items():
        if len(values) != n:
            raise ShapeError(
                f"confounds must have one row per sample; got {len(values)} rows in {name!r} for {n} samples. "
                "Cross-validation splits a DataFrame together with X, and leaves a dict whole."
            )
    return columns


def encoded(design: Design, table: Columns) -> NDArray[np.float64]:
    """The rows' metadata; where a level is new, what in scikit-learn often leads to it is said as well."""
    try:
        return design.encode(table, np.float64)
    except TableError as error:
        if not any(fault.kind == "unseen" for fault in error.faults):
            raise
        raise TableError(
            f"{error} Where a table is sorted, by site say, scikit-learn's default folds leave whole sites out of "
            "training and scores become NaN: shuffle them (cv=StratifiedKFold(5, shuffle=True))."
        ) from error


def _aligned(table: Any, X: Any) -> Any:
    """The confounds in the order of X where both carry an index of the same rows."""
    ours, theirs = (getattr(frame, "index", None) if is_pandas(frame) else None for frame in (X, table))
    if ours is None or theirs is None or ours.equals(theirs):
        return table
    if len(ours) == len(theirs) and ours.is_unique and theirs.is_unique and not len(ours.difference(theirs)):
        return table.reindex(ours)
    strange = list(theirs.difference(ours)[:3]) if len(theirs.difference(ours)) else "rows that are there twice"
    raise TableError(
        f"confounds must have the rows of X by their index; got {len(theirs)} rows for {len(ours)}, with {strange} "
        "that do not match. Pass table.loc[X.index], or table.to_dict('list') where the rows are in the order of X."
    )


def is_pandas(frame: Any) -> bool:
    """Whether this is a DataFrame or Series, whose index names rows; a list has an `index` of another kind."""
    return hasattr(frame, "index") and hasattr(frame, "reindex")


def as_columns(confounds: Any) -> Columns:
    """A table beside X by column name: a DataFrame, a mapping, a Series, or an array with one column per confound."""
    if isinstance(confounds, np.ndarray) or (is_pandas(confounds) and confounds.ndim == 1):
        values = _cells(confounds)
        if values.ndim == 1:
            return {str(getattr(confounds, "name", None) or "confound"): values}
        if values.ndim == 2:
            return {f"confound{place}": values[:, place] for place in range(values.shape[1])}
        raise TableError(f"an array of confounds must have one or two axes; got shape {values.shape}.")
    if not hasattr(confounds, "keys") or not hasattr(confounds, "__getitem__"):
        raise TableError(
            "confounds given beside X must be a DataFrame, a mapping of column name to array, or an array; "
            f"got {type(confounds).__name__}. Names of columns of X stand in the constructor."
        )
    return {str(name): _cells(confounds[name]) for name in confounds.keys()}  # noqa: SIM118 - also a DataFrame


def _cells(column: Any) -> Any:
    """A column as an array; a category of pandas and a masked array, which a design knows how to read, as they are."""
    return column if is_category(column) or isinstance(column, np.ma.MaskedArray) else np.asarray(column)


def refuse_masked(values: Any, name: str) -> None:
    """Refuse masked cells, since scikit-learn would read the numbers behind the mask."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        rows = np.unique(np.atleast_1d(np.ma.getmaskarray(values)).nonzero()[0])
        raise ShapeError(
            f"{name} must have a value in every cell; got masked ones {in_rows(rows)}. Leave these rows out."
        )


def is_frame(X: Any) -> bool:
    """Whether X has named columns that can be picked."""
    return hasattr(X, "columns") and hasattr(X, "__getitem__")


def kind_of_labels(y: NDArray[Any]) -> Kind:
    """Text, booleans and few whole numbers are classes, anything else is numeric."""
    if y.dtype.kind not in "iuf":
        return "categorical"
    whole = y.dtype.kind in "iu" or bool(np.equal(np.mod(y, 1), 0).all())
    return "categorical" if whole and len(np.unique(y)) < SUSPICIOUS_LEVELS.stop else "numeric"


def _needs_frame(X: Any) -> TableError:
    return TableError(
        f"X must be a DataFrame when confounds are names of its columns; got {type(X).__name__}. Pass a DataFrame "
        "(a transformer before this step keeps one with set_output(transform='pandas')), or pass the confounds "
        "beside X: fit(X, y, confounds=table)."
    )


def _names(terms: Terms, role: str) -> list[str]:
    """The table columns behind names and terms, each once."""
    return list(dict.fromkeys(name for term in terms for name in sources(as_term(term, role))))


def _checked(roles: Roles, available: list[str]) -> Roles:
    faults = absent(_names(roles.confounds, "confounds"), available, "confounds")
    faults += absent(_names(roles.keep, "keep"), available, "keep")
    if LABEL in _names((*roles.confounds, *roles.keep), "confounds"):
        faults.append(
            f"confounds and keep must not be named {LABEL!r}, which stands for the labels. Rename the column."
        )
    if faults:
        raise TableError("\n".join(faults))
    return roles


def weights_of(sample_weight: Any, features: Any) -> Any:
    """Weights as scikit-learn reads them, one per row, or None; some releases let weights pass that are all zero."""
    if sample_weight is None:
        return None
    refuse_masked(sample_weight, "sample_weight")
    weights = _check_sample_weight(sample_weight, features, dtype=np.float64, ensure_non_negative=True)
    if not weights.any():
        raise OptionError("sample_weight must be positive in at least one row; got zeros alone.")
    return np.require(weights, requirements="W")  # pandas lends arrays that torch must not write to
