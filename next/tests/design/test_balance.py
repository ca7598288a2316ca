"""Balance: under the weights labels and confounds are independent, and the price is reported."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import linprog, minimize

from deconfound import Design, Interaction, Spline, balance
from deconfound.errors import OptionError, TableError


def draw_people(n=600, classes=("AD", "CN"), seed=0):
    """A label that depends on age and site, both of which it shares with nobody."""
    rng = np.random.default_rng(seed)
    age, site = rng.normal(65, 8, n), rng.choice(["KCL", "UCL", "UCSF"], n)
    scores = 0.08 * (age - 65) + (site == "UCL")
    scores = np.outer(scores, np.linspace(1, -1, len(classes))) + rng.gumbel(size=(n, len(classes)))
    sex = rng.choice(["F", "M"], n)
    dx = np.array(classes)[scores.argmax(axis=1)]
    return pd.DataFrame({"age": age, "site": site, "sex": sex, "dx": dx})


def weighted_r_squared(y, columns, weight):
    """R² of weighted least squares by numpy."""
    root = np.sqrt(weight / weight.sum())
    x = np.column_stack([np.ones(len(y)), columns]) * root[:, None]
    centred = (y - np.average(y, weights=weight)) * root
    rest = centred - x @ np.linalg.lstsq(x, centred, rcond=None)[0]
    return 1 - rest @ rest / (centred @ centred)


def raw_columns(table):
    """Confounds as a user would code them by hand."""
    return np.column_stack([table["age"], table["site"] == "KCL", table["site"] == "UCL"]).astype(
        float
    )


def test_overlap_weights_balance_two_classes_exactly():
    """Weighted means of all confound columns are equal to 1e-12 (19), also of splines.

    Kills weights of the other class, e for cases and 1 − e for controls.
    """
    table = draw_people()
    terms = [Spline("age"), "site", Interaction("site", "age")]
    result = balance(table, ["dx"], terms)
    columns = Design(terms).fit(table).encode(table, dtype=np.float64)
    weight, is_case = result.weights[:, 0], (table["dx"] == "AD").to_numpy()
    gap = np.average(columns[is_case], axis=0, weights=weight[is_case])
    gap -= np.average(columns[~is_case], axis=0, weights=weight[~is_case])
    assert np.abs(gap).max() < 1e-12
    assert np.abs(columns[is_case].mean(0) - columns[~is_case].mean(0)).max() > 0.3  # control
    assert weight.mean() == pytest.approx(1)
    assert weight.min() > 0


def test_overlap_weights_are_those_of_the_logistic_model():
    """1 − e for cases and e for controls, where e maximises the likelihood (oracle: BFGS)."""
    table = draw_people()
    weight = balance(table, ["dx"], ["age", "site"]).weights[:, 0]
    x = raw_columns(table)
    x = np.column_stack([np.ones(600), (x - x.mean(0)) / x.std(0)])
    y = (table["dx"] == "AD").to_numpy(float)

    def loss(beta):
        return np.logaddexp(0, x @ beta).sum() - y @ x @ beta, x.T @ (
            1 / (1 + np.exp(-x @ beta)) - y
        )

    beta = minimize(loss, np.zeros(4), jac=True, method="BFGS", options={"gtol": 1e-9}).x
    share = 1 / (1 + np.exp(-x @ beta))
    expected = np.where(y == 1, 1 - share, share)
    np.testing.assert_allclose(weight, expected / expected.mean(), rtol=1e-6)


def test_site_alone_has_the_weights_of_its_shares():
    """With one categorical confound e is the share in the site, so independence is exact."""
    table = draw_people()
    weight = balance(table, ["dx"], ["site"]).weights[:, 0]
    sums = pd.crosstab(table["site"], table["dx"], values=weight, aggfunc="sum").to_numpy()
    expected = np.outer(sums.sum(1), sums.sum(0)) / sums.sum()
    np.testing.assert_allclose(sums, expected, rtol=1e-12)


def test_several_classes_are_nearly_balanced_and_the_rest_is_reported():
    """Weights are (1/e_own) / Σ 1/e; R² after weighting is that of least squares."""
    table = draw_people(1500, classes=("AD", "CN", "MCI"))
    result = balance(table, ["dx"], ["age", "site"])
    report = result.reports[0]
    weight = result.weights[:, 0]
    for moment, weights in (("before", np.ones(1500)), ("after", weight)):
        explained = variance = 0.0
        for level in ("AD", "CN", "MCI"):
            y = (table["dx"] == level).to_numpy(float)
            share = np.average(y, weights=weights)
            explained += share * (1 - share) * weighted_r_squared(y, raw_columns(table), weights)
            variance += share * (1 - share)
        measured = getattr(report, f"association_{moment}")["all confounds"]
        assert measured == pytest.approx(explained / variance, abs=1e-7)
    assert report.association_before["all confounds"] > 0.1
    assert report.association_after["all confounds"] < 0.005


def test_report_states_what_the_weights_cost():
    """Kish's effective sizes, the largest weight and R² are recomputed from the weights."""
    table = draw_people()
    result = balance(table, ["dx"], ["age", "site"])
    report, weight = result.reports[0], result.weights[:, 0]
    for level in ("AD", "CN"):
        inside = weight[table["dx"] == level]
        assert report.effective[level] == pytest.approx(inside.sum() ** 2 / (inside**2).sum())
        assert report.rows[level] == len(inside)
    assert report.largest == weight.max()
    y = (table["dx"] == "AD").to_numpy(float)
    expected = weighted_r_squared(y, raw_columns(table), np.ones(600))
    assert report.association_before["all confounds"] == pytest.approx(expected, abs=1e-7)
    expected = weighted_r_squared(y, table["age"], np.ones(600))
    assert report.association_before["age"] == pytest.approx(expected, abs=1e-7)
    assert report.association_after["all confounds"] < 1e-12
    assert report.is_answerable
    text = str(result)
    assert "dx can be balanced." in text
    assert f"AD {report.effective['AD']:.1f} of {report.rows['AD']}" in text
    assert json.loads(json.dumps(result.to_dict()))["reports"][0]["is_answerable"] is True


