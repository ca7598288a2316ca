"""Parquet files and workbooks are read as the same table in a CSV file is."""

import datetime as dt

import numpy as np
import openpyxl
import pandas as pd
import pytest

import deconfound as dc
from deconfound.data import open_table, read_table
from deconfound.errors import DeconfoundWarning, TableError


def workbook(folder, *rows):
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.save(folder / "t.xlsx")
    return folder / "t.xlsx"


@pytest.mark.parametrize("word", ["NA", "#N/A", "NULL", "None", "<NA>", ".", " na "])
def test_words_for_nothing_are_empty_among_numbers_whatever_holds_the_table(tmp_path, word):
    texts = pd.DataFrame({"age": ["61.5", word, "70"], "site": ["A", word, "B"], "code": ["007", word, "8"]})
    texts.to_parquet(tmp_path / "t.parquet")
    sheet = workbook(tmp_path, ["age", "site", "code"], [61.5, "A", "007"], [word, word, word], [70, "B", "8"])
    mixed = texts.assign(age=[61.5, word, 70])
    for table in (tmp_path / "t.parquet", sheet, mixed, texts):
        columns = read_table(table)
        assert np.array_equal(columns["age"], [61.5, np.nan, 70.0], equal_nan=True)
        name = None if table is sheet and word == "#N/A" else word  # in a sheet that is an error, no text
        assert columns["site"].tolist() == ["A", name, "B"]
        assert columns["code"].tolist() == ["007", name, "8"]
    assert read_table(mixed, ["age"])["age"].tolist() == ["61.5", word.strip(), "70"]
    named = texts.assign(age=pd.Categorical(texts["age"]))
    assert read_table(named)["age"].tolist() == ["61.5", word, "70"]


def test_a_column_that_a_workbook_has_twice_is_refused_as_in_csv(tmp_path):
    path = workbook(tmp_path, ["dx", "x", "dx "], [0, 1.5, 0], [1, 2.5, 1])
    said = r"t\.xlsx must name every column once; got 'dx' as columns 1 and 3\. Rename or delete one of them\.$"
    with pytest.raises(TableError, match=said):
        read_table(path)
    assert list(read_table(workbook(tmp_path, ["dx", "dx.1"], [0, 1]))) == ["dx", "dx.1"]


def test_dates_of_files_are_the_text_of_a_csv_file(tmp_path):
    frame = pd.DataFrame(
        {
            "x": [1.5, 2.5, 3.5],
            "born": pd.to_datetime(["1950-01-31", None, "1961-12-01"]),
            "scanned": pd.to_datetime(["2020-01-01 10:00:00", "2020-01-02 11:30:15", None]),
            "visit": [dt.date(2020, 1, 1), None, dt.date(2020, 2, 2)],
        }
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_excel(tmp_path / "t.xlsx", index=False)
    expected = {name: column.tolist() for name, column in read_table(tmp_path / "t.csv").items()}
    assert expected["born"] == ["1950-01-31", None, "1961-12-01"]
    for ending in ("parquet", "xlsx"):
        columns = read_table(tmp_path / f"t.{ending}")
        assert {name: column.tolist() for name, column in columns.items()} == expected


def test_lists_in_a_file_do_no_harm_until_they_are_named(tmp_path):
    path = tmp_path / "t.parquet"
    frame = pd.DataFrame({"dx": [0, 1, 0], "codes": [[1], [2, 3], None], "x": [0.5, 1.5, 2.5]})
    frame.assign(wait=pd.to_timedelta([1, 2, 3], unit="s")).to_parquet(path)
    source = open_table(path, roles=["dx"])
    assert source.names == ("x",)
    assert [(note.kind, note.column) for note in source.notes] == [("left out", "codes"), ("left out", "wait")]
    with pytest.raises(TableError, match=r"data\.features must be columns of numbers; got 'codes', which holds \[1\]"):
        open_table(path, features=["codes"])
    with pytest.raises(TableError, match=r"column 'codes' must hold numbers, booleans or text; got \[1\]"):
        dc.Design(["codes"]).fit(source.table)


def test_commas_that_may_separate_thousands_are_told(tmp_path):
    path = tmp_path / "t.tsv"
    path.write_text("id\tvolume\n1\t905\n2\t1,007\n3\t\n")
    said = (
        r"t\.tsv: column 'volume' is read with a decimal comma, 1,007 as 1\.007; but 905 has no comma, .* If it does, "
        r"write 1007; if it is a decimal comma, write 905,0 as well\."
    )
    with pytest.warns(DeconfoundWarning, match=said):
        columns = read_table(path)
    assert columns["volume"].tolist()[:2] == [905, 1.007]
    assert read_table(path, ["volume"])["volume"].tolist() == ["905", "1,007", None]


@pytest.mark.parametrize("cells", [("905,0", "1,007"), ("905", "0,007"), ("2,905", "1,007"), ("905", "1,00")])
def test_decimal_commas_that_can_be_nothing_else_are_read_without_a_word(tmp_path, cells):
    (tmp_path / "t.tsv").write_text("id\tvolume\n" + "".join(f"a\t{cell}\n" for cell in cells))
    expected = [float(cell.replace(",", ".")) for cell in cells]
    assert read_table(tmp_path / "t.tsv")["volume"].tolist() == expected
