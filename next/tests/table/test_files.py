"""Files: what is damaged is named with its line; nothing is guessed, lost or shifted."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from deconfound.errors import OptionError, TableError
from deconfound.table import check_table, read_table

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file of text or bytes and return its path."""

    def write_file(content: str | bytes, name: str = "people.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("comma.csv", "id,age\n007,3.5\n008,4.25\n010,5\n009,\n"),
        ("semicolon.csv", '"id";"age"\n007;3.5\n008;4.25\n010;5\n009;\n'),
        ("tab.txt", "id\tage\n007\t3.5\n008\t4.25\n010\t5\n009\t\n"),
        ("bids.tsv", "id\tage\n007\t3.5\n008\t4.25\n010\t5\n009\tn/a\n"),
        ("bom.csv", "\ufeffid,age\r\n007,3.5\r\n008,4.25\r\n010,5\r\n009,\r\n"),
        ("blank.csv", "\n id, age \n007, 3.5\n\n008,4.25\n010,5\n009,NA\n\n"),
        ("row_names.csv", ',id,age\n1,"007",3.5\n2,"008",4.25\n4,"010",5\n3,"009",\n'),
        ("quotes.csv", '"id","age"\n"007","3.5"\n"008","4.25"\n"010","5"\n"009",""\n'),
    ],
)
def test_forms_of_text_files(write: Write, name: str, content: str) -> None:
    table = read_table(write(content, name), text=["id"])
    assert table.columns.tolist() == ["id", "age"]
    assert table["id"].tolist() == ["007", "008", "010", "009"]
    np.testing.assert_array_equal(table["age"], [3.5, 4.25, 5, np.nan])


def test_compressed_file(write: Write) -> None:
    packed = gzip.compress(b"age\n3.5\n4.25\n5\n")
    assert read_table(write(packed, "people.csv.gz"))["age"].tolist() == [3.5, 4.25, 5]
    for damaged in (packed[:-9], b"age\n3.5\n", packed[:12] + b"xxxx" + packed[16:]):
        with pytest.raises(TableError, match="cannot be read"):
            read_table(write(damaged, "damaged.csv.gz"))


def test_texts_keep_separators_and_quotes(write: Write) -> None:
    table = read_table(write('site,age\n"Ulm, ""A""",3.5\nBonn,4.5\n"Bad\nUrach",5\n'))
    assert table["site"].tolist() == ['Ulm, "A"', "Bonn", "Bad\nUrach"]


@pytest.mark.parametrize(
    "content",
    [
        "id,sex,age\na,F,61\nb,M,72,x\nc,F,83\n",  # one cell too many
        "id,sex,age\na,F,61\nb,72\nc,F,83\n",  # one too few
        "id,sex,age\na,F,61\nb,M,72,\nc,F,83\n",  # a comma at the end
    ],
)
def test_a_line_of_another_length_is_named(write: Write, content: str) -> None:
    """Kills the mutants that fill a short line, or drop the first or last cell of a long one."""
    with pytest.raises(TableError, match=r"has 3 cells, but line 3 has [24]\."):
        read_table(write(content))


def test_all_lines_longer_than_the_names(write: Write) -> None:
    """pandas would make the first column an index and shift each value by one column."""
    with pytest.raises(TableError, match="line 2 has 3, line 3 has 3"):
        read_table(write("sex,age\n1,F,61\n2,M,72\n"))


def test_a_name_that_stands_twice_is_refused(write: Write) -> None:
    """pandas would rename the second column to dx.1."""
    with pytest.raises(TableError, match="2 columns 'dx'"):
        read_table(write("dx,age,dx\n0,61,1\n1,72,1\n"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("id,age\n", "no rows"),
        (",\n1,2\n", "no columns"),
        ('id,age\n"a,61\nb,72\n', "damaged in line 3"),
        ("näme\nx\n".encode("latin-1"), "not UTF-8"),
        ("id,age\na,61\n".encode("utf-16"), "not UTF-8"),
        ("id;age,mm\na;61,5\nb;72,5\n", r"separator=','"),
    ],
)
def test_damaged_text_files(write: Write, content: str | bytes, message: str) -> None:
    with pytest.raises(TableError, match=message):
        read_table(write(content))