def test_people_with_many_rows_count_once():
    """Every row twice leaves the effective number of people. Kills a count of rows."""
    table = draw_people(200).assign(person=[f"sub-{row:03}" for row in range(200)])
    once = balance(table, ["dx"], ["age"], person="person").reports[0]
    twice = balance(pd.concat([table, table]), ["dx"], ["age"], person="person").reports[0]
    assert twice.effective_people == pytest.approx(once.effective_people)
    assert twice.effective["AD"] == pytest.approx(2 * once.effective["AD"])


def test_rows_without_an_id_are_people_of_their_own():
    """Kills missing ids that count as one person."""
    table = draw_people(200)
    ids = table.assign(person=[f"sub-{row:03}" for row in range(200)])
    none = table.assign(person=None)
    reports = [balance(t, ["dx"], ["age"], person="person").reports[0] for t in (ids, none)]
    assert reports[0].effective_people == pytest.approx(reports[1].effective_people)


def test_site_without_a_class_has_weight_zero_and_is_named():
    """Removing it may empty a stratum of another confound, which is named as well (19)."""
    table = draw_people()
    abroad = np.asarray(table.index < 40) & (table["dx"] == "AD").to_numpy()
    table.loc[abroad, "site"] = "abroad"
    table["scanner"] = np.where(abroad, "new", "old")
    # The only cases on the scanner "rare" are those abroad.
    table.loc[abroad & (table.index < 20), "scanner"] = "rare"
    table.loc[590:, "scanner"] = "rare"
    table.loc[590:, "dx"] = "CN"
    result = balance(table, ["dx"], ["site", "scanner"])
    stratum = {(item.column, item.level): item.classes for item in result.reports[0].absent_classes}
    assert stratum == {
        ("site", "abroad"): ("CN",),
        ("scanner", "new"): ("CN",),
        ("scanner", "rare"): ("AD",),
    }
    gone = abroad | (table.index >= 590)
    assert (result.weights[gone, 0] == 0).all()
    assert (result.weights[~gone, 0] > 0).all()
    assert "no CN at site abroad: weight 0" in str(result)
    # Rows to draw leave it out, and a design must still know the sites of the table.
    assert ("site", "abroad") in result.unweighted
    assert (result.row_weight[abroad] == 0).all()
    assert "abroad" in Design(["site"]).fit(table, result.design_weight).levels["site"]
    np.testing.assert_array_equal(result.design_weight[~gone], result.row_weight[~gone])


