"""The design: fitted on the training table, it turns any table into metadata for the layers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

from deconfound.design.columns import CodedRows, Codes, LevelCoding, is_unknown, unknown_notes
from deconfound.design.diagnosis import Diagnosis, diagnose
from deconfound.design.fitting import (
    Column,
    Fit,
    Unseen,
    fit_design,
    fit_from_data,
    fit_to_data,
)
from deconfound.design.terms import (
    Term,
    check_terms,
    check_types,
    source_columns,
    term_from_data,
    term_to_data,
)
from deconfound.errors import DeconfoundWarning, OptionError, StateError, TableError
from deconfound.table import Kind, Note, Table, read_columns

Array = NDArray[np.float64]


class Design:
    """An encoder from the columns of a table to a numeric matrix `[C | L]`, confounds and keep.

    Fitting measures, on the training rows, the mean and sd of numbers and the levels of categories.
    It also computes the whitening transform T, under which the training metadata M = [C | L] are
    white: TᵀMᵀWMT / Σw = I. Keep columns are orthonormalised first, so that a direction that
    confounds and keep share is credited to keep. In T, confounds come first.

    Args:
        confounds: Columns whose effect is removed: names, `Spline` or `Interaction` terms.
        keep: Columns whose effect must survive (the labels). They are read in training only.
        types: Kinds of columns, "numeric" or "categorical", where the values leave a doubt. It may
            name other columns of the table as well.
        unseen: What an unseen level or a missing cell of a confound is: an error, or the mean of
            the training rows, which means that nothing is removed on its account. Labels must be
            known in training.

    Example:
        >>> from deconfound import Design
        >>> table = {"age": [61.5, 70.2, 66.1, 74.8], "dx": ["AD", "CN", "CN", "AD"]}
        >>> design = Design(["age"], keep=["dx"]).fit(table)
        >>> design.names
        ('age', 'dx[CN]')
        >>> design.encode(table).round(2)
        array([[-1.35, -1.  ],
               [ 0.42,  1.  ],
               [-0.42,  1.  ],
               [ 1.35, -1.  ]], dtype=float32)
    """

    def __init__(
        self,
        confounds: Sequence[Term],
        keep: Sequence[Term] = (),
        *,
        types: Mapping[str, Kind] | None = None,
        unseen: Unseen = "error",
    ) -> None:
        faults = check_terms(confounds, keep)
        if not faults:
            faults = check_types([*confounds, *keep], types or {})
        if unseen not in get_args(Unseen):
            faults.append(f"unseen must be 'error' or 'mean'; got {unseen!r}.")
        if faults:
            raise OptionError("\n".join(faults))
        self.confounds: tuple[Term, ...] = tuple(confounds)
        self.keep: tuple[Term, ...] = tuple(keep)
        self.types: dict[str, Kind] = dict(types or {})
        self.unseen: Unseen = unseen
        self._state: Fit | None = None

    def fit(self, table: Table, weight: Any = None) -> Self:
        """Measure the columns on the training rows.

        Args:
            table: The training rows, with all columns of `confounds` and `keep`.
            weight: One weight per row, shape `(n,)`, not negative. A weight of 2 is the row twice,
                and a row of weight 0 is absent: a level that only such rows have is unseen.

        Warns:
            DeconfoundWarning: Columns are constant or explained by others and have no coefficient.
        """
        self._state, sentences = fit_design(
            table, self.confounds, self.keep, types=self.types, unseen=self.unseen, weight=weight
        )
        if sentences:
            warnings.warn("\n".join(sentences), DeconfoundWarning, stacklevel=2)
        return self

    def encode(self, table: Table, dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """Return the metadata of a table: standardised columns `[C | L]`, shape `(n, p)`.

        Keep columns that the table lacks are NaN, and so are missing or unseen labels. A missing or
        unseen confound is 0, the mean of the training rows, if `unseen="mean"`.

        Args:
            table: Any rows; only the columns of the design are read.
            dtype: The dtype of the result.

        Raises:
            TableError: A confound is absent, missing or unseen (with `unseen="error"`), or not a
                number where one is needed. All faults are reported together.
        """
        state = self._fitted()
        codes, unknown = self._encode_columns(table, [*self.confounds, *self.keep])
        if unknown and self.unseen == "error":
            raise TableError(*unknown)
        rows = CodedRows(state.codings, codes)
        metadata = np.full((len(rows), len(state.columns)), np.nan, dtype)
        start = 0
        confounds = source_columns(self.confounds)
        for term in state.terms:
            stop = start + len(term.names)
            names = source_columns([term.term])
            if all(name in codes for name in names):
                # An unknown confound is the mean; an unknown label stays unknown.
                metadata[:, start:stop] = term.encode(rows, fill=0.0)
                for name in names:
                    if name not in confounds:
                        metadata[is_unknown(codes[name]), start:stop] = np.nan
            start = stop
        return metadata

    @property
    def is_fitted(self) -> bool:
        """True after `fit`, and for a design that was saved after it."""
        return self._state is not None

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of `encode`, in order."""
        return self._fitted().columns

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns of `encode`, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def confound_columns(self) -> tuple[Column, ...]:
        """The columns of C, which come first."""
        return tuple(column for column in self.columns if column.role == "confound")

    @property
    def confound_directions(self) -> int:
        """The number of white confound directions, q_C."""
        return self._fitted().confound_directions

    @property
    def whitening(self) -> Array:
        """The transform from `encode` to white directions, shape `(p, q)`, confounds first."""
        return self._fitted().whitening

    @property
    def levels(self) -> dict[str, tuple[str, ...]]:
        """The levels of each categorical column; the first is the reference."""
        codings = self._fitted().codings.items()
        return {name: coding.levels for name, coding in codings if isinstance(coding, LevelCoding)}

    def unknown_cells(self, table: Table) -> list[Note]:
        """Return a note for each confound with missing cells and for each unseen level."""
        return self._encode_columns(table, self.confounds)[1]

    def diagnose(self) -> Diagnosis:
        """Return which columns explain each other, and which levels are small.

        Example:
            >>> from deconfound import Design
            >>> table = {"site": ["A"] * 12 + ["B"] * 11, "dx": ["CN"] * 11 + ["AD"] * 12}
            >>> print(Design(["site"], keep=["dx"]).fit(table).diagnose())
            dx[CN] by site: R² = 0.84
        """
        state = self._fitted()
        counts = {}
        for name, coding in state.codings.items():
            if isinstance(coding, LevelCoding):
                counts[name] = dict(zip(coding.levels, coding.counts, strict=True))
        return diagnose(state.associations, list(map(str, self.confounds)), counts)

    def to_dict(self) -> dict[str, Any]:
        """Return the design as JSON-safe data from which `from_dict` restores it in every bit."""
        terms = [[term_to_data(term) for term in terms] for terms in (self.confounds, self.keep)]
        options = {"types": self.types, "unseen": self.unseen}
        data = {"confounds": terms[0], "keep": terms[1], **options, "fit": None}
        if self._state is not None:
            data["fit"] = fit_to_data(self._state)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the design that `to_dict` wrote.

        Raises:
            TableError: The data are not those of a design, or damaged.

        Example:
            >>> from deconfound import Design
            >>> design = Design(["age"]).fit({"age": [61.5, 70.2, 66.1]})
            >>> Design.from_dict(design.to_dict()).encode({"age": [66.1]}).round(2)
            array([[0.05]], dtype=float32)
        """
        try:
            terms = [
                [term_from_data(item) for item in data[role]] for role in ("confounds", "keep")
            ]
            design = cls(*terms, types=data["types"], unseen=data["unseen"])
            if data["fit"] is not None:
                design._state = fit_from_data(data["fit"], design.confounds, design.keep)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise TableError(
                "This is not a whole design as Design.to_dict writes it "
                f"({type(error).__name__}: {error}). Save the design again."
            ) from None
        return design

    def __repr__(self) -> str:
        keep = f", keep={list(map(str, self.keep))}" if self.keep else ""
        text = f"Design({list(map(str, self.confounds))}{keep})"
        if self._state is None:
            return f"{text}, not fitted"
        lines = [f"  {name}: {coding}" for name, coding in self._state.codings.items()]
        return "\n".join([text, *lines])

    def _fitted(self) -> Fit:
        if self._state is None:
            raise StateError("The design is not fitted. Call design.fit(training_table) first.")
        return self._state

    def _encode_columns(
        self, table: Table, terms: Sequence[Term]
    ) -> tuple[dict[str, Codes], list[Note]]:
        """Return the codes of each column, and notes on the unknown cells of confounds.

        Keep columns that the table lacks are left out.
        """
        codings = self._fitted().codings
        confounds = source_columns(self.confounds)
        labels = [name for name in source_columns(terms) if name not in confounds]
        codes: dict[str, Codes] = {}
        faults: list[Any] = []
        unknown: list[Note] = []
        for name, column in read_columns(table, confounds, optional=labels).items():
            coding = codings[name]
            try:
                values = coding.read(column, name)
            except TableError as error:
                faults += error.faults
                continue
            codes[name] = coding.encode(values)
            if name in confounds:
                unknown += unknown_notes(name, values, codes[name], coding)
        if faults:
            raise TableError(*faults, *(unknown if self.unseen == "error" else ()))
        return codes, unknown
