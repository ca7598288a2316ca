"""The kind of a column: numbers or levels, decided by one rule that does not look at its role.

1. An entry in `types` decides.
2. pandas categories, truth values, texts and columns with exactly two distinct values are
   categorical.
3. Numbers, also written as text without leading zeros, are numeric.

What this rule cannot decide is an error that shows what to write: numbers with a few texts among
them, dates, and, where it matters, whole numbers that may be codes of levels.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from deconfound.errors import TableError
from deconfound.table.notes import Note, format_names, format_rows

Kind = Literal["numeric", "categorical"]

# Whole numbers with this many distinct values may be amounts (a stage) or codes (a site).
CODE_COUNTS = range(3, 11)
# Beyond it all doubles are whole.
LARGEST_CODE = 2.0**53

# The first group is a leading zero, as in 007 but not in 0.7.
_NUMBER = re.compile(r"[+-]?(0(?=\d))?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?", re.IGNORECASE)
# Lines of numbers without leading zeros. A table of 2,000 rows and 60 such columns is read, checked
# and trained on 1.3 times as fast if they are parsed together.
_NUMBERS = re.compile(
    r"(?:[+-]?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?\n)+", re.IGNORECASE | re.ASCII
)
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_WHOLE_WITH_POINT = re.compile(r"(-?(?:0|[1-9]\d*))\.0+")
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?([ T].*)?|\d\d?[./-]\d\d?[./-]\d{4}|\d\d?/\d\d?/\d\d")
_MISSING_AMONG_NUMBERS = {"na", "n/a", "nan", "."}
_NUMBER_TYPES = (int, float, Decimal, np.integer, np.floating)
_DATE_TYPES = (datetime.date, datetime.time, datetime.timedelta, pd.Period)

# What one cell may be. A "code" is a number with leading zeros, a "comma" one with a decimal comma.
# A "marker" is missing if the other cells are numbers, and a level if they are texts.
_Content = Literal["number", "code", "truth", "text", "comma", "date", "empty", "marker"]
_NO_NUMBERS: tuple[_Content, ...] = ("text", "comma", "date")


def is_missing(value: object) -> bool:
    """Return True for None, NaN, `pd.NA`, `pd.NaT` and a text without letters.

    Example:
        >>> [is_missing(value) for value in (None, float("nan"), " ", "NA", 0)]
        [True, True, True, False, False]
    """
    if value is None or value is pd.NA or value is pd.NaT or value is np.ma.masked:
        return True
    if isinstance(value, str):
        return not value.strip()
    # NaN and NaT are the only scalars that differ from themselves.
    scalars = (float, np.floating, Decimal, np.datetime64, np.timedelta64)
    return isinstance(value, scalars) and bool(value != value)


def level_text(value: object) -> str:
    """Return the text of a level, which is the same from every source.

    A whole number has no decimal point and a truth value has a capital letter. Other texts stay as
    they are, so that an id keeps its leading zeros and version 1.10 is not version 1.1.

    Example:
        >>> [level_text(value) for value in (3, 3.0, "3.0", "007", "1.10", True, "TRUE")]
        ['3', '3', '3', '007', '1.10', 'True', 'True']
    """
    text = f"{value:f}" if isinstance(value, Decimal) else str(value).strip()
    if text.lower() in ("true", "false"):
        return text.capitalize()
    whole = _WHOLE_WITH_POINT.fullmatch(text)
    text = whole[1] if whole else text
    return "0" if text == "-0" else text


def to_numbers(values: pd.Series, name: str) -> NDArray[np.float64]:
    """Return the numbers of a column, shape `(n,)`, NaN where a cell is missing.

    Among numbers, the texts "NA", "N/A", "nan" and "." also count as missing.

    Args:
        values: The raw column.
        name: Its name, for messages.

    Raises:
        TableError: Names the rows with texts that are no numbers, and those with infinity.

    Example:
        >>> to_numbers(pd.Series(["63", "7.5", "n/a"]), "age")
        array([63. ,  7.5,  nan])
    """
    return _DistinctValues.of(values, name).to_numbers()


def to_levels(values: pd.Series) -> NDArray[np.object_]:
    """Return the text of each row's level, shape `(n,)`, None where a cell is missing.

    "NA" is a level, unless all other cells hold numbers without leading zeros or truth values.

    Example:
        >>> to_levels(pd.Series(["UCL", "NA", None])).tolist()
        ['UCL', 'NA', None]
        >>> to_levels(pd.Series([17.0, None, 3.0])).tolist()
        ['17', None, '3']
    """
    return _DistinctValues.of(values, str(values.name)).to_levels()


def type_column(
    values: pd.Series, name: str, kind: Kind | None = None, refuse_codes: bool = False
) -> pd.Series:
    """Return the column as `float64` if it is numeric, and else as a category of text levels.

    Args:
        values: The raw column.
        name: Its name, for messages.
        kind: The entry in `types`; None leaves the decision to the rule.
        refuse_codes: Whether whole numbers with 3 to 10 distinct values are an error.

    Raises:
        TableError: The kind is unclear, or the column does not have the kind in `types`.
    """
    column = _DistinctValues.of(values, name)
    if kind is None and isinstance(values.dtype, pd.CategoricalDtype):
        kind = "categorical"
    if (kind or column.choose_kind(refuse_codes)) == "numeric":
        return pd.Series(column.to_numbers(), index=values.index, name=name)
    levels = column.to_levels()
    order = sorted({level for level in levels if level is not None}, key=_level_order)
    return pd.Series(pd.Categorical(levels, categories=order), index=values.index, name=name)


@dataclass(frozen=True)
class _DistinctValues:
    """The distinct values of a column, so that each is parsed once.

    Attributes:
        name: The column.
        codes: For each row its place in `values`, shape `(n,)`; -1 where pandas has no value.
        values: The k distinct values.
        contents: What each of them is, shape `(k,)`.
        numbers: The number that each stands for, shape `(k,)`; NaN if it is none.
    """

    name: str
    codes: NDArray[np.intp]
    values: list[Any]
    contents: NDArray[np.object_]
    numbers: NDArray[np.float64]

    @classmethod
    def of(cls, values: pd.Series, name: str) -> _DistinctValues:
        if isinstance(values.dtype, pd.CategoricalDtype):
            values = values.astype(object)
        if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
            # The same without a look at each cell.
            codes, distinct = values.factorize()
            if values.dtype == np.float32:
                # 0.1 as float32 is 0.10000000149, which would be another level than 0.1.
                texts = [str(value) for value in np.asarray(distinct)]
                distinct = np.array(texts, dtype=np.float64)
            numbers = pd.Index(distinct).to_numpy(dtype=float, na_value=np.nan)
            contents = np.full(len(numbers), "number", dtype=object)
            return cls(name, codes, pd.Index(distinct).tolist(), contents, numbers)
        try:
            codes, distinct = values.factorize()
            cells = pd.Index(distinct).tolist()
            if _are_numbers(cells):
                contents = np.full(len(cells), "number", dtype=object)
                return cls(name, codes, cells, contents, np.array(cells, dtype=float))
            parsed = [_parse(cell) for cell in cells]
        except (TypeError, NotImplementedError):  # A list cannot be compared with others.
            types = sorted({type(value).__name__ for value in values})
            text = f"Column {name!r} has cells of type {', '.join(types)}."
            fix = "Write one number or one text in each cell."
            raise TableError(Note("cell", name, text, fix)) from None
        contents = np.array([content for content, _ in parsed], dtype=object)
        numbers = np.array([number for _, number in parsed], dtype=float)
        return cls(name, codes, cells, contents, numbers)

    def choose_kind(self, refuse_codes: bool) -> Kind:
        """Return the kind by the rule, or raise an error if the rule cannot decide."""
        if self.has("code"):
            return "categorical"
        if self.has(*_NO_NUMBERS, "truth"):
            # With more rows of numbers than distinct texts, the column was meant to be numeric.
            is_mixed = len(self.rows("number")) > len(self.cells(*_NO_NUMBERS, "truth"))
            if is_mixed or not self.has("text", "truth"):
                raise TableError(self._text_note())
            return "categorical"
        numbers = np.unique(self.numbers[self.contents == "number"])
        is_site_called_na = not len(numbers) and self.has("marker")
        if len(numbers) == 2 or is_site_called_na:
            return "categorical"
        may_be_codes = refuse_codes and len(numbers) in CODE_COUNTS
        may_be_codes = may_be_codes and bool((np.abs(numbers) < LARGEST_CODE).all())
        if may_be_codes and (numbers % 1 == 0).all():
            raise TableError(_code_note(self.name, numbers))
        return "numeric"

    def to_numbers(self) -> NDArray[np.float64]:
        """Return the number of each row, shape `(n,)`, NaN where a cell is missing."""
        # Code -1, a missing cell, selects the NaN at the end.
        numbers = np.append(self.numbers, np.nan)[self.codes]
        notes = [self._text_note()] if self.has(*_NO_NUMBERS) else []
        if rows := tuple(np.flatnonzero(np.isinf(numbers)).tolist()):
            text = f"Column {self.name!r} is infinite in {format_rows(rows)}."
            fix = "Write a finite number or leave it empty."
            notes.append(Note("infinite", self.name, text, fix, rows))
        if notes:
            raise TableError(*notes)
        return numbers

    def to_levels(self) -> NDArray[np.object_]:
        """Return the text of each row's level, shape `(n,)`, None where a cell is missing."""
        texts = np.array([*map(level_text, self.values), None], dtype=object)
        texts[:-1][self.contents == "empty"] = None
        if self.has("number", "truth") and not self.has(*_NO_NUMBERS, "code"):
            texts[:-1][self.contents == "marker"] = None
        return texts[self.codes]

    def has(self, *contents: _Content) -> bool:
        """Return True if a cell has one of these contents."""
        return any((self.contents == content).any() for content in contents)

    def cells(self, *contents: _Content) -> list[str]:
        """Return the texts of the distinct cells of these contents."""
        pairs = zip(self.values, self.contents, strict=True)
        return [str(value).strip() for value, content in pairs if content in contents]

    def rows(self, *contents: _Content) -> tuple[int, ...]:
        """Return the rows whose cells have one of these contents."""
        places = [place for place, content in enumerate(self.contents) if content in contents]
        return tuple(np.flatnonzero(np.isin(self.codes, places)).tolist())

    def _text_note(self) -> Note:
        """Return a note on the texts, decimal commas or dates that stand where numbers should."""
        name, contents = self.name, (*_NO_NUMBERS, "truth")
        rows = self.rows(*contents)
        if not self.has("text", "comma", "truth"):
            text = f"Column {name!r} holds dates in {format_rows(rows)}."
            fix = f"Write the age or time in years, or keep the text: text=[{name!r}]."
            return Note("date", name, text, fix, rows)
        listed = format_names(self.cells(*contents))
        text = f"Column {name!r} has texts instead of numbers: {listed} in {format_rows(rows)}."
        fix = (
            "Leave these cells empty, as pandas.to_numeric(values, errors='coerce') does, or write "
            f"types={{{name!r}: 'categorical'}} if the column holds levels."
        )
        if self.has("comma"):
            fix = "Write decimal points; pandas.read_csv(path, sep=';', decimal=',') makes them."
        return Note("text", name, text, fix, rows)


