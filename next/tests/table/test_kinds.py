"""One rule for kinds, levels and missing cells, whatever the source."""

from __future__ import annotations

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch

from deconfound.errors import DeconfoundError, OptionError, TableError
from deconfound.table import Note, is_missing, level_text, read_table, to_levels, to_numbers

NUMBERS = {
    "list": [63, 7.5, None, 4.25],
    "tuple": (63, 7.5, float("nan"), 4.25),
    "numpy": np.array([63, 7.5, np.nan, 4.25], dtype=np.float32),
    "half": np.array([63, 7.5, np.nan, 4.25], dtype=np.float16),
    "masked": np.ma.masked_array([63, 7.5, 1e9, 4.25], mask=[False, False, True, False]),
    "objects": np.array([63, 7.5, None, Decimal("4.25")], dtype=object),
    "nullable": pd.array([63, 7.5, None, 4.25], dtype="Float64"),
    "tensor": torch.tensor([63, 7.5, torch.nan, 4.25], requires_grad=True),
    "bfloat16": torch.tensor([63, 7.5, torch.nan, 4.25], dtype=torch.bfloat16),
    "text": ["63", " 7.5", "NA", "4.25e0"],
    "dots": pd.Series(["63", "+7.5", ".", "4.25"], dtype="string"),
    "bids": ["63", "7.50", "n/a", "4.25"],
}

LEVELS = {
    "integers": [3, 17, None, 3],
    "floats": [3.0, 17.0, np.nan, 3.0],
    "nullable": pd.array([3, 17, None, 3], dtype="Int64"),
    "text": ["3", "17", "", "3"],
    "float text": ["3.0", "17.0", "", "3.0"],
    "categories": pd.Categorical([3, 17, None, 3]),
    "decimals": [Decimal("3"), Decimal("17.0"), Decimal("NaN"), Decimal("3.0")],
    "masked": np.ma.masked_array([3, 17, 99, 3], mask=[False, False, True, False]),
}

TRUTHS = {
    "booleans": [True, None, False],
    "nullable": pd.array([True, None, False], dtype="boolean"),
    "R": ["TRUE", "NA", "FALSE"],
    "text": ["true", "", "False"],
    "categories": pd.Categorical([True, None, False]),
}


@pytest.mark.parametrize("source", NUMBERS)
def test_numbers_are_alike_from_every_array(source: str) -> None:
    """Kills the mutant that forgets "NA" among numbers, and one that reads a masked cell."""
    column = read_table({"age": NUMBERS[source]})["age"]
    assert column.dtype == np.float64
    np.testing.assert_array_equal(column, [63, 7.5, np.nan, 4.25])


@pytest.mark.parametrize("source", LEVELS)
def test_levels_are_alike_from_every_array(source: str) -> None:
    """Two distinct values are levels. Kills the mutant that writes 17 as "17.0"."""
    column = read_table({"site": LEVELS[source]})["site"]
    assert column.cat.categories.tolist() == ["3", "17"]
    assert to_levels(pd.Series(LEVELS[source])).tolist() == ["3", "17", None, "3"]


@pytest.mark.parametrize("source", TRUTHS)
def test_truth_values_are_levels(source: str) -> None:
    column = read_table({"smoker": TRUTHS[source]})["smoker"]
    assert column.cat.categories.tolist() == ["False", "True"]
    assert column.isna().tolist() == [False, True, False]


def test_truth_values_become_0_and_1_only_if_asked() -> None:
    table = read_table({"smoker": ["TRUE", "false", ""]}, types={"smoker": "numeric"})
    np.testing.assert_array_equal(table["smoker"], [1, 0, np.nan])


def test_a_site_called_na_stays_a_level() -> None:
    """Acceptance 17. Kills the mutant that treats "NA" as missing in every column."""
    table = read_table({"site": ["UCL", "NA", None, " "], "age": ["1.5", "NA", "n/a", "2"]})
    assert table["site"].tolist()[:2] == ["UCL", "NA"]
    assert table["site"].isna().tolist() == [False, False, True, True]
    assert table["age"].isna().tolist() == [False, True, True, False]


def test_people_of_the_site_na_alone() -> None:
    """Kills the mutant that needs another site's text to see that "NA" is a level."""
    assert read_table({"site": ["NA", "", "NA"]})["site"].tolist()[::2] == ["NA", "NA"]
    assert to_levels(pd.Series(["NA"])).tolist() == ["NA"]
    assert to_levels(pd.Series(["NA", "1"])).tolist() == [None, "1"]
    assert np.isnan(to_numbers(pd.Series(["NA"]), "age")).all()