def test_several_labels_and_missing_labels():
    """Each label has its own weights of mean 1 on its rows; a row without it has weight 0."""
    table = draw_people()
    table["apoe"] = np.where(np.random.default_rng(1).random(600) < 0.3, "e4", "e3")
    table.loc[:49, "apoe"] = None
    table.loc[:9, "age"] = np.nan  # No fault for "apoe", whose rows these are not.
    result = balance(table.iloc[10:], ["dx", "apoe"], ["age", "site"])
    assert (result.weights[:40, 1] == 0).all()
    assert result.weights[40:, 1].mean() == pytest.approx(1)
    np.testing.assert_allclose(result.row_weight, result.weights.mean(axis=1))
    alone = balance(table, ["apoe"], ["age", "site"])
    np.testing.assert_allclose(alone.weights[10:, 0], result.weights[:, 1], rtol=1e-9)


def test_entropy_weights_are_the_nearest_uncorrelated_ones():
    """Moments vanish, means stay, and no feasible step of the weights raises the entropy."""
    table = draw_people()
    weight = balance(table, ["dx"], ["age", "site"], kind="entropy").weights[:, 0]
    columns = raw_columns(table)
    columns = (columns - columns.mean(0)) / columns.std(0)
    y = (table["dx"] == "AD").to_numpy(float)
    y = (y - y.mean()) / y.std()
    moments = np.column_stack([columns, y, columns * y[:, None]])
    assert np.abs(weight @ moments / 600).max() < 1e-9
    # At the optimum log w is linear in the moments (the first-order condition).
    x = np.column_stack([np.ones(600), moments])
    rest = np.log(weight) - x @ np.linalg.lstsq(x, np.log(weight), rcond=None)[0]
    assert np.abs(rest).max() < 1e-8
    assert np.abs(columns.T @ y).max() / 600 > 0.2  # control


def test_entropy_weights_serve_numeric_labels():
    """Overlap weights refuse a numeric label; entropy weights remove its correlation."""
    table = draw_people()
    table["score"] = 0.1 * table["age"] + np.random.default_rng(1).normal(size=600)
    with pytest.raises(TableError, match="kind='entropy'"):
        balance(table, ["score"], ["age", "site"])
    result = balance(table, ["score"], ["age", "site"], kind="entropy")
    weight = result.weights[:, 0]
    assert weighted_r_squared(table["score"], raw_columns(table), weight) < 1e-12
    assert np.average(table["score"], weights=weight) == pytest.approx(table["score"].mean())
    assert list(result.reports[0].effective) == ["all"]


def test_infeasible_entropy_weights_are_refused_by_name():
    """A label that is a function of age: linear programming agrees that there are no weights."""
    table = draw_people(100)
    table["score"] = table["age"] * 2.5
    columns = (table["age"] - table["age"].mean()).to_numpy()
    equalities = np.vstack([columns, columns**2, np.ones(100)])
    assert linprog(np.zeros(100), A_eq=equalities, b_eq=[0, 0, 1]).status == 2
    with pytest.raises(TableError, match=r"'score' and the confounds uncorrelated.*'age'"):
        balance(table, ["score"], ["age"], kind="entropy")


