"""Columns of a table as features, and datasets as sources: nothing is dropped without a word."""

import sys

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from deconfound.data import Source, open_dataset, open_table, read_table, suspicious_features
from deconfound.errors import DeconfoundError, DeconfoundWarning, OptionError, ShapeError, TableError


@pytest.fixture
def table(tmp_path):
    """A hospital's table: numbers, text, truths, remarks, and a cell that is empty."""
    rows = 30
    frame = pd.DataFrame(
        {
            "patient_id": range(rows),
            "age": np.linspace(40, 80, rows),
            "pain": ["typical", "atypical", "none"] * 10,
            "smoker": [True, False] * 15,
            "remark": [f"remark {n}" for n in range(rows)],
            "dx": [0, 1] * 15,
        }
    )
    frame.loc[4, "pain"] = None
    frame.to_csv(tmp_path / "table.csv", index=False)
    return tmp_path / "table.csv"


def test_text_and_truths_are_features_and_what_is_none_is_told(table):
    source = open_table(table, roles=["dx"])
    assert source.names == ("age", "pain[atypical]", "pain[none]", "pain[typical]", "smoker")
    np.testing.assert_array_equal(source.read([0])[0], [40, 0, 0, 1, 1])
    assert np.isnan(source.read([4])[0, 1:4]).all()
    assert [(note.kind, note.column) for note in source.notes] == [
        ("identifier", "patient_id"), ("coded", "pain"), ("left out", "remark"),
    ]  # fmt: skip
    assert "remark is text with 30 different cells and is no feature" in str(source.notes[2])


def test_a_new_table_is_coded_by_the_levels_of_the_run(table, tmp_path):
    """A level that the run has not seen is as an empty cell, not the reference level."""
    names = open_table(table, roles=["dx"]).names
    new = tmp_path / "new.csv"
    new.write_text("age,pain,smoker\n50,none,TRUE\n60,crushing,FALSE\n")
    with pytest.warns(DeconfoundWarning, match=r"pain has levels that are no features: crushing\. .* \(1 of 2\)"):
        source = open_table(new, features=names)
    assert source.names == names
    np.testing.assert_array_equal(source.read([0])[0], [50, 0, 1, 0, 1])
    np.testing.assert_array_equal(source.read([1])[0], [60, np.nan, np.nan, np.nan, 0])


def test_numbers_that_pandas_calls_a_category_are_levels(tmp_path):
    grades = [1.0, 2.0, None, 1.0]
    frame = pd.DataFrame({"dx": [0, 1, 0, 1], "age": [50, 60, 70, 80], "grade": pd.Categorical(grades)})
    source = open_table(frame.astype({"dx": "category"}), roles=["dx"])
    assert source.names == ("age", "grade[1]", "grade[2]")
    assert source.table["dx"].tolist() == [0, 1, 0, 1]
    expected = [[50, 1, 0], [60, 0, 1], [70, np.nan, np.nan], [80, 1, 0]]
    np.testing.assert_array_equal(source.read(np.arange(4)), expected)
    frame.to_csv(tmp_path / "new.csv", index=False)  # where the empty cell makes floats of the levels
    np.testing.assert_array_equal(open_table(tmp_path / "new.csv", features=source.names).read(np.arange(4)), expected)


def test_columns_can_be_excluded_and_chosen(table):
    assert open_table(table, roles=["dx"], exclude=["pain", "smo*"]).names == ("age",)
    assert open_table(table, features=["pain", "age"]).names == ("pain[atypical]", "pain[none]", "pain[typical]", "age")
    with pytest.raises(
        TableError, match=r"data\.exclude must be columns of the table; got 'pian', .* Did you mean 'pain'"
    ):
        open_table(table, exclude=["pian"])
    with pytest.raises(
        TableError, match=r"data\.features must be columns of numbers; got 'remark', which holds 'remark 0'"
    ):
        open_table(table, features=["remark"])
    with pytest.raises(TableError, match="got 'pain', which holds 'typical'"):
        open_table(table, features=["pain"], roles=["pain"])


