"""Balance: the theorems, the costs that are reported, and input that has no answer."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from deconfound.design import Design, Polynomial, Spline, effective_size
from deconfound.design.balance import balance
from deconfound.errors import OptionError, TableError
from tests.conftest import make_table


def categories(n=1200, seed=0):
    """Two crossed categories, a label of two and one of three classes, all tied."""
    rng = np.random.default_rng(seed)
    site, sex = rng.choice(["A", "B", "C"], n, p=[0.5, 0.3, 0.2]), rng.choice(["F", "M"], n)
    chance = 0.15 + 0.5 * (site == "A") + 0.2 * (sex == "M")
    dx = (rng.random(n) < chance).astype(int)
    stage = np.where(dx == 1, rng.choice(["mild", "severe"], n), "none")
    return {"site": site, "sex": sex, "dx": dx, "stage": stage, "age": rng.normal(60, 8, n) + 6 * dx}


def joint(table, label, columns, weight):
    """Weighted shares of label × crossed confounds, by pandas."""
    frame = pd.DataFrame({**{c: table[c] for c in (label, *columns)}, "w": weight})
    return frame.pivot_table(index=list(columns), columns=label, values="w", aggfunc="sum").fillna(0) / weight.sum()


@pytest.mark.parametrize("kind", ["overlap", "inverse"])
@pytest.mark.parametrize("label", ["dx", "stage"])
def test_in_sample_weights_make_label_and_categories_independent_to_the_last_digits(kind, label):
    table = categories()
    found = balance(table, [label], ["site", "sex"], kind, clip=1e9)
    assert found.reports[0].how == "cells"
    shares = joint(table, label, ("site", "sex"), found.weights[:, 0]).to_numpy()
    independent = shares.sum(1, keepdims=True) * shares.sum(0, keepdims=True)
    assert np.abs(shares - independent).max() < 1e-12
    before = joint(table, label, ("site", "sex"), np.ones(1200)).to_numpy()
    assert np.abs(before - before.sum(1, keepdims=True) * before.sum(0, keepdims=True)).max() > 0.02  # the control
    assert found.reports[0].tied_after["all"] < 1e-12 < 0.1 < found.reports[0].tied_before["all"]


def test_overlap_weights_are_one_minus_the_share_of_the_own_class():
    table = categories()
    weight = balance(table, ["dx"], ["site", "sex"]).weights[:, 0]
    frame = pd.DataFrame(table)
    e = frame.groupby(["site", "sex"])["dx"].transform("mean").to_numpy()
    by_hand = np.where(table["dx"] == 1, 1 - e, e)
    np.testing.assert_allclose(weight, by_hand / by_hand.mean(), rtol=1e-12)


def test_a_logistic_model_balances_the_mean_of_every_column_exactly():
    table = make_table(600)
    terms = [Spline("age", 3), "sex", "site"]
    found = balance(table, ["dx"], terms)
    assert found.reports[0].how == "logistic"
    metadata = Design(terms).fit(table).encode(table, np.float64)
    weight, case = found.weights[:, 0], table["dx"] == 1
    gap = np.average(metadata[case], axis=0, weights=weight[case]) - np.average(
        metadata[~case], axis=0, weights=weight[~case]
    )
    assert np.abs(gap).max() < 1e-8
    tied = found.reports[0].tied_before
    assert tied.keys() == {"all", "spline(age, 3)", "sex", "site"}
    by_hand = np.linalg.lstsq(metadata[:, 4:], case - case.mean(), rcond=None)[1][0]
    assert tied["site"] == pytest.approx(1 - by_hand / (case.var() * 600), abs=1e-9)
    assert max(found.reports[0].tied_after.values()) < 1e-12
    assert np.abs(metadata[case].mean(0) - metadata[~case].mean(0)).max() > 0.5  # the control


@pytest.mark.parametrize("label", ["dx", "stage"])
def test_the_logistic_model_is_that_of_scikit_learn_without_a_penalty(label):
    table = categories()
    found = balance(table, [label], ["age", "sex"])
    metadata = Design(["age", "sex"]).fit(table).encode(table, np.float64)
    model = LogisticRegression(C=np.inf, tol=1e-12, max_iter=10_000).fit(metadata, table[label])
    e = model.predict_proba(metadata)
    own = e[np.arange(len(e)), np.searchsorted(model.classes_, table[label])]
    by_hand = 1 / (own * (1 / e).sum(1))
    np.testing.assert_allclose(found.weights[:, 0], by_hand / by_hand.mean(), rtol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_entropy_weights_meet_their_constraints_and_keep_the_means(seed):
    rng = np.random.default_rng(seed)
    n = 500
    table = {"age": rng.normal(60, 9, n), "site": rng.choice(["A", "B", "C"], n)}
    table["score"] = 3 + 0.05 * table["age"] + 0.8 * (table["site"] == "B") + rng.normal(size=n)
    found = balance(table, ["score"], ["age", "site"], "entropy")
    weight = found.weights[:, 0]
    assert (weight > 0).all()
    metadata = Design(["age", "site"]).fit(table).encode(table, np.float64)
    y = (table["score"] - table["score"].mean()) / table["score"].std()
    share = weight / n
    assert np.abs(share @ metadata).max() < 1e-8
    assert abs(share @ y) < 1e-8
    assert np.abs(share @ (y[:, None] * metadata)).max() < 1e-8
    assert np.abs(np.mean(y[:, None] * metadata, axis=0)).max() > 0.1  # the control
    before, after = found.reports[0].dependence
    assert after < before / 2


def test_entropy_weights_that_cannot_be_are_an_error_that_names_the_columns():
    age = np.linspace(20, 80, 200)
    with pytest.raises(TableError, match=r"entropy weights must make .* uncorrelated; got no weights .* score × age"):
        balance({"age": age, "score": 2 * age + 1}, ["score"], ["age"], "entropy")


def test_each_label_has_a_column_and_layers_have_one_weight_per_row():
    """No case of hiv at C: its rows teach nothing about hiv, and still teach mci."""
    table = categories()
    table["hiv"] = np.where(table["site"] == "C", 0, table["dx"])
    table["mci"] = np.random.default_rng(1).integers(0, 2, 1200)
    found = balance(table, ["hiv", "mci"], ["site", "sex"])
    at_c = table["site"] == "C"
    assert (found.weights[at_c, 0] == 0).all()
    assert (found.weights[at_c, 1] > 0).all()
    np.testing.assert_allclose(found.weights.mean(0), 1)
    np.testing.assert_allclose(found.row_weight, found.weights.mean(1))
    (gap,) = found.reports[0].no_overlap
    assert (gap.column, gap.level, gap.absent, gap.rows) == ("site", "C", ("1",), int(at_c.sum()))
    assert f"no hiv 1 at site C: its {at_c.sum()} rows teach nothing about hiv" in str(found)
    assert found.unweighted == ()


def test_a_level_without_weight_for_any_label_has_weight_one_in_layers_and_is_named():
    table = categories()
    table["dx"] = np.where(table["site"] == "C", 0, table["dx"])
    found = balance(table, ["dx"], ["site"])
    assert found.unweighted == (("site", "C"),)
    assert (found.row_weight[table["site"] == "C"] == 1).all()
    assert (found.weights[table["site"] == "C"] == 0).all()
    assert "site C has no weight for any label; layers use weight 1" in str(found)


def test_the_text_tells_what_weights_cost_and_asks_what_statistics_cannot_answer():
    table = categories() | {"person": np.arange(1200) // 3}
    found = balance(table, ["dx"], ["site", "sex"], person="person")
    (report,) = found.reports
    weight = found.weights[:, 0]
    case = table["dx"] == 1
    assert report.effective["1"] == pytest.approx(weight[case].sum() ** 2 / (weight[case] ** 2).sum())
    assert report.effective_strata["site"]["B"] == pytest.approx(effective_size(weight[table["site"] == "B"]))
    by_person = weight.reshape(400, 3).sum(1)
    assert report.effective_people == pytest.approx(by_person.sum() ** 2 / (by_person**2).sum())
    assert report.largest == pytest.approx(weight.max())
    assert report.weighted_prevalence["1"] == pytest.approx(0.5)
    assert report.prevalence["1"] == pytest.approx(case.mean())
    text = str(found)
    for part in ("effective sample size 0 ", "largest weight", "effective rows by site: A", "mediator", "collider",
                 "dx can be balanced: its tie to the confounds falls from"):  # fmt: skip
        assert part in text
    assert found.answerable
    json.dumps(found.to_dict())


def test_a_weak_tie_and_a_hopeless_one_have_their_own_verdicts():
    rng = np.random.default_rng(0)
    table = {"site": rng.choice(["A", "B"], 400), "dx": rng.integers(0, 2, 400)}
    assert "hardly tied to the confounds: weights would only cost rows" in str(balance(table, ["dx"], ["site"]))
    table["dx"] = (table["site"] == "A").astype(int)
    table["dx"][:3] = 1 - table["dx"][:3]
    hopeless = balance(table, ["dx"], ["site"])
    assert not hopeless.answerable
    said = "Too little is left to learn dx from: weights leave 3.0 of 182 rows of 1; the confounds nearly determine it"
    assert said in str(hopeless)


def test_codes_of_sites_and_labels_are_shown_without_a_point():
    table = categories()
    table["site"] = np.where(table["site"] == "A", 17.0, np.where(table["site"] == "B", 3.0, 5.0))
    table["dx"] = np.where(table["site"] == 5, 0.0, table["dx"].astype(float))
    table["site"][0], table["dx"][1] = np.nan, np.nan
    found = balance(table, ["dx"], ["site"], types={"site": "categorical"}, missing="mean")
    (report,) = found.reports
    assert report.effective.keys() == report.prevalence.keys() == {"0", "1"}
    assert report.effective_strata["site"].keys() == {"3", "5", "17", "missing"}
    assert found.unweighted[0] == ("site", "5")
    assert "no dx 1 at site 5: its" in str(found)
    assert "at site missing: its 1 row teaches nothing about dx" in str(found)
    assert not re.search(r"(site|dx|,|:) (0|1|3|5|17)\.0 ", str(found))


def test_a_class_that_is_rare_before_any_weighting_is_not_put_down_to_the_confounds():
    rng = np.random.default_rng(0)
    table = {"site": rng.choice(["A", "B"], 400), "dx": np.zeros(400, int)}
    table["dx"][rng.permutation(400)[:6]] = 1
    found = balance(table, ["dx"], ["site"])
    assert not found.answerable
    assert found.reports[0].tied_before["all"] < 0.05  # the confounds say next to nothing
    assert found.reports[0].verdict == (
        "dx has too few rows to be learned, before any weighting: 6 rows of 1. Add rows, or join classes."
    )
    few = {"age": rng.normal(60, 8, 8), "score": rng.normal(size=8)}
    verdict = balance(few, ["score"], ["age"], "entropy").reports[0].verdict
    assert verdict.startswith("score has too few rows to be learned, before any weighting: 8 rows. Add rows")


def test_a_rare_class_and_one_that_the_confounds_determine_are_told_apart_in_one_report():
    rng = np.random.default_rng(0)
    site = np.repeat(["A", "B"], 200)
    stage = np.where(site == "A", "none", "mild").astype(object)
    stage[[0, 1, 2, 200, 201, 202]] = ["mild", "mild", "severe", "none", "none", "severe"]
    rare, lost = balance({"site": site, "stage": stage}, ["stage"], ["site"]).reports[0].verdict.split(" Too little ")
    assert rare == (
        "stage has too few rows to be learned, before any weighting: 2 rows of severe. Add rows, or join classes."
    )
    assert re.fullmatch(
        r"is left to learn stage from: .* of \d+ rows of mild, .* the confounds nearly determine it .*", lost
    )
    small = {"age": rng.normal(60, 8, 300), "dx": np.arange(300) < 11}
    small["age"][:11] += np.linspace(0, 14, 11)
    (report,) = balance(small, ["dx"], ["age"], "inverse").reports
    assert 5.5 < report.effective["True"] < 10
    assert re.search(r"weights leave [\d.]+ of 11 rows of True; there were few from the start\.", report.verdict)


def test_inverse_weights_are_clipped_and_cost_more_rows_than_overlap_weights():
    table = make_table(500)
    overlap, inverse = (balance(table, ["dx"], ["age", "site"], kind, clip=4.0) for kind in ("overlap", "inverse"))
    assert inverse.reports[0].largest > overlap.reports[0].largest
    assert min(inverse.reports[0].effective.values()) < min(overlap.reports[0].effective.values())
    loose = balance(table, ["dx"], ["age", "site"], "inverse", clip=1e9)
    assert loose.reports[0].largest > inverse.reports[0].largest


def test_categories_of_numbers_are_strata_and_classes():
    table = pd.DataFrame(categories())
    coded = pd.DataFrame({name: table[name].astype("category").cat.codes for name in ("dx", "site")})
    coded = coded.astype("category")
    np.testing.assert_array_equal(balance(coded, ["dx"], ["site"]).weights, balance(table, ["dx"], ["site"]).weights)
    turned = balance(coded, ["site"], ["dx"])
    assert list(turned.reports[0].effective) == ["0", "1", "2"]
    np.testing.assert_allclose(turned.weights, balance(table, ["site"], ["dx"]).weights, rtol=1e-12)


def test_rows_without_a_label_have_no_weight_and_are_counted():
    table = {name: values.astype(object) for name, values in categories().items()}
    table["dx"][:50] = None
    found = balance(table, ["dx"], ["site"])
    assert (found.weights[:50] == 0).all()
    assert found.reports[0].rows == 1150
    assert found.weights[50:, 0].mean() == pytest.approx(1)


def test_a_missing_confound_is_an_error_or_a_stratum_of_its_own():
    table = {name: values.astype(object) for name, values in categories().items()}
    table["site"][:200] = None
    with pytest.raises(TableError, match="column 'site' must have a value in every row; got a missing value"):
        balance(table, ["dx"], ["site"])
    found = balance(table, ["dx"], ["site"], missing="mean")
    assert found.reports[0].effective_strata["site"].keys() == {"A", "B", "C", "missing"}


def test_cross_fitted_weights_keep_people_whole_and_leave_a_little_of_the_tie():
    table = categories() | {"person": np.arange(1200) // 3}
    within, across = (balance(table, ["dx"], ["site"], folds=k, person="person").reports[0] for k in (0, 5))
    assert within.tied_after["all"] < 1e-12 < across.tied_after["all"] < 0.01
    few = table | {"person": np.arange(1200) % 4}
    with pytest.raises(OptionError, match="folds must be at most the number of people, 4; got 5"):
        balance(few, ["dx"], ["site"], folds=5, person="person")


def test_columns_that_separate_the_classes_are_reported():
    rng = np.random.default_rng(0)
    age = rng.normal(60, 8, 300)
    dx = (age > 60).astype(int)
    dx[np.argsort(np.abs(age - 60))[:40]] = rng.integers(0, 2, 40)
    smooth = balance({"age": age, "dx": dx}, ["dx"], ["age"])
    assert np.isfinite(smooth.weights).all()
    stage = rng.integers(0, 3, 300)
    part = balance({"c": (stage == 2).astype(float), "stage": stage.astype(str)}, ["stage"], ["c"])
    assert part.reports[0].separated
    assert "Weights do not balance stage: its tie to the confounds is" in str(part)
    assert "can be balanced" not in str(part)


@pytest.mark.parametrize("kind", ["overlap", "inverse", "entropy"])
@pytest.mark.parametrize("folds", [0, 5])
@pytest.mark.parametrize("copy", [np.asarray, np.float64, lambda dx: dx == 1, lambda dx: np.array(["a", "b"])[dx]])
def test_a_label_that_a_column_of_any_type_determines_is_refused(kind, folds, copy):
    dx = np.random.default_rng(0).integers(0, 2, 300)
    with pytest.raises(TableError, match=r"must vary (among|within)|no weights that do, because of"):
        balance({"dx": dx, "c": copy(dx)}, ["dx"], ["c"], kind, folds=folds)


def test_a_label_that_a_cut_through_a_numeric_column_determines_is_refused():
    age = np.random.default_rng(0).normal(60, 8, 300)
    with pytest.raises(TableError, match=r"got confounds that determine it in every row. This table cannot tell"):
        balance({"age": age, "dx": (age > 60).astype(int)}, ["dx"], ["age"])


def test_a_design_balances_its_keep_columns_and_its_diagnosis_shows_it():
    table = categories()
    design = Design(["site", "sex"], keep=["dx"]).fit(table)
    assert np.array_equal(design.balance(table).weights, balance(table, ["dx"], ["site", "sex"]).weights)
    assert "overlap weights" in str(design.diagnose(table))
    assert "overlap weights" not in str(design.diagnose())
    numeric = Design(["site"], keep=["age"]).fit(table)
    assert "entropy weights" in str(numeric.diagnose(table))
    same = {"site": ["A"] * 30 + ["B"] * 30, "dx": [0] * 30 + [1] * 30}
    with pytest.warns(UserWarning, match="not to be told apart from keep"):
        tied = Design(["site"], keep=["dx"]).fit(same)
    assert "must vary within the strata of the confounds" in str(tied.diagnose(same))
    with pytest.raises(OptionError, match="got a design without keep"):
        Design(["site"]).fit(table).balance(table)


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("labels must be a list of at least one column; got 'dx'", {"labels": "dx"}),
        ("labels must be a list of at least one column; got []", {"labels": []}),
        ("got 'dxx', which it lacks. Did you mean 'dx'", {"labels": ["dxx"]}),
        ("a column must be a label or a confound; got 'site' as both", {"labels": ["site"]}),
        ("kind must be one of 'overlap', 'inverse', 'entropy'; got 'ipw'", {"kind": "ipw"}),
        ("kind must be 'entropy' for a numeric label; got 'overlap' for 'age'", {"labels": ["age"]}),
        ("Pass types={'age': 'categorical'} if its numbers are names of classes", {"labels": ["age"]}),
        ("clip must be above 1, the mean of the weights; got 1", {"clip": 1}),
        ("folds must be 0 (in-sample) or at least 2; got 1", {"folds": 1}),
        ("label 'one' must have at least two classes; got 'x' alone", {"labels": ["one"]}),
        ("label 'none' must have a value in at least one row", {"labels": ["none"]}),
    ],
)
def test_bad_input_gets_a_text_that_says_what_to_do(text, change):
    table = categories(100) | {"one": ["x"] * 100, "none": [None] * 100}
    options = {"labels": ["dx"], "confounds": ["site"]} | change
    with pytest.raises((OptionError, TableError)) as caught:
        balance(table, **options)
    assert text in str(caught.value)


def test_more_confounds_than_rows_are_refused():
    rng = np.random.default_rng(0)
    table = {f"x{i}": rng.normal(size=12) for i in range(14)} | {"dx": [0, 1] * 6}
    with pytest.raises(TableError, match="balance must have more rows than columns of confounds; got 12 rows and"):
        balance(table, ["dx"], [f"x{i}" for i in range(14)])


@pytest.mark.parametrize("terms", [["age", "sex", "site"], [Polynomial("age", 2)], [Spline("age", 3), "site"]])
def test_a_weighted_design_is_white_under_its_weights(terms):
    table = make_table(300)
    weight = np.random.default_rng(0).exponential(size=300)
    fitted = Design(terms, keep=["dx"]).fit(table, weight=weight)
    metadata = fitted.encode(table, np.float64)
    share = weight / weight.sum()
    np.testing.assert_allclose(share @ metadata, 0, atol=1e-12)
    white = metadata @ fitted.whitening
    np.testing.assert_allclose((white.T * share) @ white, np.eye(white.shape[1]), atol=1e-12)
    assert np.abs(white.mean(0)).max() > 1e-3  # the control: not without them
    doubled = {name: np.concatenate([values, values[:100]]) for name, values in table.items()}
    counted = Design(terms, keep=["dx"]).fit(table, weight=np.r_[np.full(100, 2.0), np.ones(200)])
    if not isinstance(terms[0], Spline):  # knots of a spline stand at quantiles of rows, not of weights
        twice = Design(terms, keep=["dx"]).fit(doubled)
        np.testing.assert_allclose(counted.encode(table), twice.encode(table), atol=1e-6)


@pytest.mark.parametrize(
    ("weight", "text"),
    [
        (np.ones(7), r"weight must have one number for each of 20 rows; got shape \(7,\)"),
        (np.r_[-1.0, np.ones(19)], r"weight must be finite and not negative; got -1.0 in row 0"),
        (np.r_[np.nan, np.ones(19)], "weight must be finite and not negative; got nan in row 0"),
        (np.zeros(20), "weight must be positive in at least one row; got 20 zeros"),
        (["a"] * 20, "weight must be one number per row"),
    ],
)
def test_weights_that_cannot_be_are_refused(weight, text):
    with pytest.raises(ValueError, match=text):
        Design(["age"]).fit(make_table(20), weight=weight)
