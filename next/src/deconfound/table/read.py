"""Reading tables: files, DataFrames, mappings, pyarrow and polars, all to the same columns."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
from pandas.api.extensions import ExtensionArray

from deconfound.errors import OptionError, TableError, import_extra, nearest_names
from deconfound.table.files import read_file
from deconfound.table.kinds import Kind, to_levels, type_column
from deconfound.table.notes import Note, format_list, notes_of

# A path, a pandas DataFrame, a mapping from names to values, a pyarrow.Table, a polars.DataFrame.
Table = Any

_SAMPLE_NAME = re.compile(r"[A-Za-z_-]*\d[\w-]*")


def read_table(
    source: Table,
    columns: Sequence[str] | None = None,
    *,
    types: Mapping[str, Kind] | None = None,
    text: Sequence[str] = (),
    separator: str | None = None,
) -> pd.DataFrame:
    """Read a table into a DataFrame whose dtype is the kind of each column.

    Numeric columns are `float64`, and all others are categories of text levels. A missing cell is
    NaN in both. Texts, truth values, pandas categories and columns with two distinct values are
    categorical; other numbers are numeric. The rows keep their order and a DataFrame its index.

    Args:
        source: A path (.csv, .tsv, .txt, .parquet, .xlsx), a DataFrame of pandas or polars, a
            pyarrow table, or a mapping from column names to values.
        columns: The columns to read. Whole numbers with 3 to 10 distinct values and no entry in
            `types` are then an error, because sites that are read as amounts spoil every result
            without a sign. None reads all columns, and takes such numbers as numbers.
        types: The kind of single columns, "numeric" or "categorical", where the rule is wrong.
        text: Columns that stay text, such as ids and file names. They are read in any case.
        separator: The separator of a text file; None finds it in the first line.

    Raises:
        TableError: Lists all faults of the table, each with what to write instead.

    Example:
        >>> table = read_table({"age": [63, 71, 58], "site": ["UCL", "NA", None]})
        >>> table["age"].tolist(), table["site"].cat.categories.tolist()
        ([63.0, 71.0, 58.0], ['NA', 'UCL'])
        >>> read_table({"site": [1, 2, 3]}, types={"site": "categorical"})["site"].tolist()
        ['1', '2', '3']
    """
    types = dict(types or {})
    _refuse_text("columns", columns)
    _refuse_text("text", text)
    for name, kind in types.items():
        if kind not in get_args(Kind):
            raise OptionError(f"types[{name!r}] is {kind!r}. Write 'numeric' or 'categorical'.")
    # A column of ids is read although it is no column of the analysis.
    names = None if columns is None else list(dict.fromkeys([*columns, *text]))
    raw = _read_columns(source, names, separator)
    notes: list[Note] = []
    if columns is None:
        notes += [_absent_note(name, raw) for name in [*types, *text] if name not in raw]
    table = {}
    for name, values in raw.items():
        try:
            if name in text:
                table[name] = pd.Series(to_levels(values), values.index, dtype=object, name=name)
            else:
                table[name] = type_column(values, name, types.get(name), columns is not None)
        except TableError as error:
            notes += notes_of(error)
    if notes:
        raise TableError(*notes)
    return pd.DataFrame(table)


def read_columns(
    source: Table, columns: Sequence[str] | None = None, *, optional: Sequence[str] = ()
) -> dict[str, pd.Series]:
    """Return the raw columns of a table by name, all of one length, without deciding their kinds.

    Args:
        source: Any table that `read_table` reads. Values of a mapping are lists, tuples, NumPy
            arrays (also masked ones), pandas, pyarrow or polars columns, or PyTorch tensors.
        columns: The columns to read; None reads all. Other entries of a mapping are not touched.
        optional: Columns to read as well if the table has them.

    Raises:
        TableError: Lists all columns that are absent or have another shape than `(n,)`.

    Example:
        >>> read_columns({"age": (63, 71), "image": None}, ["age"])["age"].tolist()
        [63, 71]
    """
    return _read_columns(source, columns, None, optional)


def _read_columns(
    source: Table,
    columns: Sequence[str] | None,
    separator: str | None,
    optional: Sequence[str] = (),
) -> dict[str, pd.Series]:
    _refuse_text("columns", columns)
    names, values = _open(source, separator)
    if columns is not None:
        columns = [*columns, *(name for name in optional if name in names)]
    places = {name: place for place, name in enumerate(names)}
    if not places:
        raise TableError(Note("source", "", "The table has no columns.", "Pass named columns."))
    counts = Counter(names)
    notes: list[Note] = []
    series = {}
    for name in dict.fromkeys(names if columns is None else columns):
        if name not in places:
            notes.append(_absent_note(name, names))
        elif counts[name] > 1:
            text = f"The table has {counts[name]} columns {name!r}."
            notes.append(Note("column", name, text, "Give each column another name."))
        else:
            try:
                series[name] = _to_series(values[places[name]], name)
            except TableError as error:
                notes += notes_of(error)
    if any(note.kind == "column" for note in notes):
        notes += _transposed_notes(names, values[0])
    notes += _length_notes(series)
    with_index = [name for name in series if isinstance(values[places[name]], pd.Series)]
    notes += _index_notes({name: series[name].index for name in with_index})
    if notes:
        raise TableError(*notes)
    # Arrays have no row names of their own and get those of the pandas columns beside them.
    index = series[with_index[0]].index if with_index else None
    return {
        name: column if index is None else column.set_axis(index) for name, column in series.items()
    }


def _open(source: Table, separator: str | None) -> tuple[list[str], list[Any]]:
    """Return the names and the values of all columns of a table."""
    if isinstance(source, str) and ("\n" in source or len(source) > 1000):
        raise TableError(_source_note("a long text, which is no path"))
    if isinstance(source, (str, os.PathLike)):
        source = read_file(Path(source), separator)
    elif _is_arrow(source) and hasattr(source, "to_pandas"):
        source = _to_pandas(source)
    if isinstance(source, pd.DataFrame):
        # By position, because a name that occurs twice would select two columns.
        values = [source.iloc[:, place] for place in range(source.shape[1])]
        return [str(label) for label in source.columns], values
    if isinstance(source, Mapping):
        return [str(key) for key in source], list(source.values())
    raise TableError(_source_note(f"an object of type {type(source).__name__}"))


def _is_arrow(values: object) -> bool:
    """Return True for tables and columns of pyarrow and polars, without importing either."""
    return type(values).__module__.split(".")[0] in ("pyarrow", "polars")


def _to_pandas(values: Any) -> Any:
    import_extra("pyarrow", "files")
    # Whole numbers with missing cells would become floats, which cannot hold long ids.
    return values.to_pandas(integer_object_nulls=True)


def _to_array(values: Any, name: str) -> Any:
    """Return an array, a pandas Series or another array of pandas from one column of any kind."""
    if hasattr(values, "detach"):  # A tensor of PyTorch. NumPy has no bfloat16.
        values = values.detach().cpu()
        return (values.float() if "bfloat16" in str(values.dtype) else values).numpy()
    if _is_arrow(values):
        return _to_pandas(values)
    if isinstance(values, np.ma.MaskedArray):
        cells = values.data.astype(object)
        cells[np.ma.getmaskarray(values)] = None
        return cells
    if isinstance(values, (list, tuple, range)):
        # Otherwise [1, "A"] would become texts, and [2**60, None] floats.
        return pd.Series(list(values), dtype=object)
    if isinstance(values, (pd.Series, pd.Index, ExtensionArray)):
        return values
    if not hasattr(values, "__array__"):
        raise TableError(_values_note(name, f"of type {type(values).__name__}"))
    return np.asarray(values)


def _to_series(values: Any, name: str) -> pd.Series:
    """Return one column as a pandas Series; what is not a column of single cells is refused."""
    values = _to_array(values, name)
    if values.ndim != 1:
        raise TableError(_values_note(name, f"an array of shape {tuple(values.shape)}"))
    if values.dtype.kind == "c":
        raise TableError(_values_note(name, "complex numbers"))
    if values.dtype.kind == "S":
        try:
            values = np.char.decode(values, "utf-8")
        except UnicodeError:
            raise TableError(_values_note(name, "bytes that are not UTF-8 text")) from None
    if values.dtype == np.float16:  # pandas cannot find the distinct values of halves.
        values = values.astype(np.float32)
    return pd.Series(values, name=name)


def _length_notes(series: Mapping[str, pd.Series]) -> list[Note]:
    """Return a note if columns have no rows or unequal numbers of rows."""
    examples: dict[int, str] = {}
    for name, values in series.items():
        examples.setdefault(len(values), name)
    if list(examples) == [0]:
        return [Note("length", "", "The table has no rows.", "Give it one row per sample.")]
    if len(examples) < 2:
        return []
    listed = format_list([f"{name!r} has {rows}" for rows, name in examples.items()])
    text = f"The columns have unequal numbers of rows: {listed}."
    return [Note("length", "", text, "Give each column one value per row.")]


def _index_notes(indexes: Mapping[str, pd.Index]) -> list[Note]:
    """Return a note if pandas columns name their rows differently, so that no pairing is safe."""
    first = next(iter(indexes), "")
    others = [name for name, index in indexes.items() if not index.equals(indexes[first])]
    if not others:
        return []
    text = f"Columns {first!r} and {others[0]!r} have different row names (pandas indexes)."
    fix = "Join them in one DataFrame first, or drop the names: values.to_numpy()."
    return [Note("length", others[0], text, fix)]


def _transposed_notes(names: Sequence[str], first_column: Any) -> list[Note]:
    """Return a note if the table may have one column per sample instead of one row."""
    rows = len(first_column) if isinstance(first_column, pd.Series) else len(names)
    sample_names = [name for name in names if _SAMPLE_NAME.fullmatch(name)]
    if len(names) < 3 * rows or len(sample_names) < 0.8 * len(names):
        return []
    text = f"The table has {rows} rows, and {len(names)} columns with names like ids of samples."
    return [Note("source", "", text, "If each column is one sample, pass the DataFrame table.T.")]


def _source_note(description: str) -> Note:
    """Return a note that does not show the source: it may hold the data of patients."""
    fix = "Pass a path, a DataFrame, or a mapping such as {'age': ages, 'site': sites}."
    return Note("source", "", f"A table cannot be read from {description}.", fix)


def _absent_note(name: str, names: Iterable[str]) -> Note:
    """Return a note with similar names. A table without a line of names has patients for names."""
    text = f"There is no column {name!r}."
    fix = nearest_names(name, names)
    if not fix.startswith("Did you mean"):
        fix = "Check that the first line of the table holds the names of its columns."
    return Note("column", name, text, fix)


def _values_note(name: str, description: str) -> Note:
    text = f"The values of column {name!r} are {description}."
    return Note("length", name, text, "Pass a list or a real array of shape (n,).")


def _refuse_text(option: str, names: Sequence[str] | None) -> None:
    """Refuse one name without brackets, which is also a sequence: of letters."""
    if isinstance(names, str):
        raise OptionError(f"{option} is the text {names!r}. Write {option}=[{names!r}].")
    wrong = [name for name in names or () if not isinstance(name, str)]
    if wrong:
        raise OptionError(f"{option} must be names of columns; got a {type(wrong[0]).__name__}.")
