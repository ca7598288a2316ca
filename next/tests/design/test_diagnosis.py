"""The diagnosis measures by R² what a design cannot separate, and names it."""

import warnings

import numpy as np
import pytest

from deconfound import Design, Spline
from deconfound.errors import DeconfoundWarning


def draw_people(n=300):
    rng = np.random.default_rng(0)
    site = rng.choice(["A", "B", "C"], n)
    age = rng.normal(60, 9, n) + 5 * (site == "B")
    dx = np.where((site == "C") | (rng.random(n) < 0.2), "AD", "CN")
    return {"age": age, "site": site, "dx": dx, "months": 12 * age + rng.normal(0, 12, n)}


def r_squared(target, predictors, weight):
    """R² of weighted least squares by numpy."""
    root = np.sqrt(weight)
    x = np.column_stack([np.ones(len(target)), predictors]) * root[:, None]
    y = (target - np.average(target, weights=weight)) * root
    rest = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    return 1 - rest @ rest / (y @ y)


@pytest.mark.parametrize("weighted", [False, True])
def test_r_squared_is_that_of_least_squares(weighted):
    table = draw_people()
    weight = np.random.default_rng(1).random(300) if weighted else np.ones(300)
    diagnosis = Design(["age", "site"], keep=["dx"]).fit(table, weight).diagnose()
    target = (table["dx"] == "CN").astype(float)
    site = np.column_stack([table["site"] == "B", table["site"] == "C"])
    expected = {
        ("dx[CN]", "all confounds"): r_squared(target, np.c_[table["age"], site], weight),
        ("dx[CN]", "age"): r_squared(target, table["age"], weight),
        ("dx[CN]", "site"): r_squared(target, site, weight),
    }
    measured = {(a.target, a.by): a.r2 for a in diagnosis.associations}
    assert measured == pytest.approx(expected, abs=1e-7)
    assert not diagnosis.notes


def test_inseparable_label_is_named():
    """Also where the confound itself is dropped, because it equals the label."""
    table = draw_people()
    table["scanner"] = np.where(table["dx"] == "AD", "new", "old")
    with pytest.warns(DeconfoundWarning, match="credited to keep"):
        design = Design(["age", "scanner"], keep=["dx"]).fit(table)
    notes = design.diagnose().notes
    assert [note.kind for note in notes] == ["shared", "shared"]
    assert str(notes[1]) == "scanner explains 100% of dx[CN]: no method can separate them."


def test_overlapping_terms_and_small_levels_are_named():
    table = draw_people()
    table["site"] = np.r_[["rare"] * 4, table["site"][4:]]
    design = Design([Spline("age"), "months", "site"], keep=["dx"]).fit(table)
    notes = design.diagnose().notes
    assert [(note.kind, note.columns) for note in notes] == [
        ("overlap", ("months", "spline(age)")),
        ("small level", ("site", "rare")),
    ]
    assert notes[1].value == 4
    assert "can hardly be told apart" in str(design.diagnose())


def test_redundant_confounds_do_not_break_the_diagnosis():
    """A singular block of confounds has the R² of its independent columns."""
    table = draw_people()
    table["years"] = 2 * table["age"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconfoundWarning)
        design = Design(["age", "years"], keep=["dx"]).fit(table)
    shares = {a.by: a.r2 for a in design.diagnose().associations if a.target == "dx[CN]"}
    assert shares["all confounds"] == pytest.approx(shares["age"], abs=1e-7)