@pytest.mark.parametrize("kind", ["overlap", "entropy"])
def test_label_within_sites_only_is_refused(kind):
    """Each site has one class, so there is nothing to weigh."""
    table = {"site": ["A"] * 20 + ["B"] * 20, "dx": ["AD"] * 20 + ["CN"] * 20}
    with pytest.raises(TableError, match=r"'dx' must vary within the strata.*Collect rows"):
        balance(table, ["dx"], ["site"], kind=kind)


def test_label_that_a_number_determines_is_refused():
    table = {"age": np.linspace(50.5, 80.5, 40), "dx": ["CN"] * 20 + ["AD"] * 20}
    with pytest.raises(TableError, match=r"determine label 'dx' in every row.*Collect rows"):
        balance(table, ["dx"], ["age"])


def test_more_columns_than_rows_are_refused():
    rng = np.random.default_rng(0)
    table = {f"x{i}": rng.normal(size=12) for i in range(11)} | {"dx": ["AD", "CN"] * 6}
    with pytest.raises(TableError, match=r"12 rows and 11 columns.*join levels"):
        balance(table, ["dx"], [f"x{i}" for i in range(11)])


def test_few_effective_rows_are_not_answerable():
    table = draw_people(24)
    report = balance(table, ["dx"], ["age", "site"]).reports[0]
    assert not report.is_answerable
    assert "cannot separate dx from the confounds" in report.verdict


def test_independent_label_needs_no_weights():
    rng = np.random.default_rng(0)
    table = {"age": rng.normal(60, 9, 2000), "dx": rng.choice(["AD", "CN"], 2000)}
    assert "would only cost rows" in balance(table, ["dx"], ["age"]).reports[0].verdict


def test_missing_confounds_are_an_error_or_the_mean():
    table = draw_people(200)
    table.loc[3, "age"] = np.nan
    with pytest.raises(TableError, match=r"'age' must have a value.*row 3.*unseen='mean'"):
        balance(table, ["dx"], ["age"])
    assert (balance(table, ["dx"], ["age"], unseen="mean").weights > 0).all()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"labels": "dx"}, OptionError, r"labels must be a list .*\['dx'\]"),
        ({"labels": []}, OptionError, "labels must be a list"),
        ({"labels": ["dx", "dx"]}, OptionError, "different columns"),
        ({"labels": ["age"]}, OptionError, "'age' as both"),
        ({"kind": "inverse"}, OptionError, "'overlap' or 'entropy'; got 'inverse'"),
        ({"confounds": "age"}, OptionError, "confounds must be a list"),
        ({"unseen": "zero"}, OptionError, "unseen must be"),
        ({"types": {"agee": "numeric"}}, TableError, "'agee'"),
        ({"labels": pd.Series(["John", "Mary"])}, OptionError, "got a Series"),
        ({"labels": ["dxx"], "person": "sub"}, TableError, "'dxx'[\\s\\S]*'sub'"),
        ({"labels": ["one"]}, TableError, "must vary; it has only the value 'A'"),
        ({"labels": ["empty"]}, TableError, "no value"),
        ({"labels": ["stage"]}, TableError, r"types=\{'stage': 'categorical'\}"),
    ],
)
def test_wrong_arguments(arguments, error, text):
    """One class, an absent column and a wrong option say what to write (45)."""
    table = draw_people(60).assign(one="A", empty=None, stage=[1, 2, 3] * 20)
    with pytest.raises(error, match=text):
        balance(table, **({"labels": ["dx"], "confounds": ["age"]} | arguments))


def test_faults_of_all_labels_are_reported_together():
    table = draw_people(60).assign(one="A", stage=[1, 2, 3] * 20)
    with pytest.raises(TableError) as caught:
        balance(table, ["dx", "one", "stage"], ["age"])
    assert len(caught.value.faults) == 2
