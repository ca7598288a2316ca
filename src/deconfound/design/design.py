"""The design: a fitted encoder from a table to metadata."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from deconfound.design import serialise
from deconfound.design.assumed import Assumed, assumed
from deconfound.design.basis import fit_term
from deconfound.design.codecs import (
    Coded,
    Kind,
    LevelCodec,
    Policy,
    check_policy,
    check_types,
    fit_codec,
    missing_value,
)
from deconfound.design.diagnosis import Diagnosis, diagnose
from deconfound.design.fitted import Column, Fitted
from deconfound.design.table import Table, absent, column_names, read_columns
from deconfound.design.terms import Interaction, Polynomial, Spline, Term, as_term, sources
from deconfound.design.whitening import whiten
from deconfound.errors import DeconfoundWarning, NotFittedError, OptionError, TableError

# Blocks of rows that stay in cache while their columns are filled one term after the other.
ROWS_AT_ONCE = 2048


class Design:
    """A fitted encoder from a table to metadata: which columns are removed or kept, and how they are read.

    Args:
        confounds: Columns whose effect is removed: names, or `Polynomial`, `Spline`, `Interaction` terms.
        keep: Columns whose effect must survive, usually the labels. They take part in fitting, so that the
            label's effect is not credited to the confounds, and are not needed at inference.
        types: Force how a column is read: `{"site": "categorical"}`; also "numeric" and "boolean".
        missing: What a missing value of a confound is: an error, or the mean of the training rows. A missing
            `keep` value is always allowed in `encode`, where it means "label unknown".
        unseen: What a level that was not in the training rows is: an error, or their mean.

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
        self.confounds = _terms(confounds, "confounds")
        self.keep = _terms(keep, "keep")
        self.types: dict[str, Kind] = dict(types or {})
        self.missing: Policy = missing
        self.unseen: Policy = unseen
        self._fitted: Fitted | None = None
        if not self.confounds:
            raise OptionError("confounds must name at least one column; got none.")
        both = sorted(set(map(str, self.confounds)) & set(map(str, self.keep)))
        if both:
            raise OptionError(f"a column must be either removed or kept; got {both[0]!r} in confounds and in keep.")
        check_policy("missing", missing)
        check_policy("unseen", unseen)
        faults = check_types(self.types, self._sources(self.confounds + self.keep))
        if faults:
            raise OptionError("\n".join(faults))

    def fit(self, table: Table) -> Self:
        """Learn types, levels, means, scales and the whitening from the training rows.

        Args:
            table: A DataFrame, or a mapping of column name to array, with every column of the design.
        """
        available = column_names(table)
        faults = absent(self._sources(self.confounds), available, "confounds")
        faults += absent(self._sources(self.keep), available, "keep")
        if faults:
            raise TableError("\n".join(faults))
        columns = read_columns(table, self._sources(self.confounds + self.keep))
        rows = len(next(iter(columns.values())))
        if rows < 2:
            raise TableError(f"a design must be fitted on at least 2 rows; got {rows}.")
        forced: dict[str, Kind] = {**dict.fromkeys(self._curved(), "numeric"), **self.types}
        codecs = {name: fit_codec(name, values, forced.get(name), self.missing) for name, values in columns.items()}
        coded = {name: codecs[name].encode(values, "error") for name, values in columns.items()}
        confounds = tuple(fit_term(term, codecs, coded) for term in self.confounds)
        keep = tuple(fit_term(term, codecs, coded) for term in self.keep)
        blocks = [term.standardise(coded, fill=0.0) for term in confounds + keep]
        standardised = np.concatenate(blocks, axis=1)
        width = sum(len(term.labels) for term in confounds)
        self._fitted = Fitted(
            rows, codecs, confounds, keep, standardised.T @ standardised / rows, whiten(standardised, width)
        )
        for sentence in self._fitted.dropped():
            warnings.warn(sentence, DeconfoundWarning, stacklevel=2)
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
        available = column_names(table)
        names = self._sources(self.confounds)
        faults = absent(names, available, "confounds")
        if faults:
            raise TableError("\n".join(faults))
        labels = [name for name in self._sources(self.keep) if name in available]
        columns = read_columns(table, names + labels)
        coded = {name: fitted.codecs[name].encode(values, self.unseen) for name, values in columns.items()}
        for name in names:
            if coded[name].missing.size and self.missing == "error":
                raise missing_value(name, coded[name].missing)
        metadata = np.empty((len(columns[names[0]]), len(self.columns)), dtype)
        for first in range(0, len(metadata), ROWS_AT_ONCE):
            rows = slice(first, first + ROWS_AT_ONCE)
            self._fill(metadata[rows], {name: column.part(rows) for name, column in coded.items()})
        return metadata

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
        names = self._sources(self.confounds)
        faults = absent(names, column_names(table), "confounds")
        if faults:
            raise TableError("\n".join(faults))
        return assumed(self._require_fit().codecs, read_columns(table, names))

    def _fill(self, metadata: NDArray[Any], coded: Mapping[str, Coded]) -> None:
        fitted, start = self._require_fit(), 0
        for term in fitted.confounds + fitted.keep:
            block = metadata[:, start : start + len(term.labels)]
            start += len(term.labels)
            if all(name in coded for name in sources(term.term)):
                known = term in fitted.confounds or self.missing == "mean"
                block[:] = term.standardise(coded, 0.0 if known else np.nan, metadata.dtype)
            else:
                block[:] = np.nan

    def diagnose(self) -> Diagnosis:
        """How much of each keep column the confounds already explain, overlaps, and levels with few rows.

        Example:
            >>> import deconfound as dc
            >>> table = {"age": [61.0, 74.0, 78.0, 65.0], "site": ["A", "A", "A", "B"], "dx": [0, 0, 1, 1]}
            >>> many = {name: values * 10 for name, values in table.items()}
            >>> print(dc.Design(confounds=["age", "site"], keep=["dx"]).fit(many).diagnose())
            the confounds explain 64% of dx (alone: site 33%, age 9%)
        """
        fitted = self._require_fit()
        positions, start = {}, 0
        for term in fitted.confounds + fitted.keep:
            positions[str(term.term)] = range(start, start + len(term.labels))
            start += len(term.labels)
        confounds = {str(term): positions[str(term)] for term in self.confounds}
        keep = {str(term): positions[str(term)] for term in self.keep}
        counts = {
            name: {str(level): count for level, count in zip(codec.levels, codec.counts, strict=True)}
            for name, codec in fitted.codecs.items()
            if isinstance(codec, LevelCodec)
        }
        return diagnose(fitted.gram, confounds, keep, counts)

    @property
    def columns(self) -> tuple[Column, ...]:
        """Every column of the metadata, in the order of `encode`."""
        return self._require_fit().columns

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the metadata columns."""
        return tuple(column.name for column in self.columns)

    @property
    def confound_columns(self) -> tuple[Column, ...]:
        """The columns of C."""
        return tuple(column for column in self.columns if column.role == "confound")

    @property
    def whitening(self) -> NDArray[np.float64]:
        """`(p, q)`: standardised metadata times this are white on the training rows, `[z_C | z_L]`."""
        return self._require_fit().whitening.matrix

    @property
    def confound_directions(self) -> int:
        """How many of the white directions are z_C."""
        return self._require_fit().whitening.confound_directions

    def to_dict(self) -> dict[str, Any]:
        """The fitted design as JSON-safe data: no pickle, equal to the last bit after a round trip."""
        options = {"types": self.types, "missing": self.missing, "unseen": self.unseen}
        return serialise.to_data(self._require_fit(), options)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The design that `to_dict` wrote."""
        fitted, options = serialise.from_data(data)
        design = cls([term.term for term in fitted.confounds], [term.term for term in fitted.keep], **options)
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
        except ValueError as error:
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

    @staticmethod
    def _sources(terms: Sequence[Term]) -> list[str]:
        return list(dict.fromkeys(name for term in terms for name in sources(term)))

    def _curved(self) -> list[str]:
        """Columns that a term bends, and which therefore are quantities."""
        terms = self.confounds + self.keep
        simple = [factor for term in terms for factor in (term.factors if isinstance(term, Interaction) else (term,))]
        return [term.column for term in simple if isinstance(term, Polynomial | Spline)]

    def _require_fit(self) -> Fitted:
        if self._fitted is None:
            raise NotFittedError("a design must be fitted before use; got a new one. Call design.fit(table).")
        return self._fitted


def _terms(values: Sequence[Any], role: str) -> tuple[Term, ...]:
    if isinstance(values, str):
        raise OptionError(f"{role} must be a list of columns; got the text {values!r}. Write [{values!r}].")
    if values is None:
        raise OptionError(f"{role} must be a list of columns; got None.")
    terms = tuple(as_term(value, role) for value in values)
    repeated = sorted({str(term) for term in terms if terms.count(term) > 1})
    if repeated:
        raise OptionError(f"{role} must name each column once; got {repeated[0]!r} more than once.")
    return terms
