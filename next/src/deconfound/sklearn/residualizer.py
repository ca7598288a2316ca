"""Removal of confounds from the columns of X, as a step of a scikit-learn pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import (
    FLOAT_DTYPES,
    _check_feature_names_in,
    _check_sample_weight,
    check_array,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from deconfound.adjust import Residualizer
from deconfound.design import Design, source_columns
from deconfound.errors import OptionError, TableError
from deconfound.sklearn.tables import (
    Columns,
    ColumnTerm,
    Roles,
    column_names,
    columns_beside,
    columns_of,
    find_columns,
    is_frame,
    name_types,
    split_columns,
)
from deconfound.table import Kind, Table

# The name of the labels y in a design.
LABEL = "y"


class ConfoundResidualizer(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Subtract from each column of X what a linear regression on the confounds explains.

    `fit` estimates x ≈ b₀ + c β_C + l β_L by least squares, where c are the confounds, centred on
    the rows of `fit`, and l is what is kept. `transform` returns x − c β_C for any rows, so the
    mean of a column stays. Nothing is learned from the rows of `transform`.

    Confounds are either columns of X, which are then taken out of it, or a table beside X. By
    scikit-learn's metadata routing the table reaches `fit` and `transform` within pipelines and
    cross-validation.

    Args:
        confounds: Column names, `Spline` or `Interaction` terms, or numbers of columns of X. None
            takes all columns of the table beside X that are not kept.
        keep: What keeps its effect on X although it is associated with the confounds: "y" for the
            labels given to `fit`, or columns as in `confounds`. None keeps nothing and does not
            read y. What label and confounds explain together is then removed, which costs accuracy
            where they are strongly associated. `transform` does not read what is kept, and a
            DataFrame may lack these columns.
        types: Kinds of columns (by name or number), "numeric" or "categorical", where the values
            leave a doubt: {"y": "categorical"} for labels 0, 1 and 2.
        unseen: "error" refuses an unseen level or a missing confound. "mean" replaces it by the
            mean of the rows of `fit`, so that nothing is removed for it.

    Attributes:
        design_: The fitted `deconfound.Design` of the confounds.
        coefficients_: For each confound column its effect on each feature, in the user's own units.
        n_features_in_: Number of columns of X.
        feature_names_in_: Names of the columns of X, if it is a table.

    Example:
        >>> import pandas as pd
        >>> from deconfound.sklearn import ConfoundResidualizer
        >>> X = pd.DataFrame({"volume": [5.5, 5.0, 4.0, 3.5], "age": [55.5, 60.5, 70.5, 75.5]})
        >>> ConfoundResidualizer(["age"]).fit_transform(X).round(6).tolist()
        [[4.5], [4.5], [4.5], [4.5]]
    """

    def __init__(
        self,
        confounds: Sequence[ColumnTerm] | None = None,
        *,
        keep: Literal["y"] | Sequence[ColumnTerm] | None = None,
        types: Mapping[Any, Kind] | None = None,
        unseen: Literal["error", "mean"] = "error",
    ) -> None:
        self.confounds = confounds
        self.keep = keep
        self.types = types
        self.unseen = unseen

    def fit(
        self,
        X: Any,
        y: Any = None,
        confounds: Table | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Fit the design and β on these rows.

        Args:
            X: Features, and the confounds if they are columns of X; shape `(n, columns)`.
            y: Labels, shape `(n,)`. They are read with `keep="y"` only.
            confounds: A table with one row for each row of X: a DataFrame, or a mapping from names
                to values. The rows of two pandas DataFrames belong together by index.
            sample_weight: One weight per row, shape `(n,)`. A weight of 2 is the row twice.
        """
        X = self._check_columns(X, reset=True)
        roles = self._find_roles(X, y, confounds)
        names = column_names(X)
        types = name_types(self.types, names)
        design = Design(roles.confounds, roles.keep, types=types, unseen=self.unseen)
        features = self._check_features(X, roles.features)
        weight = None
        if sample_weight is not None:
            weight = _check_sample_weight(
                sample_weight, features, dtype=np.float64, ensure_non_negative=True
            )
        design.fit(roles.columns, weight)
        metadata = design.encode(roles.columns, dtype=np.float64)
        residualizer = Residualizer(design).fit(features, metadata, weight)
        # Plain data and arrays, because skops and similar tools save no objects of other kinds.
        self._design = design.to_dict()
        self._beta = residualizer.beta
        self._features = roles.features
        self._feature_names = [names[number] for number in roles.features]
        needed = source_columns(roles.confounds)
        self._kept = [name for name in names if name in roles.columns and name not in needed]
        self._has_confounds_in_x = confounds is None
        self.coefficients_ = residualizer.coefficients()
        return self

    def transform(self, X: Any, confounds: Table | None = None) -> NDArray[np.floating[Any]]:
        """Return the features without the confounds' effect, shape `(n, d)`.

        Args:
            X: As in `fit`. A DataFrame may lack the columns that are kept.
            confounds: A table with one row for each row of X, if `fit` was given one.
        """
        check_is_fitted(self)
        X = self._check_columns(X, reset=False)
        features = self._check_features(X, self._find_features(X))
        design = self.design_
        columns = self._find_confounds(X, confounds, source_columns(design.confounds))
        residualizer = Residualizer(design)
        residualizer.beta = self._beta
        return residualizer.transform(features, design.encode(columns, dtype=np.float64))

    def fit_transform(
        self,
        X: Any,
        y: Any = None,
        confounds: Table | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> NDArray[np.floating[Any]]:
        """Fit to these rows, and return them without the confounds' effect."""
        return self.fit(X, y, confounds, sample_weight).transform(X, confounds)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the names of the columns of the output: those columns of X that are features."""
        check_is_fitted(self)
        names: NDArray[Any] = _check_feature_names_in(self, input_features)
        return names[self._features]

    @property
    def design_(self) -> Design:
        """The fitted design of the confounds."""
        check_is_fitted(self)
        return Design.from_dict(self._design)

    def _check_columns(self, X: Any, reset: bool) -> Any:
        """Return X as a table or a two-dimensional array, with the columns that `fit` saw."""
        if not is_frame(X):
            # scikit-learn refuses NaN in an array, unless it stands for the mean.
            must_be_finite = self.unseen == "error"
            return validate_data(self, X, reset=reset, dtype=None, ensure_all_finite=must_be_finite)
        if reset or not self._lacks_kept_columns(X):
            validate_data(self, X, reset=reset, skip_check_array=True)
        return X

    def _lacks_kept_columns(self, X: Any) -> bool:
        """Return True if a table X lacks columns that only `keep` has read in `fit`."""
        return not set(self._kept) <= set(column_names(X))

    def _check_features(self, X: Any, numbers: NDArray[np.intp]) -> NDArray[np.floating[Any]]:
        """Return columns of X by number, as finite floating-point numbers."""
        features: NDArray[np.floating[Any]] = check_array(
            _safe_indexing(X, numbers, axis=1), dtype=FLOAT_DTYPES, estimator=self, input_name="X"
        )
        return features

    def _find_features(self, X: Any) -> NDArray[np.intp]:
        """Return the numbers of the features among the columns of X."""
        if is_frame(X) and self._lacks_kept_columns(X):
            return np.array(find_columns(X, self._feature_names))
        return self._features

    def _find_roles(self, X: Any, y: Any, table: Table | None) -> Roles:
        """Return which columns are confounds, kept and features, in `fit`."""
        if not self._keeps_label:
            return split_columns(X, table, self.confounds, self.keep)
        if y is None:
            raise OptionError("keep='y' needs the labels. Write fit(X, y), or name other columns.")
        roles = split_columns(X, table, self.confounds, None)
        if LABEL in roles.columns:
            raise TableError(
                f"A confound has the name {LABEL!r}, which stands for the labels of fit(X, y). "
                "Rename the column."
            )
        return replace(roles, keep=[LABEL], columns={**roles.columns, LABEL: column_or_1d(y)})

    def _find_confounds(self, X: Any, table: Table | None, wanted: Sequence[str]) -> Columns:
        """Return the confounds of new rows, from where `fit` found them."""
        if self._has_confounds_in_x and table is None:
            return columns_of(X, wanted)
        if self._has_confounds_in_x:
            raise TableError(
                "transform was given a table of confounds, and fit found them among the columns "
                "of X. Pass X alone."
            )
        if table is None:
            raise TableError(
                "transform was given no confounds, and fit had a table of them. Write "
                "transform(X, confounds=table). A pipeline needs metadata routing for this; for "
                "a scorer that passes no table, make the confounds columns of X."
            )
        return columns_beside(X, table, wanted)

    @property
    def _keeps_label(self) -> bool:
        return isinstance(self.keep, str) and self.keep == LABEL

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_beta")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.target_tags.required = self._keeps_label
        tags.input_tags.string = True  # Confounds may be levels such as names of sites.
        return tags
