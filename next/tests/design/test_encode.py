"""Encoding: the same numbers from every kind of table, and all faults reported together."""

import numpy as np
import pandas as pd
import pytest

from deconfound import Design, Interaction, Spline
from deconfound.errors import DeconfoundWarning, StateError, TableError

PEOPLE = {
    "age": [61.5, 70.2, 66.1, 74.8, 58.3, 80.0],
    "sex": ["F", "M", "F", "F", "M", "M"],
    "site": [3, 10, 3, 7, 10, 7],
    "dx": ["AD", "CN", "CN", "AD", "CN", "AD"],
}
TYPES = {"site": "categorical"}


def fit_people(unseen="error", **changes):
    design = Design(["age", "sex", "site"], keep=["dx"], types=TYPES, unseen=unseen)
    return design.fit(PEOPLE | changes)


def test_columns_have_mean_zero_and_sd_one():
    """The oracle is numpy on 0/1 columns; levels sort by number, so 3 is the reference."""
    design = fit_people()
    assert design.names == ("age", "sex[M]", "site[7]", "site[10]", "dx[CN]")
    assert design.levels == {"sex": ("F", "M"), "site": ("3", "7", "10"), "dx": ("AD", "CN")}
    site, age = np.array(PEOPLE["site"]), np.array(PEOPLE["age"])
    raw = [age, np.array(PEOPLE["sex"]) == "M", site == 7, site == 10]
    raw = np.column_stack([*raw, np.array(PEOPLE["dx"]) == "CN"]).astype(float)
    expected = (raw - raw.mean(0)) / raw.std(0)
    np.testing.assert_allclose(design.encode(PEOPLE, dtype=np.float64), expected, atol=1e-14)
    assert design.encode(PEOPLE).dtype == np.float32


def test_every_source_encodes_alike(tmp_path):
    """pandas, dict, pyarrow, polars, category columns and files give equal numbers (18)."""
    pyarrow, polars = pytest.importorskip("pyarrow"), pytest.importorskip("polars")
    frame = pd.DataFrame(PEOPLE)
    frame.to_csv(tmp_path / "people.csv", index=False)
    sources = [
        frame,
        frame.astype({"sex": "category", "site": "category", "dx": "category"}),
        frame.assign(site=frame["site"].astype(float)),
        pyarrow.table(PEOPLE),
        polars.DataFrame(PEOPLE),
        {name: np.array(values) for name, values in PEOPLE.items()},
        tmp_path / "people.csv",
    ]
    expected = fit_people().encode(PEOPLE)
    for source in sources:
        np.testing.assert_array_equal(fit_people().encode(source), expected)
        refitted = Design(["age", "sex", "site"], keep=["dx"], types=TYPES).fit(source)
        np.testing.assert_array_equal(refitted.encode(PEOPLE), expected)


def test_keep_columns_may_be_absent():
    """Confounds are equal with and without labels, of every kind of source; labels are NaN."""
    pyarrow = pytest.importorskip("pyarrow")
    design = fit_people()
    without = {name: values for name, values in PEOPLE.items() if name != "dx"}
    for source in (without, pd.DataFrame(without), pyarrow.table(without)):
        encoded = design.encode(source)
        np.testing.assert_array_equal(encoded[:, :4], design.encode(PEOPLE)[:, :4])
        assert np.isnan(encoded[:, 4]).all()


def test_unknown_cells_are_named_errors():
    """A missing age, an unseen site and a text in a number: one error with all of them (17)."""
    design = fit_people()
    rows = {"age": [61.5, None], "sex": ["F", "F"], "site": ["X9", 3]}
    with pytest.raises(TableError) as caught:
        design.encode(rows)
    notes = caught.value.faults
    assert [(note.kind, note.column, note.rows) for note in notes] == [
        ("missing", "age", (1,)),
        ("unseen", "site", (0,)),
    ]
    assert "'X9' in row 0" in str(notes[1])
    assert all("unseen='mean'" in str(note) for note in notes)
    assert design.unknown_cells(rows) == list(notes)
    with pytest.raises(TableError, match=r"'old'[\s\S]*unseen in training"):
        design.encode(rows | {"age": [61.5, "old"]})


