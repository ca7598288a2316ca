"""How one table column becomes numbers: fitted on the training rows, applied to any rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from deconfound.design.notes import Assumed, DesignNote
from deconfound.design.table import as_numbers, in_rows, is_missing, level_names, plain, without_point
from deconfound.design.units import amount_as_text, reads_as_number
from deconfound.errors import Fault, OptionError, TableError

Kind = Literal["numeric", "boolean", "categorical"]
Policy = Literal["error", "mean"]
KINDS: tuple[Kind, ...] = ("numeric", "boolean", "categorical")

# An integer column with so few distinct values may be a code for sites rather than a numeric column.
SUSPICIOUS_LEVELS = range(3, 21)


@dataclass(frozen=True)
class Coded:
    """A column as numbers, each distinct row of them once: a million rows of 100 sites are 101 short rows.

    Attributes:
        distinct: `(u, k)`, NaN where no value is known.
        index: `(n,)`, which distinct row each row of the table has; None when every row is its own.
        missing: The rows whose cell holds nothing.
    """

    distinct: NDArray[np.float64]
    index: NDArray[np.intp] | None
    missing: NDArray[np.intp]

    def spread(self) -> NDArray[np.float64]:
        """`(n, k)`: one row per row of the table."""
        return self.distinct if self.index is None else self.distinct[self.index]

    def part(self, rows: slice) -> Coded:
        """The same for a run of rows."""
        if self.index is None:
            return Coded(self.distinct[rows], None, self.missing)
        return Coded(self.distinct, self.index[rows], self.missing)


@dataclass(frozen=True)
class NumericCodec:
    """A numeric column: one number per row, centred and scaled by the training rows."""

    name: str
    mean: float
    sd: float
    kind: Kind = "numeric"

    def encode(self, values: NDArray[Any], unseen: Policy) -> Coded:
        """`(n, 1)`: (value − mean) / sd."""
        numbers = as_numbers(values, self.name)
        return Coded(((numbers - self.mean) / self.sd)[:, None], None, np.isnan(numbers).nonzero()[0])

    @property
    def labels(self) -> tuple[str, ...]:
        """The name of the one column."""
        return (self.name,)

    @property
    def summary(self) -> str:
        """For the design's repr."""
        return f"mean {self.mean:.4g}, sd {self.sd:.4g}"


class _Codes(dict[Any, int]):
    """The code of each level, −1 for what is none: a plain look-up, so that a million rows take a tenth of a second."""

    def __missing__(self, value: Any) -> int:
        return -1


@dataclass(frozen=True)
class LevelCodec:
    """A category: one 0/1 column per level but the first, which is the reference."""

    name: str
    levels: tuple[Any, ...]
    counts: tuple[int, ...]
    kind: Kind = "categorical"

    def encode(self, values: NDArray[Any], unseen: Policy) -> Coded:
        """`(n, levels − 1)`: 1 where the row has the level, 0 elsewhere; the last distinct row is for no level."""
        codes = np.fromiter(map(self._codes.__getitem__, values.tolist()), dtype=np.intp, count=len(values))
        unknown = (codes < 0).nonzero()[0]
        if not unknown.size:
            return Coded(self._distinct, codes, unknown)
        empty = np.array([is_missing(values[row]) for row in unknown], dtype=bool)
        strangers = unknown[~empty]
        if strangers.size and unseen == "error":
            got = plain(values[strangers[0]])
            known = f"column {self.name!r} must hold levels seen in fit ({_listed(self.levels)})"
            advice = "Leave these rows out, or {way} to treat them as the average of the training rows."
            text = f"{known}; got {without_point(got)!r} {in_rows(strangers)}."
            raise TableError(Fault("unseen", self.name, text, got, tuple(strangers.tolist()), "unseen", advice))
        codes[unknown] = len(self.levels)
        return Coded(self._distinct, codes, unknown[empty])

    @cached_property
    def _codes(self) -> _Codes:
        return _Codes((level, code) for code, level in enumerate(self.levels))

    @cached_property
    def _distinct(self) -> NDArray[np.float64]:
        rows = np.eye(len(self.levels))[:, 1:]
        return np.concatenate([rows, np.full((1, rows.shape[1]), np.nan)])

    @property
    def labels(self) -> tuple[str, ...]:
        """One name per column, `site[UCSF]`, as saved designs have it."""
        return tuple(f"{self.name}[{level}]" for level in self.levels[1:])

    @property
    def shown_labels(self) -> tuple[str, ...]:
        """One name per column as it is shown: `site[17]`, also where the level is read as 17.0."""
        return tuple(f"{self.name}[{level}]" for level in level_names(self.levels)[1:])

    @property
    def summary(self) -> str:
        """For the design's repr."""
        names = level_names(self.levels)
        shown = [f"{level} {count:,}" for level, count in zip(names, self.counts, strict=True)]
        more = f", … ({len(shown)} levels)" if len(shown) > 6 else ""
        return f"{', '.join(shown[:6])}{more}; reference {names[0]}"