@pytest.mark.parametrize("name", ["people.parquet", "people.xlsx"])
def test_damaged_binary_files(write: Write, name: str) -> None:
    for content in (b"", b"age\n61\n", b"PAR1" + bytes(40) + b"PAR1", b"PK\x03\x04" + bytes(40)):
        with pytest.raises(TableError, match="cannot be read"):
            read_table(write(content, name))


def test_paths_that_are_no_table(tmp_path: Path, write: Write) -> None:
    write("age\n61\n", "people.csv")
    with pytest.raises(TableError, match=r"no file .*Did you mean 'people.csv'\?"):
        read_table(tmp_path / "peopel.csv")
    with pytest.raises(TableError, match="is a folder"):
        read_table(str(tmp_path))
    with pytest.raises(TableError, match="no file"):
        read_table(tmp_path / "absent" / "people.csv")
    with pytest.raises(TableError, match="no file"):
        read_table(Path("x" * 5000))
    with pytest.raises(TableError, match=r"no \.csv, \.tsv, \.txt, \.parquet or \.xlsx"):
        read_table(write("[]", "people.json"))


def test_separator_can_be_given(write: Write) -> None:
    path = write("site;mm,score;mm\nA,1.5\nB,2.5\nC,3.5\n")
    with pytest.raises(OptionError, match="one character"):
        read_table(path, separator="::")
    assert read_table(path, separator=",")["score;mm"].tolist() == [1.5, 2.5, 3.5]


def test_decimal_commas_are_explained(write: Write) -> None:
    with pytest.raises(TableError, match="decimal=','"):
        read_table(write("id;age\na;63,5\nb;71,25\nc;58\n"))


# Real tables. They are no part of the project, so these tests are skipped where they are absent.


def real_table(name: str) -> Path:
    folders = [parent / "shared" / "data" for parent in Path(__file__).parents]
    if "DECONFOUND_DATA" in os.environ:
        folders.insert(0, Path(os.environ["DECONFOUND_DATA"]))
    path = next((folder / name for folder in folders if (folder / name).exists()), None)
    return path or pytest.skip(f"the real table {name} is not on this machine")


def test_oasis() -> None:
    columns = ["age", "sex", "diagnosis", "mmse"]
    table = read_table(real_table("oasis1/participants.tsv"), columns, text=["participant_id"])
    assert len(table) == 416
    assert table["diagnosis"].value_counts().to_dict() == {"control": 316, "dementia": 100}
    assert table["sex"].cat.categories.tolist() == ["F", "M"]
    assert table["age"].dtype == table["mmse"].dtype == np.float64
    assert table["mmse"].isna().any()
    notes = check_table(table, ["diagnosis"], ["age", "sex"], "participant_id")
    assert [note for note in notes if note.is_error] == []


def test_abide() -> None:
    path = real_table("abide1/participants.tsv")
    table = read_table(path, ["site", "age", "sex", "diagnosis"])
    assert len(table) == 1035
    assert table["diagnosis"].value_counts().to_dict() == {"control": 530, "asd": 505}
    assert table["site"].nunique() == 20
    features = read_table(real_table("abide1/features.csv"), text=["participant_id"])
    assert (features.drop(columns="participant_id").dtypes == np.float64).all()


def test_heart() -> None:
    path = real_table("heart/heart_disease_uci.csv")
    with pytest.raises(TableError, match="'HeartDisease' has the whole numbers 0, 1, 2, 3, 4"):
        read_table(path, ["Age", "HeartDisease"])
    table = read_table(path)
    assert len(table) == 920
    assert table["exang"].cat.categories.tolist() == ["False", "True"]
    assert table["dataset"].nunique() == 4
    notes = check_table(table, ["HeartDisease"], ["Age", "sex", "dataset"], features=["id", "chol"])
    assert ("id", "id") in {(note.kind, note.column) for note in notes if note.is_error}


def test_pacs() -> None:
    table = read_table(real_table("pacs64/labels.csv"), ["domain", "category"], text=["file"])
    assert (len(table), table["domain"].nunique(), table["category"].nunique()) == (9991, 4, 7)
    assert isinstance(table["domain"].dtype, pd.CategoricalDtype)