def test_the_first_sheet_of_a_workbook_is_read_and_others_are_told(tmp_path, monkeypatch):
    path = tmp_path / "t.xlsx"
    sheet = pd.DataFrame({"id": ["007", "8"], "age": [61, 70.5], "site": ["A", ""], "n": [1, 2]}, dtype=object)
    sheet.to_excel(path, index=False, sheet_name="people")
    columns = read_table(path)
    with pd.ExcelWriter(tmp_path / "two.xlsx") as book:
        for name in ("people", "scans"):
            sheet.to_excel(book, index=False, sheet_name=name)
    with pytest.warns(DeconfoundWarning, match=r"two.xlsx has 2 sheets, of which the first is read, 'people'\. Move"):
        assert read_table(tmp_path / "two.xlsx")["age"].tolist() == [61, 70.5]
    assert columns["id"].tolist() == ["007", "8"]
    assert columns["age"].tolist() == [61, 70.5]
    assert columns["site"].tolist() == ["A", None]
    assert columns["n"].dtype == np.int64
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(DeconfoundError, match=r"openpyxl must be installed .* 'deconfound\[excel\]'"):
        read_table(path)


class Pictures(torch.utils.data.Dataset):
    """As torch users write them: an image, a label and a row of metadata."""

    def __len__(self):
        return 6

    def __getitem__(self, row):
        return torch.full((1, 3, 3), float(row)), row % 2, {"age": 50.0 + row}


def test_a_torch_dataset_is_a_source():
    table = {"age": np.arange(50.0, 56.0), "dx": [0, 1] * 3}
    source = open_dataset(Pictures(), table=table)
    assert isinstance(source, Source)
    assert source.shape == (1, 3, 3)
    assert source.read(np.array([4, 1]))[:, 0, 0, 0].tolist() == [4, 1]
    assert source.table["dx"].tolist() == [0, 1] * 3
    by_place = open_dataset(Pictures(), columns={"dx": 1})
    assert by_place.table["dx"].tolist() == [0, 1] * 3
    other = open_dataset([(item[0] + 1, item[1]) for item in map(Pictures().__getitem__, range(6))], table=table)
    assert other.fingerprint != source.fingerprint
    assert by_place.fingerprint != source.fingerprint == open_dataset(Pictures(), table=table).fingerprint


def test_a_dataset_of_dicts_with_pillow_images_is_a_source():
    class Faces(list):
        column_names = ("image", "age", "sex")

        def __getitem__(self, key):
            return [item[key] for item in self] if isinstance(key, str) else super().__getitem__(key)

    items = [{"image": Image.new("RGB", (4, 2), (255, 0, 51)), "age": 60 + n, "sex": "FM"[n]} for n in range(2)]
    source = open_dataset(Faces(items), inputs="image", columns=["age", "sex"])
    assert source.shape == (3, 2, 4)
    assert source.read([1])[0, :, 0, 0].tolist() == pytest.approx([1, 0, 0.2])
    assert source.table["sex"].tolist() == ["F", "M"]


@pytest.mark.parametrize(
    ("text", "error", "build"),
    [
        ("dataset must have a length and items by number; got generator", OptionError,
         lambda: open_dataset((x for x in range(3)), table={"a": [1]})),
        ("dataset must be one dataset; got a dict of 'train'. Pass one of its entries", OptionError,
         lambda: open_dataset({"train": Pictures()}, table={"a": [1]})),
        ("got both or none", OptionError, lambda: open_dataset(Pictures())),
        ("table must have one row per sample; got 2 rows for 6 samples", ShapeError,
         lambda: open_dataset(Pictures(), table={"a": [1, 2]})),
        ("inputs must be a key or a place of a sample; got 'image' for a tuple", OptionError,
         lambda: open_dataset(Pictures(), inputs="image", table={"a": range(6)})),
        ("columns must name entries of every sample; got 'age'", OptionError,
         lambda: open_dataset(Pictures(), columns=["age"])),
        ("samples must have one shape, (1,); got (2,) in row 1", ShapeError,
         lambda: open_dataset([([1],), ([1, 2],)], table={"a": [1, 2]}).read([0, 1])),
    ],
)  # fmt: skip
def test_datasets_that_cannot_be_read_say_why(text, error, build):
    with pytest.raises(error) as got:
        build()
    assert text in str(got.value)