Codec = NumericCodec | LevelCodec


def assumed(codecs: Mapping[str, Codec], columns: Mapping[str, NDArray[Any]]) -> tuple[Assumed, ...]:
    """Every value of these columns that their codecs do not know, in the order of the columns and rows."""
    found: list[Assumed] = []
    for name, values in columns.items():
        coded = codecs[name].encode(values, "mean")
        unknown = coded.missing if coded.index is None else np.flatnonzero(coded.index == len(coded.distinct) - 1)
        places: dict[Any, list[int]] = {}
        for row in unknown.tolist():
            value = plain(values[row])
            places.setdefault(None if is_missing(value) else value, []).append(row)
        found += [Assumed(name, value, tuple(rows)) for value, rows in places.items()]
    return tuple(found)


def fit_codec(
    name: str, values: NDArray[Any], forced: Kind | None, missing: Policy, weight: NDArray[np.float64]
) -> tuple[Codec, list[DesignNote]]:
    """Learn a column's mean and sd under `weight (n,)`, or its levels; with what should be known about it.

    The kind is `forced`, where the user names it, or inferred from the values.
    """
    kind, notes = (forced, []) if forced else _infer(name, values)
    if kind == "numeric":
        numbers = as_numbers(values, name)
        _refuse_missing(name, np.flatnonzero(np.isnan(numbers)), len(numbers), missing)
        mean, sd = weighted_moments(numbers[:, None], weight)
        # Rounding makes the sd of a constant column tiny instead of zero.
        constant = sd[0] <= 1e-12 * max(abs(mean[0]), 1e-300)
        return NumericCodec(name, float(mean[0]), 1.0 if constant else float(sd[0])), notes
    empty = np.fromiter((is_missing(value) for value in values.tolist()), dtype=bool, count=len(values))
    _refuse_missing(name, np.flatnonzero(empty), len(values), missing)
    counts = Counter(plain(value) for value in values[~empty].tolist())
    levels = tuple(sorted(counts, key=lambda level: (isinstance(level, str), level)))
    if kind == "boolean":
        levels = _boolean_levels(name, levels)
    return LevelCodec(name, levels, tuple(counts[level] for level in levels), kind), notes