def test_leading_zeros_make_codes() -> None:
    """Acceptance 17. Kills the mutant that turns "007" into 7; the control has no zeros."""
    ids = [f"{number:03d}" for number in range(1, 200)]
    table = read_table({"id": ids, "age": [str(number) for number in range(1, 200)]})
    assert table["id"].tolist() == ids
    assert table["age"].dtype == np.float64
    assert read_table({"x": ["0.5", "0", "1"]})["x"].dtype == np.float64


def test_text_columns_are_equal_for_equal_ids() -> None:
    """An id is the same text whether a source holds it as 17, 17.0 or "17"."""
    for ids in ([17, None], [17.0, np.nan], ["17", ""], pd.array([17, None], dtype="Int64")):
        column = read_table({"id": ids}, text=["id"])["id"]
        assert column.tolist() == ["17", None]
    long = read_table({"id": [2**60 + 1, None]}, text=["id"])["id"]
    assert long[0] == str(2**60 + 1)


def test_types_win_over_the_rule() -> None:
    columns = {"dose": [0, 1, 1], "site": [4, 5, 6], "age": pd.Categorical(["61", "62", None])}
    types = {"dose": "numeric", "site": "categorical", "age": "numeric"}
    table = read_table(columns, types=types)
    assert table["dose"].tolist() == [0, 1, 1]
    assert table["site"].tolist() == ["4", "5", "6"]
    np.testing.assert_array_equal(table["age"], [61, 62, np.nan])


@pytest.mark.parametrize(("count", "is_refused"), [(2, False), (3, True), (10, True), (11, False)])
def test_whole_numbers_may_be_codes(count: int, is_refused: bool) -> None:
    """Kills off-by-one errors in "3 to 10 distinct values"."""
    stage = [row % count for row in range(40)]
    assert len(read_table({"stage": stage})) == 40
    if not is_refused:
        read_table({"stage": stage}, ["stage"])
        return
    with pytest.raises(TableError) as caught:
        read_table({"stage": [str(code) for code in stage]}, ["stage"])
    assert "types={'stage': 'numeric'}" in str(caught.value)
    assert "types={'stage': 'categorical'}" in str(caught.value)
    read_table({"stage": stage}, ["stage"], types={"stage": "numeric"})
    read_table({"stage": [code + 0.5 for code in stage]}, ["stage"])


def test_a_text_among_numbers_is_shown_with_its_rows() -> None:
    """Acceptance 17. Kills the mutant that makes levels of it, or turns its text into NaN."""
    ages = [str(age) for age in range(20, 60)]
    ages[3] = ages[5] = "unknown"
    with pytest.raises(TableError, match=r"'unknown' in rows 3, 5 \(counted from 0\)") as caught:
        read_table({"age": ages})
    (note,) = caught.value.faults
    assert isinstance(note, Note)
    assert (note.kind, note.column, note.rows) == ("text", "age", (3, 5))
    with pytest.raises(TableError, match="'unknown'"):
        to_numbers(pd.Series(ages), "age")
    assert read_table({"age": ages}, types={"age": "categorical"})["age"][3] == "unknown"
    # Control: levels of which some look like numbers.
    assert read_table({"site": ["1", "2a", "2b", "A"]})["site"].tolist() == ["1", "2a", "2b", "A"]


def test_decimal_commas_are_not_levels() -> None:
    with pytest.raises(TableError, match="decimal=','"):
        read_table({"age": ["63,5", "71,25", "58,0"]})


def test_float32_has_the_levels_of_float64() -> None:
    """0.1 as float32 is 0.10000000149. Kills a level that float64 tables do not have."""
    doses = np.array([0.1, 0.2, 0.1])
    levels = [list(to_levels(pd.Series(doses.astype(kind)))) for kind in ("f4", "f8")]
    assert levels[0] == levels[1] == ["0.1", "0.2", "0.1"]


def test_a_site_called_inf_is_a_level() -> None:
    table = read_table({"site": ["INF", "UCL", "INF"]}, ["site"])
    assert table["site"].tolist() == ["INF", "UCL", "INF"]


@pytest.mark.parametrize("value", [np.inf, 10**400, "1e999"])
def test_infinity_is_refused_with_its_rows(value: object) -> None:
    with pytest.raises(TableError, match="infinite in row 1"):
        read_table({"x": [1.5, value, 3.5, None]})


