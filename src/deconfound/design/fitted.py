"""What a design has learned from the training rows, all of it constant from then on, and as JSON-safe data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from deconfound.design.basis import FittedTerm, TooFarError, fitted_from_data, fitted_to_data, shown_labels
from deconfound.design.codecs import Codec, Coded, LevelCodec, codec_from_data, codec_to_data
from deconfound.design.diagnosis import Diagnosis, diagnose
from deconfound.design.notes import DesignNote, NoteKind
from deconfound.design.table import level_names
from deconfound.design.terms import sources
from deconfound.design.whitening import Whitening
from deconfound.errors import TableError

Role = Literal["confound", "keep"]
FORMAT = "deconfound-design"
VERSION = 1
# Blocks of rows that stay in the processor's cache while their columns are filled one term after the other.
ROWS_AT_ONCE = 2048
_REASONS: tuple[tuple[NoteKind, str], ...] = (
    ("constant", "constant in the training rows, so no effect of it can be estimated"),
    ("redundant", "determined by the columns before it, which carry its effect"),
    ("shared", "not to be told apart from keep, so keep is credited with its effect"),
)


@dataclass(frozen=True)
class Column:
    """One column of the metadata.

    Attributes:
        name: `age`, `site[UCSF]`, `spline(age)[2]`, `age:sex[M]`.
        role: Whether its effect is removed or kept.
        term: The entry of `confounds` or `keep` that it belongs to.
        unit: Divide a coefficient per standardised column by this for one per unit of the user's column.
        used: False for a column that is constant or redundant; its coefficient is zero.
    """

    name: str
    role: Role
    term: str
    unit: float
    used: bool


@dataclass(frozen=True)
class Block:
    """The columns of the metadata that one term fills."""

    term: FittedTerm
    role: Role
    columns: slice
    reads: tuple[str, ...]


@dataclass(frozen=True)
class Fitted:
    """All that `fit` learns."""

    rows: int
    codecs: Mapping[str, Codec]
    confounds: tuple[FittedTerm, ...]
    keep: tuple[FittedTerm, ...]
    gram: NDArray[np.float64]
    whitening: Whitening

    def __post_init__(self) -> None:
        _ = self.names, self.confound_columns, self.confound_sources, self.keep_sources  # before anything is traced

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The terms in the order of the metadata, `[C | L]`."""
        found: list[Block] = []
        for role, terms in (("confound", self.confounds), ("keep", self.keep)):
            for term in terms:
                start = found[-1].columns.stop if found else 0
                place = slice(start, start + len(term.labels))
                found.append(Block(term, role, place, sources(term.term)))  # type: ignore[arg-type]
        return tuple(found)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """Every column of the metadata, `[C | L]`."""
        white = self.whitening
        unused = {*white.constant, *white.redundant, *white.shared}
        listed: list[Column] = []
        for block in self.blocks:
            for name, unit in zip(shown_labels(block.term, self.codecs), block.term.unit, strict=True):
                used = len(listed) not in unused
                listed.append(Column(name, block.role, str(block.term.term), float(unit), used))
        return tuple(listed)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def confound_columns(self) -> tuple[Column, ...]:
        """The columns of C."""
        return tuple(column for column in self.columns if column.role == "confound")

    @cached_property
    def confound_sources(self) -> tuple[str, ...]:
        """The columns of the table that the confounds read."""
        return tuple(dict.fromkeys(name for block in self.blocks if block.role == "confound" for name in block.reads))

    @cached_property
    def keep_sources(self) -> tuple[str, ...]:
        """The columns of the table that keep reads."""
        return tuple(dict.fromkeys(name for block in self.blocks if block.role == "keep" for name in block.reads))

    @cached_property
    def levels(self) -> dict[str, tuple[Any, ...]]:
        """The levels of each categorical or boolean column, the reference first."""
        return {name: codec.levels for name, codec in self.codecs.items() if isinstance(codec, LevelCodec)}

    def standardise(self, coded: Mapping[str, Coded], rows: int, dtype: DTypeLike, keep_fill: float) -> NDArray[Any]:
        """`(rows, p)`: a missing confound is the mean, 0; a missing keep value is `keep_fill`, an absent column NaN."""
        metadata = np.empty((rows, len(self.columns)), dtype)
        for first in range(0, rows, ROWS_AT_ONCE):
            part = slice(first, first + ROWS_AT_ONCE)
            here = coded if rows <= ROWS_AT_ONCE else {name: column.part(part) for name, column in coded.items()}
            for block in self.blocks:
                fill = 0.0 if block.role == "confound" else keep_fill
                known = block.role == "confound" or all(name in coded for name in block.reads)
                try:
                    metadata[part, block.columns] = block.term.standardise(here, fill, dtype) if known else np.nan
                except TooFarError as error:
                    term, row, column = error.place
                    raise TooFarError(term, row + first, column) from error
        return metadata

    def diagnose(self) -> Diagnosis:
        """What confounds and keep share in the training rows."""
        positions: dict[str, dict[str, range]] = {"confound": {}, "keep": {}}
        for block in self.blocks:
            positions[block.role][str(block.term.term)] = range(block.columns.start, block.columns.stop)
        counts = {
            name: dict(zip(level_names(codec.levels), codec.counts, strict=True))
            for name, codec in self.codecs.items()
            if isinstance(codec, LevelCodec)
        }
        return diagnose(self.gram, positions["confound"], positions["keep"], counts)

    def dropped(self) -> list[DesignNote]:
        """One note for each reason why columns take no part in the fit."""
        notes = []
        for kind, reason in _REASONS:
            names = tuple(self.names[position] for position in getattr(self.whitening, kind))
            notes += [DesignNote(kind, names, f"{', '.join(names)}: {reason}.")] if names else []
        return notes


