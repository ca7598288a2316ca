"""The seven checks: each finds its fault, and is silent on a sound table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from deconfound.table import Note, check_table, read_table

LABELS, CONFOUNDS, FEATURES = ["dx"], ["age", "sex", "site"], ["volume", "hand"]


def make_people(**changes: Any) -> dict[str, Any]:
    """Return a sound table of 60 people, with some columns replaced."""
    generator = np.random.default_rng(0)
    rows = np.arange(60)
    people = {
        "id": [f"sub-{row:03d}" for row in rows],
        "dx": np.where(rows % 2, "case", "control"),
        "age": generator.uniform(20, 80, 60).round(1),
        "sex": np.where(rows % 4 < 2, "F", "M"),
        "site": np.array(["A", "B", "C"])[rows // 4 % 3],
        "volume": generator.normal(size=60),
        "hand": np.where(rows % 10 == 3, "left", "right"),
    }
    return {**people, **changes}


def find(table: Any, kind: str, **options: Any) -> list[Note]:
    arguments = {"confounds": CONFOUNDS, "person": "id", "features": FEATURES, **options}
    return [note for note in check_table(table, LABELS, **arguments) if note.kind == kind]


def test_a_sound_table_has_no_notes() -> None:
    """The control of all checks, from each kind of source and with typed columns."""
    people = make_people()
    for table in (people, pd.DataFrame(people), read_table(people, text=["id"])):
        assert check_table(table, LABELS, CONFOUNDS, "id", FEATURES) == []


def test_ids_as_features() -> None:
    """Kills the mutant that also refuses ages that all differ."""
    assert len(set(make_people()["age"])) > 50
    for features in (["id"], ["number"], ["weight"]):
        table = make_people(
            number=list(range(101, 161)), weight=[f"{40 + row % 35} kg" for row in range(60)]
        )
        (note,) = find(table, "id", features=features)
        assert note.is_error
        assert note.column == features[0]
    (note,) = find(make_people(site=make_people()["id"]), "id")
    assert note.column == "site"
    assert find(make_people(site=["A", "B", "C", "D", "E", "F"] * 10), "id") == []


def test_copies_of_a_label() -> None:
    dx = make_people()["dx"]
    copies = {
        "same": dx,
        "codes": np.where(dx == "case", 7, 3),
        "gap": [None, *np.where(dx == "case", "yes", "no")[1:]],
    }
    for copy in copies.values():
        (note,) = find(make_people(hand=copy), "copy")
        assert (note.column, note.is_error) == ("hand", True)
    (note,) = find(make_people(), "copy", features=["dx"])
    assert note.column == "dx"
    almost = dx.copy()
    almost[0] = almost[1]
    assert find(make_people(hand=almost), "copy") == []


def test_a_numeric_label_in_another_unit() -> None:
    """Kills the mutant that compares amounts as levels: two columns of 60 amounts each."""
    people = make_people(months=12 * make_people()["age"] + 3)
    notes = check_table(people, ["age"], ["sex"], features=["months", "volume"])
    assert [(note.kind, note.column) for note in notes] == [("copy", "months")]


def test_numbers_with_a_few_texts() -> None:
    ages = [str(age) for age in make_people()["age"]]
    ages[7] = "?"
    (note,) = find(make_people(age=ages), "text")
    assert (note.column, note.rows, note.is_error) == ("age", (7,), True)
    assert "'?'" in note.text


def test_a_stratum_without_a_class() -> None:
    """Site C has controls only. Kills the mutant that swaps levels and classes."""
    people = make_people()
    is_alone = people["site"] == "C"
    people["dx"] = np.where(is_alone, "control", people["dx"])
    (note,) = find(people, "stratum")
    assert (note.column, note.is_error) == ("site", False)
    assert "'C' has no 'case'" in note.text
    assert note.rows == tuple(np.flatnonzero(is_alone))


def test_people_with_several_rows() -> None:
    """Acceptance 45, two equal ids: a note, because several scans of a person are common."""
    people = make_people()
    people["id"][5] = people["id"][2]
    (note,) = find(people, "person")
    assert (note.rows, note.is_error) == ((2, 5), False)
    assert check_table(people, LABELS, CONFOUNDS) == []
    people["id"][9] = ""
    (note,) = find(people, "missing")
    assert (note.column, note.rows, note.is_error) == ("id", (9,), True)


def test_ids_are_compared_as_text() -> None:
    """17 and "17.0" are one person, "007" and "7" are two."""
    ids = [17, "17.0", "007", "7", *make_people()["id"][4:]]
    (note,) = find(make_people(id=ids), "person")
    assert note.rows == (0, 1)


@pytest.mark.parametrize("value", ["case", 1, 2.5, True, None])
def test_constant_columns(value: object) -> None:
    """Acceptance 45: one class is an error, a constant feature is not."""
    (note,) = find(make_people(dx=[value] * 60), "constant")
    assert (note.column, note.is_error) == ("dx", True)
    (note,) = find(make_people(hand=[value] * 60), "constant")
    assert (note.column, note.is_error) == ("hand", False)


def test_a_label_that_is_a_site() -> None:
    """Kills the mutant that only compares levels one to one: two of three sites have cases."""
    people = make_people()
    people["dx"] = np.where(people["site"] == "A", "control", "case")
    (note,) = find(people, "determined")
    assert (note.column, note.is_error) == ("dx", True)
    assert "'site'" in note.text
    people["dx"][0] = "case"
    assert find(people, "determined") == []


def test_a_label_that_is_a_cross_of_confounds() -> None:
    """Cases are men at site A and women elsewhere, so neither column alone gives the label."""
    people = make_people()
    is_case = (people["site"] == "A") == (people["sex"] == "M")
    people["dx"] = np.where(is_case, "case", "control")
    (note,) = find(people, "determined")
    assert "'sex', 'site'" in note.text
    assert find(people, "determined", confounds=["sex"]) == []
    assert find(people, "determined", confounds=["site"]) == []


def test_small_cells_determine_nothing() -> None:
    """With a level per row or two, a label is constant in each cell by chance."""
    site = [f"site {row // 2}" for row in range(60)]
    dx = np.where(np.arange(60) // 2 % 2, "case", "control")
    assert find(make_people(dx=dx, site=site), "determined", confounds=["site"]) == []


def test_a_label_that_is_an_age_group() -> None:
    """Kills the mutant that ignores equal ages on both sides of the threshold."""
    age = np.sort(make_people()["age"])
    dx = np.where(np.arange(60) < 30, "control", "case")
    for ages in (age, age[::-1]):
        (note,) = find(make_people(age=ages, dx=dx), "determined")
        assert "'age'" in note.text
    tied = age.copy()
    tied[29] = tied[30]
    assert find(make_people(age=tied, dx=dx), "determined") == []


def test_missing_cells_are_named() -> None:
    age, dx = make_people()["age"], make_people()["dx"].astype(object)
    age[4], dx[8] = np.nan, None
    notes = find(make_people(age=age, dx=dx), "missing")
    assert {(note.column, note.rows) for note in notes} == {("dx", (8,)), ("age", (4,))}


def test_absent_columns_and_all_faults_at_once() -> None:
    """Errors stand first. Kills the mutant that stops at the first fault."""
    notes = check_table(make_people(), ["dxx"], ["agee", "sex"], "person")
    assert [note.column for note in notes] == ["dxx", "agee", "person"]
    people = make_people(hand=make_people()["dx"], volume=["1.5"] * 59 + ["?"])
    people["id"][5] = people["id"][2]
    people["age"][0] = np.nan
    notes = check_table(people, LABELS, CONFOUNDS, "id", FEATURES)
    assert {note.kind for note in notes} == {"copy", "text", "person", "missing"}
    assert [note.is_error for note in notes] == [True, True, False, False]
    assert all(str(note) == f"{note.text} {note.fix}" for note in notes)