DATES = {
    "pandas": pd.to_datetime(["2020-01-31", None, "2021-12-01"]),
    "datetime": [datetime.date(2020, 1, 31), None, datetime.date(2021, 12, 1)],
    "text": ["2020-01-31", "", "2021-12-01 10:00"],
    "German": ["31.01.2020", "", "1.12.2021"],
    "durations": pd.to_timedelta([1, None, 3], unit="D"),
    "periods": pd.PeriodIndex(["2020-01", None, "2021-12"], freq="M"),
}


@pytest.mark.parametrize("source", DATES)
def test_dates_are_refused_unless_they_stay_text(source: str) -> None:
    with pytest.raises(TableError, match=r"holds dates in rows 0, 2.*in years"):
        read_table({"day": DATES[source]})
    assert read_table({"day": DATES[source]}, text=["day"])["day"].isna().tolist() == [0, 1, 0]
    assert read_table({"day": ["1.10.3", "1.2.10"]})["day"].dtype == "category"  # versions


def test_level_text_is_one_text_per_level() -> None:
    for value in (3, 3.0, np.float32(3), np.int8(3), "3", " 3 ", "3.0", Decimal("3.00")):
        assert level_text(value) == "3"
    for value in (True, np.True_, "TRUE", "true"):
        assert level_text(value) == "True"
    for text in ("007", "1.10", "1e5", "-", "A b"):
        assert level_text(text) == text
    assert level_text(-0.0) == level_text(0) == "0"
    assert level_text(2.5) == "2.5"


def test_missing_values() -> None:
    for value in (None, np.nan, pd.NA, pd.NaT, "", " \t", np.datetime64("NaT"), np.ma.masked):
        assert is_missing(value)
    for value in (0, False, "NA", "nan", ".", np.inf, "0"):
        assert not is_missing(value)


def test_categories_are_sorted_and_only_those_that_occur() -> None:
    """Numbers are sorted by size. Kills the mutant that sorts "10" before "9"."""
    levels = pd.Categorical(["10", "9", "B"], categories=["B", "unused", "10", "9"])
    assert read_table({"site": levels})["site"].cat.categories.tolist() == ["9", "10", "B"]


def test_an_empty_column_is_numeric() -> None:
    assert read_table({"x": [None, None], "y": ["", " "]}).dtypes.tolist() == [float, float]


@pytest.mark.parametrize("cells", [[[1], [2]], [torch.ones(2), torch.ones(2)], [{}, {}]])
def test_cells_must_be_single_values(cells: list[object]) -> None:
    with pytest.raises(TableError, match="Column 'x' has cells of type"):
        read_table({"x": cells})


def test_options_are_checked() -> None:
    with pytest.raises(OptionError, match=r"columns=\['age'\]"):
        read_table({"age": [1, 2]}, "age")
    with pytest.raises(OptionError, match=r"text=\['age'\]"):
        read_table({"age": [1, 2]}, text="age")
    with pytest.raises(OptionError, match="'number'"):
        read_table({"age": [1, 2]}, types={"age": "number"})  # type: ignore[dict-item]
    with pytest.raises(TableError, match=r"no column 'aeg'.*'age'"):
        read_table({"age": [1, 2]}, types={"aeg": "numeric"})


def test_all_faults_are_reported_at_once() -> None:
    """Faults 7. Kills the mutant that stops at the first column."""
    columns = {
        "stage": [1, 2, 3],
        "age": ["61", "?", "63"],
        "day": ["2020-01-01"] * 3,
        "x": [1j] * 3,
    }
    with pytest.raises(TableError) as caught:
        read_table(columns, ["stage", "age", "day"])
    assert [note.kind for note in caught.value.faults] == ["code", "text", "date"]
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    "cells",
    [
        ["1", "2.5", "-3e-2", ".5", "7.", "+4", "1E3", "0", "-0.0", "1e400"],
        ["12", "007", "3"],
        ["1_000", "2"],
        ["1", "٣"],
        ["1\n2", "3"],
        ["inf", "1"],
    ],
)
def test_columns_of_numbers_read_the_same_with_and_without_an_empty_cell(cells):
    """Without one they are parsed together; Python reads 1_000 and ٣ as numbers, and we do not."""

    def read(values):
        try:
            column = read_table({"x": values})["x"]
        except DeconfoundError as error:
            return str(error)
        return str(column.dtype), column.astype(str).tolist()[: len(cells)]

    assert read(cells) == read([*cells, ""])