def hospital(rows=200):
    """Two features are no measurements, and hospital B leaves cholesterol out."""
    rng = np.random.default_rng(0)
    site, dx = rng.choice(["A", "B"], rows), rng.integers(0, 2, rows)
    chol = np.where((site == "B") & (rng.random(rows) < 0.9), np.nan, rng.normal(200, 30, rows))
    return pd.DataFrame(
        {"counter": range(rows), "age": rng.normal(60, 9, rows) + dx, "outcome": 3.0 - 2 * dx, "chol": chol,
         "site": site, "dx": np.where(dx, "case", "control")}
    )  # fmt: skip


def test_copies_of_the_label_counters_and_revealing_gaps_are_noticed(tmp_path):
    path = tmp_path / "t.csv"
    hospital().to_csv(path, index=False)
    source = open_table(path, roles=["dx", "site"])
    found = {(note.kind, note.column): note.text for note in suspicious_features(source, ["dx"], ["site"])}
    assert found.keys() == {("identifier", "counter"), ("copies label", "outcome"), ("empty cells", "site")}
    assert "orders dx almost without error" in found["copies label", "outcome"]
    assert "tells site in 9" in found["empty cells", "site"]
    with pytest.raises(TableError, match=r"got 'dxx', which it lacks\. Did you mean 'dx'"):
        suspicious_features(source, ["dxx"])
    hospital().drop(columns=["counter", "outcome", "chol"]).to_csv(path, index=False)
    assert suspicious_features(open_table(path, roles=["dx", "site"]), ["dx"], ["site"]) == []


def test_a_copy_of_a_numeric_label_is_noticed_by_its_ranks(tmp_path):
    path = tmp_path / "t.csv"
    score = np.random.default_rng(0).normal(size=60)
    pd.DataFrame({"score": score, "twin": np.exp(score), "other": score[::-1]}).to_csv(path, index=False)
    notes = suspicious_features(open_table(path, roles=["score"]), ["score"])
    assert [note.column for note in notes] == ["twin"]


def test_columns_that_may_be_another_raters_label_are_told_and_those_that_agree_by_chance_are_not(tmp_path):
    random = np.random.default_rng(0)
    grade = random.choice([1, 2, 3], 80)
    second = np.where(random.random(80) < 0.25, random.choice([1, 2, 3], 80), grade).astype(float)
    second[:3] = np.nan
    frame = pd.DataFrame(
        {"grade": grade, "grade_b": second, "ward": random.choice([1, 2, 3], 80), "x": random.random(80)}
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    (note,) = suspicious_features(open_table(tmp_path / "t.csv", roles=["grade"]), ["grade"])
    agreed = (grade == second)[3:].mean()
    assert (note.kind, note.column) == ("another rater", "grade_b")
    assert f"has the levels of grade and agrees with it in {agreed:.0%} of rows" in note.text
    assert suspicious_features(open_table(tmp_path / "t.csv", roles=["grade"]), ["grade"], ["grade_b"]) == []


def test_rows_with_equal_features_are_told_unless_one_person_has_them_or_features_are_coarse(tmp_path):
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"person": [f"p{n}" for n in range(40)], "dx": [0, 1] * 20, "x": random.random(40)})
    frame = pd.concat([frame, frame.head(6).assign(dx=[0, 1, 0, 0, 0, 0])])
    frame.to_csv(tmp_path / "t.csv", index=False)
    source = open_table(tmp_path / "t.csv", roles=["dx", "person"])
    (note,) = suspicious_features(source, ["dx"])
    assert "12 rows have the same features as another person's, 4 of them with another label" in note.text
    assert suspicious_features(source, ["dx"], person="person") == []
    frame.assign(x=frame["x"].round(1)).to_csv(tmp_path / "t.csv", index=False)
    assert suspicious_features(open_table(tmp_path / "t.csv", roles=["dx", "person"]), ["dx"]) == []