def to_data(fitted: Fitted, options: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that `fit` learned, with the options that `encode` obeys; JSON floats read back bit for bit."""
    white = fitted.whitening
    return {
        "format": FORMAT,
        "version": VERSION,
        "options": dict(options),
        "rows": fitted.rows,
        "codecs": [codec_to_data(codec) for codec in fitted.codecs.values()],
        "confounds": [fitted_to_data(term) for term in fitted.confounds],
        "keep": [fitted_to_data(term) for term in fitted.keep],
        "gram": fitted.gram.tolist(),
        "whitening": {
            "matrix": white.matrix.tolist(),
            "shape": list(white.matrix.shape),
            "confound_directions": white.confound_directions,
            "constant": list(white.constant),
            "redundant": list(white.redundant),
            "shared": list(white.shared),
        },
    }


def from_data(data: Any) -> tuple[Fitted, dict[str, Any]]:
    """What `to_data` was given, or an error where the data are another's or have been changed."""
    kind = (data.get("format"), data.get("version")) if isinstance(data, Mapping) else (None, None)
    if kind != (FORMAT, VERSION):
        raise TableError(
            f"a saved design must have format {FORMAT!r} and version {VERSION}; got "
            f"{kind[0]!r} and {kind[1]!r}. Save it again with this release."
        )
    try:
        codecs = [codec_from_data(codec) for codec in data["codecs"]]
        white = data["whitening"]
        fitted = Fitted(
            rows=data["rows"],
            codecs={codec.name: codec for codec in codecs},
            confounds=tuple(fitted_from_data(term) for term in data["confounds"]),
            keep=tuple(fitted_from_data(term) for term in data["keep"]),
            gram=np.array(data["gram"], dtype=np.float64),
            whitening=Whitening(
                np.array(white["matrix"], dtype=np.float64).reshape(white["shape"]),
                white["confound_directions"],
                tuple(white["constant"]),
                tuple(white["redundant"]),
                tuple(white["shared"]),
            ),
        )
        _check_whole(fitted)
        return fitted, dict(data["options"])
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
        raise TableError(
            f"a saved design must be as to_dict wrote it; got data that do not go together "
            f"({type(error).__name__}: {error}). Fit the design again."
        ) from error


def _check_whole(fitted: Fitted) -> None:
    """Raise ValueError where parts of a saved design do not go together."""
    white, p = fitted.whitening, len(fitted.columns)
    numbers = [fitted.gram, white.matrix]
    for codec in fitted.codecs.values():
        if isinstance(codec, LevelCodec):
            known = all(isinstance(level, str | bool | int | float) for level in codec.levels)
            if not known or not codec.levels or len(codec.counts) != len(codec.levels):
                raise ValueError(f"levels of {codec.name!r}")
        else:
            numbers.append(np.array([codec.mean, codec.sd, 1 / codec.sd]))
    for block in fitted.blocks:
        for term in (block.term, *block.term.factors):
            numbers += [np.array([term.mean, term.sd, term.unit], dtype=np.float64), np.array(term.knots, np.float64)]
            rising = all(low < high for low, high in pairwise(term.knots))
            if not rising or not all(sd > 0 for sd in term.sd) or len(term.labels) != len(term.mean):
                raise ValueError(f"term {term.term}")
        if any(name not in fitted.codecs for name in block.reads):
            raise ValueError(f"columns of {block.term.term}")
    if fitted.gram.shape != (p, p) or white.matrix.shape[:1] != (p,) or len(white.matrix.shape) != 2:
        raise ValueError(f"matrices of shape {fitted.gram.shape} and {white.matrix.shape} for {p} columns")
    if not isinstance(white.confound_directions, int) or not 0 <= white.confound_directions <= white.matrix.shape[1]:
        raise ValueError(f"confound_directions {white.confound_directions!r}")
    if not all(np.isfinite(part).all() for part in numbers):
        raise ValueError("numbers that are not finite")