def test_ids_with_leading_zeros_are_other_levels():
    """Site 7 is not site 007. Kills a comparison by number."""
    with pytest.raises(TableError, match="'007' in row 0"):
        fit_people().encode({"age": [61.5], "sex": ["F"], "site": ["007"]})


def test_a_site_called_na_is_a_level():
    """Also in a batch of one person, where "NA" is the only text. Kills the reading by batch."""
    design = Design(["site"]).fit({"site": ["NA", "KCL", "NA", "UCL"]})
    assert design.levels["site"] == ("KCL", "NA", "UCL")
    together = design.encode({"site": ["NA", "KCL"]})
    np.testing.assert_array_equal(design.encode({"site": ["NA"]}), together[:1])


def test_unseen_mean_is_the_mean_row():
    """Unknown confounds become 0, the mean of the training rows, also in interactions."""
    terms = ["age", "sex", "site", Interaction("age", "site")]
    rng = np.random.default_rng(0)
    table = {name: rng.choice(values, 60) for name, values in PEOPLE.items()}
    design = Design(terms, keep=["dx"], types=TYPES, unseen="mean").fit(table)
    encoded = design.encode({"age": [None, 70.2], "sex": ["F", None], "site": [3, 99]})
    names = np.array(design.names)
    assert set(names[encoded[0] == 0]) == {"age", "age:site[7]", "age:site[10]"}
    assert set(names[encoded[1] == 0]) == set(names) - {"age", "dx[CN]"}
    assert encoded[1, 0] == design.encode(PEOPLE)[1, 0]
    assert len(design.unknown_cells({"age": [None], "sex": ["X"], "site": [99]})) == 3


@pytest.mark.parametrize("unseen", ["error", "mean"])
def test_missing_labels_are_nan(unseen):
    """A missing or new label hinders no inference; in training it is refused, whatever `unseen`."""
    rows = {name: values[:2] for name, values in PEOPLE.items()} | {"dx": [None, "MCI"]}
    encoded = fit_people(unseen=unseen).encode(rows)
    assert np.isnan(encoded[:, 4]).all()
    assert np.isfinite(encoded[:, :4]).all()
    with pytest.raises(TableError, match=r"'dx' must have a value.*weight 0"):
        fit_people(unseen=unseen, dx=[None, *PEOPLE["dx"][1:]])


def test_a_kept_interaction_takes_the_mean_of_a_missing_confound():
    """The label is known, so that only the age is the mean."""
    table = {"age": [61.5, 70.2, 66.1, 74.8], "dx": ["AD", "CN", "CN", "AD"]}
    keep = ["dx", Interaction("age", "dx")]
    design = Design(["age"], keep=keep, unseen="mean").fit(table)
    encoded = design.encode({"age": [None, 61.5], "dx": ["AD", None]})
    assert encoded[0, 2] == 0
    assert np.isnan(encoded[1, 1:]).all()


def test_types_may_name_other_columns_of_the_table_but_no_absent_ones():
    """One mapping of types serves all designs of a table; a typing error is named."""
    types = TYPES | {"dx": "categorical"}
    assert Design(["age"], types=types).fit(PEOPLE).names == ("age",)
    with pytest.raises(TableError, match=r"'agee'.*'age'"):
        Design(["age"], types={"agee": "numeric"}).fit(PEOPLE)


def test_integer_column_labels_and_unrelated_columns_do_no_harm():
    """Kills a look-up by `name in table`, and an encoder that reads every column."""
    frame = pd.DataFrame({0: PEOPLE["age"], 1: PEOPLE["dx"]})
    design = Design(["0"], keep=["1"]).fit(frame)
    assert np.isfinite(design.encode(frame)).all()
    frame.columns = ["age", "age2"]
    twice = pd.concat([frame, frame["age2"]], axis=1)
    assert len(Design(["age"]).fit(twice).encode(twice)) == 6