def _are_numbers(cells: list[Any]) -> bool:
    """Return True if all cells are texts of numbers without leading zeros or blanks."""
    if not all(type(cell) is str for cell in cells):
        return False
    lines = "".join(f"{cell}\n" for cell in cells)
    # A cell may hold two lines.
    return lines.count("\n") == len(cells) and _NUMBERS.fullmatch(lines) is not None


def _parse(cell: object) -> tuple[_Content, float]:
    """Return what a cell is, and the number that it stands for, or NaN."""
    if isinstance(cell, str):
        return _parse_text(cell.strip().lower())
    if is_missing(cell):
        return "empty", np.nan
    if isinstance(cell, (bool, np.bool_)):
        return "truth", float(cell)
    if isinstance(cell, _NUMBER_TYPES):
        try:
            return "number", float(cell)
        except OverflowError:
            return "number", np.inf
    if isinstance(cell, _DATE_TYPES):
        return "date", np.nan
    if isinstance(cell, pd.Interval):
        return "text", np.nan
    raise TypeError("A cell must hold one number, text, truth value or date.")


def _parse_text(text: str) -> tuple[_Content, float]:
    if number := _NUMBER.fullmatch(text):
        return ("code" if number[1] else "number"), float(text)
    if text in ("true", "false"):
        return "truth", float(text == "true")
    if not text or text in _MISSING_AMONG_NUMBERS:
        return ("marker" if text else "empty"), np.nan
    if _DECIMAL_COMMA.fullmatch(text):
        return "comma", np.nan
    return ("date" if _DATE.fullmatch(text) else "text"), np.nan


def _level_order(level: str) -> tuple[float, str]:
    """Sort levels that are numbers by size and before the others: 2, 10, A."""
    return (float(level) if _NUMBER.fullmatch(level) else np.inf, level)


def _code_note(name: str, numbers: NDArray[np.float64]) -> Note:
    listed = ", ".join(level_text(number) for number in numbers)
    text = f"Column {name!r} has the whole numbers {listed}: amounts, or codes of levels?"
    amounts, codes = f"types={{{name!r}: 'numeric'}}", f"types={{{name!r}: 'categorical'}}"
    return Note("code", name, text, f"Write {amounts} or {codes}.")
