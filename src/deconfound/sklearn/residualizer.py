"""Confounds leave X by least squares, fitted on the rows given to `fit`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin  # type: ignore[import-untyped]
from sklearn.utils.validation import (  # type: ignore[import-untyped]
    FLOAT_DTYPES,
    _check_feature_names_in,
    check_array,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from deconfound.design import Design
from deconfound.design.codecs import Kind, Policy
from deconfound.design.terms import source_columns
from deconfound.errors import DeconfoundWarning, OptionError
from deconfound.layers.functional import least_squares, moments, residualize
from deconfound.metrics import BeyondLinear, beyond_linear, column
from deconfound.sklearn.intake import (
    LABEL,
    Columns,
    Roles,
    Terms,
    encoded,
    features_of,
    kind_of_labels,
    numbers_of,
    refuse_masked,
    roles_of,
    table_of,
    weights_of,
)


class ConfoundResidualizer(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Subtract from each column of X what a linear regression on the confounds explains.

    `r = x − c β_C`, with β by exact least squares of `x ≈ b₀ + c β_C + l β_L` on the rows given to `fit`: the mean of
    a column stays, and so does the effect of `keep` (l). Other rows are transformed with the same β, one at a
    time if need be.

    Args:
        confounds: Which columns are confounds: names, or `Spline`, `Polynomial`, `Interaction` terms. They are looked
            for in the table given to `fit`, else in the DataFrame X, from which they are taken out: the
            output holds features alone. None takes every column of the table.
        keep: What must survive though it goes with the confounds: "y" for the labels given to `fit`, or names
            beside the confounds. Used by `fit` alone. The default keeps nothing, unlike the command line, whose
            designs keep the labels: for its method `input-residualize` write keep="y", or scores will differ widely
            where labels and confounds go together. Labels of text, booleans or up to 20 distinct whole numbers
            are classes, others are numeric; `types={"y": …}` decides otherwise.
        types: See `Design`.
        missing: See `Design`.
        unseen: See `Design`.
        check: Look in `fit` whether a linear removal is enough for these rows (`deconfound.metrics.beyond_linear`), and
            warn of each confound that a non-linear probe still reads from the residuals: trees after this transformer
            use what a linear model cannot.

    Attributes:
        design_: The fitted design; None if no confounds were given, which leaves X as it is, with a warning.
        notes_: What `check` found, a `BeyondLinear` for each such confound.
        coefficients_: For each confound column, its effect on each feature in the user's own units.

    Example:
        >>> import pandas as pd
        >>> from deconfound.sklearn import ConfoundResidualizer
        >>> X = pd.DataFrame({"volume": [5.0, 4.0, 3.5, 5.5], "age": [60.0, 70.0, 75.0, 55.0]})
        >>> ConfoundResidualizer(confounds=["age"]).fit_transform(X).ravel().round(6)  # a tenth a year: all equal at 65
        array([4.5, 4.5, 4.5, 4.5])
    """

    def __init__(
        self,
        confounds: Terms | None = None,
        *,
        keep: Literal["y"] | Terms | None = None,
        types: Mapping[str, Kind] | None = None,
        missing: Policy = "error",
        unseen: Policy = "error",
        check: bool = False,
    ) -> None:
        self.confounds = confounds
        self.keep = keep
        self.types = types
        self.missing = missing
        self.unseen = unseen
        self.check = check

    def fit(self, X: Any, y: Any = None, confounds: Any = None, sample_weight: Any = None) -> Self:
        """Learn β from these rows.

        Args:
            X: `(n, features)`; a DataFrame where confounds are names of its columns.
            y: Labels, read only with `keep="y"`.
            confounds: A table with one row per sample.
            sample_weight: How much each row counts in the design and the regression.
        """
        by_label = isinstance(self.keep, str) and self.keep == LABEL
        if by_label and y is None:
            raise OptionError("y must be given with keep='y'; got None. Write fit(X, y), or name keep's columns.")
        refuse_masked(X, "X")
        if by_label:
            refuse_masked(y, "y")
        roles = roles_of(X, self.confounds, confounds, () if by_label or self.keep is None else self.keep)
        validate_data(self, X, skip_check_array=True)
        features = check_array(features_of(X, roles), dtype=FLOAT_DTYPES, estimator=self)
        sample_weight = weights_of(sample_weight, features)
        table = table_of(X, confounds, roles, len(features), "fit")
        self._roles: Roles = roles
        self.design_: Design | None = None
        self.coefficients_: dict[str, NDArray[np.float64]] = {}
        self.notes_: tuple[BeyondLinear, ...] = ()
        if table is None:
            warnings.warn(
                "ConfoundResidualizer was fitted without confounds and leaves X as it is. Name columns of X in "
                "confounds, or pass fit(X, confounds=table).",
                DeconfoundWarning,
                stacklevel=2,
            )
            return self
        labels = column_or_1d(y) if by_label else None
        self._learn(features, table, labels, sample_weight)
        if self.check:
            self._warn_of_the_rest(features, table, labels)
        return self

    def transform(self, X: Any, confounds: Any = None) -> Any:
        """The features without the confounds' part; no labels are needed.

        Args:
            X: As in `fit`; keep columns may be left out.
            confounds: A table with one row per sample, if `fit` was given one.
        """
        check_is_fitted(self)
        if self._roles.origin == "X" and hasattr(X, "reindex"):
            unknown = [name for name in self._roles.kept if name not in X.columns]
            X = X.assign(**dict.fromkeys(unknown, np.nan))[list(self.feature_names_in_)] if unknown else X
        features = numbers_of(self, X, self._roles, dtype=FLOAT_DTYPES)
        table = table_of(X, confounds, self._roles, len(features), "transform")
        if self.design_ is None or table is None:
            return features
        return self._residual(features, table, self.design_).numpy().astype(features.dtype)

    def fit_transform(self, X: Any, y: Any = None, confounds: Any = None, sample_weight: Any = None) -> Any:
        """`fit`, then `transform` of the same rows."""
        return self.fit(X, y, confounds, sample_weight).transform(X, confounds=confounds)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """The names of the columns of the output: those of X without confounds and keep."""
        check_is_fitted(self)
        names: NDArray[Any] = _check_feature_names_in(self, input_features)
        return names if self._roles.features is None else names[self._roles.features]

    def _learn(
        self, features: NDArray[Any], table: Columns, labels: NDArray[Any] | None, weight: NDArray[np.float64] | None
    ) -> None:
        keep, types = list(self._roles.keep), dict(self.types or {})
        if labels is not None:
            keep, types = [LABEL], {LABEL: kind_of_labels(labels), **types}
            table = {**table, LABEL: labels}
        design = Design(self._roles.confounds, keep, types=types, missing=self.missing, unseen=self.unseen)
        design.fit(table, weight=weight)
        white = torch.from_numpy(design.encode(table, np.float64) @ design.whitening)
        regressors = torch.cat([white, torch.ones_like(white[:, :1])], dim=1)
        counts = None if weight is None else torch.from_numpy(weight)
        beta = least_squares(moments(torch.tensor(features, dtype=torch.float64), regressors, counts)).numpy()
        directions, columns = design.confound_directions, design.confound_columns
        standardised = design.whitening[: len(columns), :directions] @ beta[:directions]
        self.design_ = design
        self._beta = beta[:directions]
        self.coefficients_ = {
            column.name: effect / column.unit for column, effect in zip(columns, standardised, strict=True)
        }

    def _warn_of_the_rest(self, features: NDArray[Any], table: Columns, labels: NDArray[Any] | None) -> None:
        """Warn of each confound that a non-linear probe reads from the residuals."""
        assert self.design_ is not None
        residual = self._residual(features, table, self.design_)
        columns = [column(name, table[name]) for name in source_columns(self.design_.confounds)]
        groups = None
        if labels is not None and kind_of_labels(labels) == "categorical":
            groups = np.unique(labels, return_inverse=True)[1]
        self.notes_ = beyond_linear(residual, columns, groups=groups)
        for note in self.notes_:
            warnings.warn(note.text, DeconfoundWarning, stacklevel=3)

    def _residual(self, features: NDArray[Any], table: Columns, design: Design) -> torch.Tensor:
        """The features without their confounds in white units; keep columns are not read."""
        removable = {name: values for name, values in table.items() if name not in self._roles.kept}
        metadata = torch.from_numpy(encoded(design, removable))
        columns, directions = len(design.confound_columns), design.confound_directions
        removal = metadata[:, :columns] @ torch.from_numpy(design.whitening[:columns, :directions])
        return residualize(torch.tensor(features, dtype=torch.float64), removal, torch.tensor(self._beta))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.target_tags.required = isinstance(self.keep, str) and self.keep == LABEL
        return tags
