"""Tables in text files: read right whatever parts their cells, and refused in words where they are broken."""

import numpy as np
import pandas as pd
import pytest

from deconfound.auditing.files import read_file
from deconfound.data import open_array, open_table, read_table
from deconfound.errors import TableError

FRAME = pd.DataFrame(
    {"id": ["01", "02", "03"], "age": [61.5, 70.25, 55.0], "site, city": ["A", "B, C", "A"], "dx": [0, 1, 1]}
)


def plain(columns):
    return {name: np.asarray(columns[name]).tolist() for name in columns}


EXPECTED = list(plain(FRAME).items())


@pytest.mark.parametrize("ending", ["csv", "tsv", "txt"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_any_delimiter_is_read_whatever_the_ending_says_by_runs_and_audits_alike(tmp_path, ending, separator):
    path = tmp_path / f"table.{ending}"
    FRAME.to_csv(path, sep=separator, index=False)
    assert list(plain(read_table(path, ["id"])).items()) == EXPECTED
    assert list(plain(read_file(path, ["id"]).columns).items()) == EXPECTED


@pytest.mark.parametrize("separator", [";", "\t"])
def test_decimal_commas_are_numbers_where_commas_part_no_cells(tmp_path, separator):
    path = tmp_path / "excel.csv"
    path.write_text(FRAME.to_csv(sep=separator, decimal=",", index=False).replace("\n", "\r\n"), encoding="utf-8-sig")
    assert list(plain(read_table(path, ["id"])).items()) == EXPECTED
    assert list(plain(read_file(path, ["id"]).columns).items()) == EXPECTED


def test_commas_inside_text_leave_points_as_decimals(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("visits;age\n1,2;60.5\n3;61.5\n")
    assert read_table(path)["visits"].tolist() == ["1,2", "3"]
    assert read_file(path).columns["age"].tolist() == [60.5, 61.5]


@pytest.mark.parametrize("separator", [",", ";"])
def test_the_row_numbers_that_pandas_writes_and_a_delimiter_at_every_end_are_no_columns(tmp_path, separator):
    path = tmp_path / "table.csv"
    path.write_text(FRAME.to_csv(sep=separator).replace("\n", f"{separator}\n"))
    assert list(plain(read_table(path, ["id"])).items()) == EXPECTED
    assert list(plain(read_file(path, ["id"]).columns).items()) == EXPECTED
    assert open_table(path, id="id", roles=["dx", "site, city"]).names == ("age",)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a,b,a,c,b\n1,2,3,4,5\n", "name every column once; got 'a' as columns 1 and 3, 'b' as columns 2 and 5"),
        (
            "a,b\n1,2\n1,2,3\n",
            r"2 cells in every line, separated by the comma; got 3 in line 3\. Complete it, or quote",
        ),
        ("a,b\n\n1,2\n1\n", r"got 1 in line 4\."),
        ("a;b\n1;2\n1\n", "separated by the semicolon"),
        ('a,b\n"1\n1",2\n"1",\n1\n', r"got 1 in line 5\."),
        ("a,b,\n1,2,3\n", "must name every column; got none for column 3, which has cells"),
        ("a,b\n", "must have a line of column names and at least one row; got 1 lines"),
        ("", "at least one row; got 0 lines"),
        ("\n\n", "at least one row; got 0 lines"),
        (",\n1,\n", "must have a line of column names; got empty ones"),
        ('a,b\n1,"2\n3,4\n5,6\n', r"close every quote .* got a stray one in line 2 \(unexpected end of data\)"),
        ('a,b\n1,"x"2\n3,4\n', "got a stray one in line 2"),
        ('a,b\n1,"2\n3,4\n5,6"\n7,8\n', r"in line 2 \(it closes in line 4 only, and the lines between look like rows"),
        ('a\n"1\n2"\n', "got a stray one in line 2"),
    ],
)
def test_broken_tables_are_named_with_their_line(tmp_path, text, fault):
    path = tmp_path / "table.csv"
    path.write_text(text)
    for reader in (read_table, read_file):
        with pytest.raises(TableError, match=fault):
            reader(path)


def test_every_id_that_is_there_twice_is_named_with_its_rows(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("id,x\na,1\nb,2\na,3\nb,4\n,5\na,6\n")
    with pytest.raises(
        TableError, match="every 'id' once; got 'a' in rows 0, 2, 5, 'b' in rows 1, 3, an empty cell in row 4"
    ):
        open_table(path, id="id")
    path.write_text("id,x\n" + "".join(f"{k},{k}\n" for k in range(9)) * 2)
    with pytest.raises(TableError, match=r"'4' in rows 4, 13 and 4 more\. Use an id that names each row"):
        open_table(path, id="id")


@pytest.mark.parametrize("word", ["NA", "#N/A", "NULL", "None", "<NA>", ".", " NA "])
def test_words_for_nothing_are_empty_among_numbers_and_levels_among_names(tmp_path, word):
    path = tmp_path / "table.csv"
    path.write_text(f"age,site\n60.5,A\n{word},{word}\n61,B\n")
    for columns in (read_table(path), read_file(path).columns):
        assert np.array_equal(columns["age"], [60.5, np.nan, 61.0], equal_nan=True)
        assert columns["site"].tolist() == ["A", word.strip(), "B"]


def test_blanks_around_text_are_no_part_of_it_and_codes_with_underscores_are_text(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("id , sex,code\n01, F,1_1\n02,F ,1_2\n")
    for columns in (read_table(path, ["id"]), read_file(path, ["id"]).columns):
        assert columns["id"].tolist() == ["01", "02"]
        assert columns["sex"].tolist() == ["F", "F"]
        assert columns["code"].tolist() == ["1_1", "1_2"]


def test_every_reader_takes_nan_and_truths_for_the_same(tmp_path):
    """The text, Parquet, and a table in memory: nan is missing among names too, TRUE and FALSE are booleans."""
    (tmp_path / "t.csv").write_text("site,smoker,age,n\nA,TRUE,nan,1\nNaN,false,61,2\n")
    frame = pd.DataFrame({"site": ["A", "nan"], "smoker": [True, False], "age": [np.nan, 61.0], "n": [1, 2]})
    frame.to_parquet(tmp_path / "t.parquet")
    for columns in (read_table(tmp_path / "t.csv"), read_table(tmp_path / "t.parquet"), read_table(frame)):
        assert columns["site"].tolist() == ["A", None]
        assert columns["smoker"].dtype == bool
        assert columns["smoker"].tolist() == [True, False]
        assert np.isnan(columns["age"][0])
        assert columns["n"].dtype == np.int64
    assert read_table(frame, ["n"])["n"].tolist() == ["1", "2"]


def test_numbers_that_name_rows_or_people_are_no_features_unless_they_are_asked_for(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("id,Subject_ID,x\n1,7,0.5\n2,8,0.25\n")
    assert open_table(path).names == ("x",)
    assert open_table(path, features=["id", "x"]).names == ("id", "x")


def test_ids_of_an_array_that_the_table_lacks_are_named(tmp_path):
    FRAME.to_csv(tmp_path / "table.csv", index=False)
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 2)), scan=["01", "02", "03"])
    with pytest.raises(TableError, match=r"data\.id in table\.csv must be columns of the table; got 'scan'"):
        open_array(tmp_path / "x.npz", table=tmp_path / "table.csv", id="scan")