def test_scales_near_the_ends_of_double_precision():
    """Kills squares that overflow or vanish."""
    age = np.array(PEOPLE["age"])
    expected = Design(["age"]).fit({"age": age}).encode({"age": age})
    for scale in (1e160, 1e-200):
        table = {"age": age * scale}
        np.testing.assert_allclose(Design(["age"]).fit(table).encode(table), expected, rtol=1e-6)


def test_columns_of_the_design_with_one_name_are_refused():
    table = {"site": ["A", "B", "C", "A"], "site[B]": [0.5, 1.5, 2.5, 2.0]}
    with pytest.raises(TableError, match=r"called 'site\[B\]'"):
        Design(["site", "site[B]"]).fit(table)


def test_missing_training_cells_are_an_error_or_the_mean():
    """With "mean" they change no mean and no sd. Kills a fill with zeros before centring."""
    age = [*PEOPLE["age"][:5], None]
    with pytest.raises(
        TableError, match=r"'age' must have a value in every row, and has none in row 5"
    ):
        fit_people(age=age)
    design = fit_people(unseen="mean", age=age)
    expected = (np.array(age[:5]) - np.mean(age[:5])) / np.std(age[:5])
    np.testing.assert_allclose(design.encode(PEOPLE, dtype=float)[:5, 0], expected, atol=1e-14)
    assert design.encode(PEOPLE | {"age": age})[5, 0] == 0
    white = design.encode(PEOPLE | {"age": age}, dtype=float) @ design.whitening
    np.testing.assert_allclose(white.T @ white / 6, np.eye(5), atol=1e-12)


def test_all_faults_of_a_training_table_are_reported_together():
    """An absent column, codes without a type, a text among numbers and a missing cell."""
    table = {
        "age": [61.5, "old", 66.1, 74.8, 58.3, 80.0],
        "site": PEOPLE["site"],
        "sex": ["F", "M", None, "F", "M", "M"],
        "dx": [None] * 6,
    }
    with pytest.raises(TableError) as caught:
        Design(["age", "sex", "site", "scaner"], keep=["dx"]).fit(table | {"scanner": ["A"] * 6})
    text = str(caught.value)
    assert len(caught.value.faults) == 5
    for part in ("'scanner'", "'old'", "types={'site': 'categorical'}", "unseen='mean'", "'dx'"):
        assert part in text


def test_failed_fit_changes_nothing():
    """Kills the mutant that stores codings before all columns are checked."""
    design = fit_people()
    before = design.to_dict()
    with pytest.raises(TableError):
        design.fit(PEOPLE | {"age": [61.5, None, 66.1, 74.8, 58.3, 80.0]})
    with pytest.raises(TableError):
        design.fit({"age": [], "sex": [], "site": [], "dx": []})
    assert design.to_dict() == before


def test_absent_confound_names_the_nearest_column():
    with pytest.raises(TableError, match="'agee'"):
        fit_people().encode({"agee": [61.5], "sex": ["F"], "site": [3]})


def test_unfitted_design():
    design = Design(["age"])
    for use in (lambda: design.encode({"age": [61.5]}), lambda: design.names, design.diagnose):
        with pytest.raises(StateError, match=r"design.fit\(training_table\)"):
            use()
    assert repr(design) == "Design(['age']), not fitted"


def test_repr_shows_what_a_user_checks():
    text = repr(fit_people())
    assert "age: mean 68.48, sd 7.457" in text
    assert "site: 3 2, 7 2, 10 2; reference 3" in text


def test_constant_columns_encode_to_zero():
    """A constant column has no scale; another value in a new table must not explode."""
    with pytest.warns(DeconfoundWarning, match="constant"):
        design = Design(["age", "field"]).fit({"age": PEOPLE["age"], "field": [3.0] * 6})
    assert design.encode({"age": [61.5], "field": [7.0]})[0, 1] == 0


def test_encoding_of_single_rows_is_that_of_the_table():
    """Every row alone has the numbers that it has in the table."""
    design = Design([Spline("age", df=3), "sex"]).fit(PEOPLE)
    together = design.encode(PEOPLE)
    frame = pd.DataFrame(PEOPLE)
    alone = np.concatenate([design.encode(frame.iloc[[row]]) for row in range(6)])
    np.testing.assert_allclose(alone, together, rtol=1e-6)