def weighted_moments(
    values: NDArray[np.float64], weight: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and sd of each column under the weights, over the cells that are no NaN.

    Columns are divided by a power of two near their size first, so that squares of 1e200 do not overflow.
    """
    filled = ~np.isnan(values)
    largest = np.max(np.abs(values), axis=0, initial=0.0, where=filled)
    size = np.ldexp(1.0, np.where(largest > 0, np.frexp(largest)[1] - 1, 0))
    scaled = np.where(filled, values / size, 0.0)
    share = np.where(filled, weight[:, None], 0.0)
    total = np.maximum(share.sum(0), np.finfo(np.float64).tiny)
    mean = (share * scaled).sum(0) / total
    sd = np.sqrt((share * np.square(np.where(filled, scaled - mean, 0.0))).sum(0) / total)
    return mean * size, sd * size


def _infer(name: str, values: NDArray[Any]) -> tuple[Kind, list[DesignNote]]:
    if values.dtype.kind == "b":
        return "boolean", []
    cells = [value for value in values.tolist() if not is_missing(value)]
    if cells and all(isinstance(value, bool) for value in cells):
        return "boolean", []
    if all(isinstance(value, int | float) for value in cells):
        # Missing cells turn a column of integer codes into floats, so these are looked at too.
        maybe_codes = values.dtype.kind in "iu" or len(cells) < len(values)
        whole = maybe_codes and all(float(value).is_integer() for value in cells)
        if not whole or len(distinct := set(cells)) not in SUSPICIOUS_LEVELS:
            return "numeric", []
        text = (
            f"column {name!r} holds only {len(distinct)} distinct whole numbers and is read as a numeric column. If "
            f"they are codes (sites, scanners), pass types={{{name!r}: 'categorical'}}; if they are amounts, pass "
            f"types={{{name!r}: 'numeric'}}. Either choice silences this."
        )
        return "numeric", [DesignNote("codes", (name,), text)]
    if not all(isinstance(value, str) and reads_as_number(value) for value in cells):
        return "categorical", _amounts(name, cells)
    text = (
        f"column {name!r} holds text that reads as numbers and is taken as categorical with {len(set(cells))} levels. "
        f"Pass types={{{name!r}: 'numeric'}} if they are amounts, or types={{{name!r}: 'categorical'}} to silence this."
    )
    return "categorical", [DesignNote("text numbers", (name,), text)]


def _amounts(name: str, cells: list[Any]) -> list[DesignNote]:
    """A note where the levels seem to be amounts with their unit."""
    shown = amount_as_text(cells)
    if shown is None:
        return []
    text = (
        f"column {name!r} holds numbers with other text, such as {shown!r}, and is taken as categorical with "
        f"{len(set(cells))} levels. Write plain numbers if they are amounts, or pass types={{{name!r}: 'categorical'}} "
        "to silence this."
    )
    return [DesignNote("amounts as text", (name,), text)]


def _boolean_levels(name: str, levels: tuple[Any, ...]) -> tuple[Any, ...]:
    if not set(levels) <= {False, True}:
        text = f"boolean column {name!r} must hold only True and False; got {_listed(levels)}."
        advice = f"Pass types={{{name!r}: 'categorical'}} for named levels."
        raise TableError(Fault("type", name, text, advice=advice))
    return tuple(bool(level) for level in levels)


def _refuse_missing(name: str, rows: NDArray[np.intp], n: int, missing: Policy) -> None:
    if len(rows) == n:
        raise TableError(Fault("too few", name, f"column {name!r} must hold at least one value; got {n} empty cells."))
    if len(rows) and missing == "error":
        raise missing_value(name, rows)


def missing_value(name: str, rows: NDArray[np.intp]) -> TableError:
    """The error for empty cells, with the two ways out."""
    text = f"column {name!r} must have a value in every row; got a missing value {in_rows(rows)}."
    advice = "Leave these rows out, or {way} to treat them as the average of the training rows."
    return TableError(Fault("missing", name, text, None, tuple(rows.tolist()), "missing", advice))


def _listed(levels: tuple[Any, ...], shown: int = 8) -> str:
    text = ", ".join(repr(without_point(level)) for level in levels[:shown])
    return f"{text}, … {len(levels)} in all" if len(levels) > shown else text


def codec_to_data(codec: Codec) -> dict[str, Any]:
    """A codec as JSON-safe data."""
    data: dict[str, Any] = {"kind": codec.kind, "name": codec.name}
    if isinstance(codec, NumericCodec):
        return {**data, "mean": codec.mean, "sd": codec.sd}
    return {**data, "levels": list(codec.levels), "counts": list(codec.counts)}


def codec_from_data(data: dict[str, Any]) -> Codec:
    """The codec that `codec_to_data` wrote."""
    if data["kind"] == "numeric":
        return NumericCodec(data["name"], data["mean"], data["sd"])
    return LevelCodec(data["name"], tuple(data["levels"]), tuple(data["counts"]), data["kind"])


def check_types(types: dict[str, Kind], columns: list[str]) -> list[str]:
    """One sentence for each forced type that cannot be."""
    faults = [
        f"types[{name!r}] must be one of {', '.join(map(repr, KINDS))}; got {kind!r}."
        for name, kind in types.items()
        if kind not in KINDS
    ]
    faults += [f"types must name columns of confounds or keep; got {name!r}." for name in types if name not in columns]
    return faults


def check_policy(name: str, value: str) -> None:
    """Refuse anything but 'error' and 'mean'."""
    if value not in ("error", "mean"):
        raise OptionError(f"{name} must be 'error' or 'mean'; got {value!r}.")
