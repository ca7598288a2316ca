"""Performance where labels and confounds are independent: recomputed by hand, and blind to what the confound gives."""

import numpy as np
import pytest

import deconfound as dc


def people(n=600, seed=0):
    rng = np.random.default_rng(seed)
    dx = np.where(rng.random(n) < 0.5, "case", "control")
    site = np.where(rng.random(n) < np.where(dx == "case", 0.8, 0.2), "B", "A")
    return {"dx": dx, "site": site}


def rows_of(scores, table, **options):
    found = dc.audit(
        scores, table, confounds=["site"], labels=["dx"], permutations=39, bootstraps=60, embedding=False, **options
    )
    return found, {row.statistic: row for row in found.rows if row.space == "outputs" and not row.confound}


def test_a_score_that_knows_the_site_alone_is_worth_nothing_once_site_and_label_are_independent():
    table = people()
    _, rows = rows_of((table["site"] == "B").astype(float), table)
    assert rows["auc"].value > 0.75  # the control
    assert rows["independent_auc"].value == pytest.approx(0.5, abs=1e-9)
    assert rows["independent_auc"].low <= 0.5 <= rows["independent_auc"].high
    case = table["dx"] == "case"
    share = np.array([case[table["site"] == site].mean() for site in table["site"]])
    weight = np.where(case, 1 - share, share)
    assert rows["independent_rows"].value == pytest.approx(weight.sum() ** 2 / (weight**2).sum())


def test_the_weighted_auc_is_that_of_weighted_pairs():
    table = people(120)
    scores = np.random.default_rng(1).normal(size=120) + (table["dx"] == "case")
    found, rows = rows_of(scores, table)
    case = table["dx"] == "case"
    share = np.array([case[table["site"] == site].mean() for site in table["site"]])
    weight = np.where(case, 1 - share, share)
    wins = [(weight[i] * weight[j], scores[i] > scores[j]) for i in np.flatnonzero(case) for j in np.flatnonzero(~case)]
    expected = np.average([win for _, win in wins], weights=[w for w, _ in wins])
    assert rows["independent_auc"].value == pytest.approx(expected)
    right = (scores > 0) == case
    assert rows["independent_accuracy"].value == pytest.approx(np.average(right, weights=weight))
    page = found.to_html()
    assert "Where labels and confounds are independent" in page


def test_a_numeric_label_has_its_r2_under_entropy_weights():
    rng = np.random.default_rng(2)
    site = rng.choice(["A", "B"], 400)
    age = rng.normal(60, 8, 400) + 8 * (site == "B")
    found = dc.audit(
        60 + 8.0 * (site == "B"), {"age": age, "site": site}, confounds=["site"], labels=["age"], permutations=39,
        bootstraps=60, embedding=False,
    )  # fmt: skip
    values = {row.statistic: row.value for row in found.rows if row.space == "outputs" and not row.confound}
    assert values["r2"] > 0.15
    assert values["independent_r2"] < 0.05


def test_rows_that_cannot_be_weighted_are_told():
    table = {"dx": np.repeat(["case", "control"], 40), "site": np.repeat(["A", "B"], 40)}
    with pytest.warns(dc.errors.DeconfoundWarning):
        found, rows = rows_of(np.random.default_rng(0).normal(size=80), table)
    assert "independent_auc" not in rows
    (note,) = [note for note in found.notes if note.kind == "no independent rows"]
    assert "must vary within the strata of the confounds" in note.text


def test_classes_without_a_confound_in_common_leave_no_weights_and_are_told():
    table = {"age": np.random.default_rng(72089).normal(60, 9, 28), "dx": np.full(28, None)}
    table["dx"][[0, 3, 8, 20, 21, 22, 23, 27]] = [0, False, 0, True, True, -1, 2, 1]
    with pytest.warns(dc.errors.DeconfoundWarning):
        found = dc.audit(np.arange(28.0), table, confounds=["age"], labels=["dx"], permutations=19, bootstraps=40)
    assert any("not weighted to independence" in note.text for note in found.notes)
