"""Every source gives the same table: files, DataFrames, mappings, pyarrow and polars."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars
import pyarrow
import pyarrow.parquet
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deconfound.errors import TableError
from deconfound.table import read_columns, read_table


def write_csv(columns: dict[str, list[Any]], folder: Path) -> Path:
    path = folder / "people.csv"
    pd.DataFrame(columns, dtype=object).to_csv(path, index=False)
    return path


def write_tsv(columns: dict[str, list[Any]], folder: Path) -> Path:
    path = folder / "people.tsv.gz"
    pd.DataFrame(columns, dtype=object).to_csv(path, index=False, sep="\t")
    return path


def write_parquet(columns: dict[str, list[Any]], folder: Path) -> Path:
    path = folder / "people.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def write_workbook(columns: dict[str, list[Any]], folder: Path) -> Path:
    path = folder / "people.xlsx"
    pd.DataFrame(columns, dtype=object).to_excel(path, index=False)
    return path


SOURCES: dict[str, Callable[[dict[str, list[Any]], Path], Any]] = {
    "csv": write_csv,
    "tsv.gz": write_tsv,
    "parquet": write_parquet,
    "mapping": lambda columns, folder: columns,
    "DataFrame": lambda columns, folder: pd.DataFrame(columns),
    "pyarrow": lambda columns, folder: pyarrow.table(columns),
    "pyarrow columns": lambda columns, folder: dict(pyarrow.table(columns).to_pydict()),
    "polars": lambda columns, folder: polars.DataFrame(columns),
    "polars columns": lambda columns, folder: polars.DataFrame(columns).to_dict(),
}

# Texts of letters: what looks like a number or a date has tests of its own.
LEVELS = st.text("ABCÄß ,;'\"", min_size=1, max_size=5).map(str.strip).filter(bool)
ROWS = st.tuples(
    st.none() | st.floats(allow_nan=False, allow_infinity=False, width=64),
    st.none() | LEVELS,
    st.none() | st.booleans(),
    st.none() | st.integers(-(2**53), 2**53),
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=st.lists(ROWS, min_size=1, max_size=8))
def test_round_trip(rows: list[tuple[Any, ...]], tmp_path: Path) -> None:
    """Acceptance 18. Kills the mutants that lose digits, a missing cell, or a level's text."""
    names = ["dose", "site", "smoker", "count"]
    columns = {
        name: list(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)
    }
    expected = read_table(columns)
    doses = [np.nan if dose is None else dose for dose in columns["dose"]]
    if len(set(doses) - {np.nan}) != 2:
        assert expected["dose"].tolist() == pytest.approx(doses, rel=0, abs=0, nan_ok=True)
    for name, write in SOURCES.items():
        table = read_table(write(columns, tmp_path))
        pd.testing.assert_frame_equal(table, expected, obj=name, check_exact=True)


def test_workbook_is_read_like_a_file(tmp_path: Path) -> None:
    columns = {"id": ["007", "8", "NA"], "age": [63, 61.25, 58.5], "site": ["NA", "B", ""]}
    table = read_table(write_workbook(columns, tmp_path), text=["id"])
    pd.testing.assert_frame_equal(table, read_table(columns, text=["id"]))
    assert table["id"].tolist() == ["007", "8", "NA"]


def test_workbook_with_two_filled_sheets_is_refused(tmp_path: Path) -> None:
    """The control has the same table beside an empty sheet."""
    path, table = tmp_path / "people.xlsx", pd.DataFrame({"age": [61, 72.5, 83]})
    for second, is_refused in ((table, True), (pd.DataFrame(), False)):
        with pd.ExcelWriter(path) as writer:
            second.to_excel(writer, sheet_name="notes", index=False)
            table.to_excel(writer, sheet_name="people", index=False)
        if is_refused:
            with pytest.raises(TableError, match="'notes', 'people'"):
                read_table(path)
        else:
            assert read_table(path)["age"].tolist() == [61, 72.5, 83]


def test_long_whole_numbers_keep_their_digits(tmp_path: Path) -> None:
    """Kills the mutant that lets pyarrow turn whole numbers with gaps into floats."""
    columns = {"id": [2**60 + 1, None, 5], "age": [61.0, 72.5, 83.0]}
    for write in (write_csv, write_parquet, SOURCES["pyarrow"], SOURCES["polars"]):
        table = read_table(write(columns, tmp_path), text=["id"])
        assert table["id"].tolist() == [str(2**60 + 1), None, "5"]


