"""The design: a fitted encoder from a table to metadata."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from deconfound.design.basis import fit_term
from deconfound.design.codecs import (
    Coded,
    Kind,
    Policy,
    assumed,
    check_policy,
    check_types,
    fit_codec,
    missing_value,
)
from deconfound.design.diagnosis import Diagnosis
from deconfound.design.fitted import Column, Fitted, from_data, to_data
from deconfound.design.notes import Assumed, DesignNote
from deconfound.design.table import Table, absent_columns, category_columns, column_names, read_columns
from deconfound.design.terms import Term, as_terms, curved, source_columns
from deconfound.design.weights import row_weight
from deconfound.design.whitening import whiten
from deconfound.errors import DeconfoundWarning, NotFittedError, OptionError, TableError

if TYPE_CHECKING:
    from deconfound.design.balance import BalanceKind
    from deconfound.design.balance_report import Balance


class Design:
    """A fitted encoder from a table to metadata: which columns are removed or kept, and how they are read.

    Args:
        confounds: Columns whose effect is removed: names, or `Polynomial`, `Spline`, `Interaction` terms.
        keep: Columns whose effect must survive, usually the labels. They take part in fitting, so that the
            label's effect is not credited to the confounds, and are not needed at inference.
        types: Force how a column is read: `{"site": "categorical"}`; also "numeric" and "boolean". A `category` of
            pandas is categorical without it, also where its levels are numbers.
        missing: What a missing value of a confound is: an error, or the mean of the training rows. A missing
            `keep` value is always allowed in `encode`, where it means "label unknown".
        unseen: What a level that was not in the training rows is: an error, or their mean.

    Attributes:
        notes: What `fit` warned of, as records.

    Example:
        >>> import deconfound as dc
        >>> train = {"age": [61.0, 70.0, 78.0, 55.0], "sex": ["F", "M", "F", "M"], "dx": [0, 1, 1, 0]}
        >>> design = dc.Design(confounds=["age", "sex"], keep=["dx"]).fit(train)
        >>> design.encode({"age": [66.0], "sex": ["F"]}).round(2)
        array([[ 0., -1., nan]], dtype=float32)
    """

    def __init__(
        self,
        confounds: Sequence[str | Term],
        keep: Sequence[str | Term] = (),
        *,
        types: Mapping[str, Kind] | None = None,
        missing: Policy = "error",
        unseen: Policy = "error",
    ) -> None:
        self.confounds = as_terms(confounds, "confounds")
        self.keep = as_terms(keep, "keep")
        if not isinstance(types or {}, Mapping):
            raise OptionError(
                f"types must be a mapping of column to kind; got {types!r}. Write {{'site': 'categorical'}}."
            )
        self.types: dict[str, Kind] = dict(types or {})
        self.missing: Policy = missing
        self.unseen: Policy = unseen
        self.notes: tuple[DesignNote, ...] = ()
        self._fitted: Fitted | None = None
        if not self.confounds:
            raise OptionError("confounds must name at least one column; got none.")
        both = sorted(set(map(str, self.confounds)) & set(map(str, self.keep)))
        if both:
            raise OptionError(f"a column must be either removed or kept; got {both[0]!r} in confounds and in keep.")
        check_policy("missing", missing)
        check_policy("unseen", unseen)
        faults = check_types(self.types, source_columns(self.confounds + self.keep))
        if faults:
            raise OptionError("\n".join(faults))

    def fit(self, table: Table, weight: Any = None) -> Self:
        """Learn types, levels, means, scales and the whitening from the training rows.

        Args:
            table: A DataFrame, or a mapping of column name to array, with every column of the design.
            weight: One per row, how much it counts in means, scales and whitening: `MᵀWM / Σw = I`. All alike if None.
        """
        available = column_names(table)
        faults = absent_columns(source_columns(self.confounds), available, "confounds")
        faults += absent_columns(source_columns(self.keep), available, "keep")
        if faults:
            raise TableError(faults)
        columns = read_columns(table, source_columns(self.confounds + self.keep))
        rows = len(next(iter(columns.values())))
        if rows < 2:
            raise TableError(f"a design must be fitted on at least 2 rows; got {rows}.")
        weights = row_weight(weight, rows)
        forced: dict[str, Kind] = {
            **dict.fromkeys(_named_levels(table, columns), "categorical"),
            **dict.fromkeys(curved(self.confounds + self.keep), "numeric"),
            **self.types,
        }
        learned = {
            name: fit_codec(name, values, forced.get(name), self.missing, weights) for name, values in columns.items()
        }
        codecs = {name: codec for name, (codec, _) in learned.items()}
        coded = {name: codecs[name].encode(values, "error") for name, values in columns.items()}
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is infinite, and refused
            confounds = tuple(fit_term(term, codecs, coded, weights) for term in self.confounds)
            keep = tuple(fit_term(term, codecs, coded, weights) for term in self.keep)
        standardised = np.concatenate([term.standardise(coded, fill=0.0) for term in confounds + keep], axis=1)
        gram = (standardised.T * (weights / weights.sum())) @ standardised
        width = sum(len(term.labels) for term in confounds)
        self._fitted = Fitted(rows, codecs, confounds, keep, gram, whiten(standardised, width, weights))
        self.notes = (*(note for _, notes in learned.values() for note in notes), *self._fitted.dropped())
        for note in self.notes:
            warnings.warn(note.text, DeconfoundWarning, stacklevel=2)
        return self

    def encode(self, table: Table, dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """The metadata `(n, p)` of these rows: standardised confounds, then standardised keep.

        Keep columns that the table lacks, and keep values that are missing, are NaN: labels are not known
        at inference, and only training reads them.

        Args:
            table: A DataFrame or a mapping with at least the confound columns.
            dtype: float32 is what networks train in; float64 keeps full precision.
        """
        fitted = self._require_fit()
        columns = self._read(table, fitted.keep_sources)
        with np.errstate(over="ignore"):  # what overflows is infinite, and refused
            coded = {name: fitted.codecs[name].encode(values, self.unseen) for name, values in columns.items()}
            self._refuse_missing(fitted, coded)
            rows = len(columns[fitted.confound_sources[0]])
            return fitted.standardise(coded, rows, dtype, 0.0 if self.missing == "mean" else np.nan)

    def _refuse_missing(self, fitted: Fitted, coded: Mapping[str, Coded]) -> None:
        if self.missing == "error":
            for name in fitted.confound_sources:
                if coded[name].missing.size:
                    raise missing_value(name, coded[name].missing)

    def _read(self, table: Table, optional: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
        """The columns of the confounds, which must be there, and those of `optional` that are."""
        names, available = self._require_fit().confound_sources, column_names(table)
        faults = absent_columns(names, available, "confounds")
        if faults:
            raise TableError(faults)
        return read_columns(table, [*names, *(name for name in optional if name in available)])

    def assumed(self, table: Table) -> tuple[Assumed, ...]:
        """The cells of the confounds for which `encode` takes the mean of the training rows, or raises.

        Args:
            table: A DataFrame or a mapping with at least the confound columns.

        Example:
            >>> import deconfound as dc
            >>> design = dc.Design(["site"], unseen="mean").fit({"site": ["A", "B", "A"]})
            >>> print(*design.assumed({"site": ["B", "Z", "Z"]}))
            site 'Z', in rows 1, 2, was not in the training rows
        """
        return assumed(self._require_fit().codecs, self._read(table))

    def balance(self, table: Table, kind: BalanceKind = "overlap", **options: Any) -> Balance:
        """Weights of these rows under which keep (the labels) and the confounds are independent.

        Args:
            table: The rows to weigh: those that the design is fitted on.
            kind: "overlap", "inverse", or "entropy" for a numeric label.
            **options: `clip`, `folds`, `person` and `seed` of `deconfound.balance`.
        """
        from deconfound.design.balance import balance

        labels = source_columns(self.keep)
        if not labels:
            raise OptionError("keep must name the labels to be balanced; got a design without keep.")
        return balance(table, labels, self.confounds, kind, types=self.types, missing=self.missing, **options)

    def diagnose(self, table: Table | None = None) -> Diagnosis:
        """How much of each keep column the confounds already explain, overlaps, and levels with few rows.

        Args:
            table: The training rows; with them the diagnosis tells what balancing labels and confounds would cost.

        Example:
            >>> import deconfound as dc
            >>> table = {"age": [61.0, 74.0, 78.0, 65.0], "site": ["A", "A", "A", "B"], "dx": [0, 0, 1, 1]}
            >>> many = {name: values * 10 for name, values in table.items()}
            >>> print(dc.Design(confounds=["age", "site"], keep=["dx"]).fit(many).diagnose())
            the confounds explain 64% of dx (alone: site 33%, age 9%)
        """
        found = self._require_fit().diagnose()
        if table is None or not self.keep:
            return found
        from deconfound.design.balance import try_balance

        return replace(found, balance=try_balance(self, table))

    @property
    def columns(self) -> tuple[Column, ...]:
        """Every column of the metadata, in the order of `encode`."""
        return self._require_fit().columns

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the metadata columns."""
        return self._require_fit().names

    @property
    def confound_columns(self) -> tuple[Column, ...]:
        """The columns of C."""
        return self._require_fit().confound_columns

    @property
    def whitening(self) -> NDArray[np.float64]:
        """`(p, q)`: standardised metadata times this are white on the training rows, `[z_C | z_L]`."""
        return self._require_fit().whitening.matrix

    @property
    def confound_directions(self) -> int:
        """How many of the white directions are z_C."""
        return self._require_fit().whitening.confound_directions

    @property
    def levels(self) -> dict[str, tuple[Any, ...]]:
        """The levels of each categorical or boolean column of the table, the reference first."""
        return self._require_fit().levels

    def to_dict(self) -> dict[str, Any]:
        """The fitted design as JSON-safe data: no pickle, equal to the last bit after a round trip."""
        options = {"types": self.types, "missing": self.missing, "unseen": self.unseen}
        return to_data(self._require_fit(), options)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The design that `to_dict` wrote."""
        fitted, options = from_data(data)
        try:
            design = cls([term.term for term in fitted.confounds], [term.term for term in fitted.keep], **options)
        except (TypeError, AttributeError) as error:
            raise TableError(f"a saved design must be as to_dict wrote it; got options {options!r}.") from error
        design._fitted = fitted
        return design

    def to_json(self) -> str:
        """`to_dict` as a JSON text, to lie beside an exported model."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The design that `to_json` wrote."""
        try:
            data = json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise OptionError(f"text must be what to_json wrote; got {error}.") from error
        return cls.from_dict(data)

    def __repr__(self) -> str:
        head = f"Design(confounds={list(map(str, self.confounds))}, keep={list(map(str, self.keep))})"
        if self._fitted is None:
            return f"{head}, not fitted"
        lines = [f"{head}, fitted on {self._fitted.rows:,} rows"]
        width = max(map(len, self._fitted.codecs))
        for name, codec in self._fitted.codecs.items():
            lines.append(f"  {name:<{width}}  {codec.kind:<11}  {codec.summary}")
        white = self._fitted.whitening
        lines.append(
            f"  {len(self.columns)} columns, {white.confound_directions} confound and "
            f"{white.matrix.shape[1] - white.confound_directions} keep directions"
        )
        return "\n".join(lines)

    def _require_fit(self) -> Fitted:
        if self._fitted is None:
            raise NotFittedError("a design must be fitted before use; got a new one. Call design.fit(table).")
        return self._fitted


def _named_levels(table: Table, columns: Mapping[str, NDArray[Any]]) -> list[str]:
    """The columns that pandas calls categories; True and False are levels in any case."""
    return [name for name in category_columns(table, list(columns)) if columns[name].dtype.kind != "b"]