def test_rows_keep_their_order_and_index() -> None:
    frame = pd.DataFrame({"age": [3.5, 1.5, 2.5], "id": ["c", "a", "b"]}, index=["z", "x", "y"])
    table = read_table(frame, ["age"], text=["id"])
    assert table.index.tolist() == ["z", "x", "y"]
    assert table["age"].tolist() == [3.5, 1.5, 2.5]
    assert table["id"].tolist() == ["c", "a", "b"]
    assert frame["age"].tolist() == [3.5, 1.5, 2.5]


def test_columns_alone_are_touched() -> None:
    """A batch may carry images beside its columns. The control asks for the images."""
    batch = {"image": torch.zeros(2, 1, 4, 4), "age": torch.tensor([61, 72]), "note": object()}
    assert read_columns(batch, ["age"])["age"].tolist() == [61, 72]
    with pytest.raises(TableError, match=r"'image' are an array of shape \(2, 1, 4, 4\)"):
        read_columns(batch, ["age", "image"])


def test_absent_columns_are_named_together() -> None:
    """Acceptance 45. Kills the mutant that stops at the first absent column."""
    with pytest.raises(TableError) as caught:
        read_table({"age": [1, 2], "site": ["A", "B"]}, ["aeg", "sitee", "age"])
    assert [note.column for note in caught.value.faults] == ["aeg", "sitee"]
    assert "Did you mean 'site'?" in str(caught.value)


@pytest.mark.parametrize("values", [5, "abc", b"abc", {1, 2}, np.array(5), np.zeros((2, 1)), None])
def test_values_must_be_a_column(values: object) -> None:
    with pytest.raises(TableError, match=r"column 'x' are .* Pass a list or a real array"):
        read_columns({"x": values})


@pytest.mark.parametrize(
    "source", [3, [1, 2], np.zeros((2, 2)), "age\n63\n", "secret" * 1000, None]
)
def test_unknown_sources_are_named_by_type_alone(source: object) -> None:
    """Faults 2: no value of a source that was not understood gets into a log."""
    with pytest.raises(TableError) as caught:
        read_table(source)
    assert "63" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_empty_tables_are_refused() -> None:
    """Acceptance 45."""
    for source in ({}, pd.DataFrame(), pd.DataFrame(index=[1, 2])):
        with pytest.raises(TableError, match="no columns"):
            read_table(source)
    for source in ({"age": []}, pd.DataFrame({"age": []}), pyarrow.table({"age": []})):
        with pytest.raises(TableError, match="no rows"):
            read_table(source)


def test_columns_that_do_not_fit_together_are_refused() -> None:
    """Kills the mutant that pairs two pandas columns by position. The control has one order."""
    with pytest.raises(TableError, match="'age' has 2, 'site' has 3"):
        read_columns({"age": [1, 2], "site": ["A", "B", "C"]})
    age = pd.Series([61, 72], index=["x", "y"])
    with pytest.raises(TableError, match="different row names"):
        read_columns({"age": age, "site": pd.Series(["A", "B"], index=["y", "x"])})
    columns = read_columns({"age": age, "site": pd.Series(["A", "B"], index=["x", "y"])})
    assert columns["site"].index.tolist() == ["x", "y"]


def test_a_column_named_twice_is_refused() -> None:
    frame = pd.DataFrame([[1, 2, 3.5], [4, 5, 6.5], [7, 8, 9]], columns=["dx", "dx", "age"])
    with pytest.raises(TableError, match="2 columns 'dx'"):
        read_table(frame)
    assert read_table(frame, ["age"])["age"].tolist() == [3.5, 6.5, 9]


def test_a_table_with_a_column_per_sample_is_asked_about_transposing() -> None:
    """Faults 7. The control is an absent column of a tall table."""
    wide = pd.DataFrame(np.ones((3, 40)), columns=[f"sub-{n:03d}" for n in range(40)])
    with pytest.raises(TableError, match=r"table\.T") as caught:
        read_table(wide, ["age", "sex"])
    assert len(str(caught.value).splitlines()) <= 10
    with pytest.raises(TableError) as caught:
        read_table(wide.T.rename(columns=str), ["age"])
    assert "table.T" not in str(caught.value)
