"""The residualiser is ordinary least squares on the rows of fit, and says so when it cannot be."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import cross_val_score

import deconfound as dc
from deconfound.errors import DeconfoundWarning
from deconfound.metrics import beyond_linear, column
from deconfound.sklearn import ConfoundResidualizer
from tests.sklearn_.people import CONFOUNDS, make_people

FEATURES = [f"f{place}" for place in range(8)]


def by_hand(X, dx=None):
    """Dummy columns and scikit-learn's least squares; the confounds' part at their mean is not subtracted."""
    confounds = np.column_stack([X["age"], X["site"] == "B", X["head"]])
    regressors = confounds if dx is None else np.column_stack([confounds, dx])
    effects = LinearRegression().fit(regressors, X[FEATURES]).coef_[:, :3]
    return X[FEATURES].to_numpy() - (confounds - confounds.mean(0)) @ effects.T, effects


@pytest.mark.parametrize("keep", [None, "y"])
def test_it_is_ordinary_least_squares_with_and_without_the_label(keep):
    X, dx = make_people(300)
    expected, effects = by_hand(X, dx if keep else None)
    residualizer = ConfoundResidualizer(CONFOUNDS, keep=keep).fit(X, dx)
    np.testing.assert_allclose(residualizer.transform(X), expected, atol=1e-10)
    found = [residualizer.coefficients_[name] for name in ("age", "site[B]", "head")]
    np.testing.assert_allclose(np.column_stack(found), effects, atol=1e-12)


def test_no_confound_is_left_in_any_feature_and_each_was_there_before():
    X, _ = make_people(300)
    confounds = np.column_stack([X["age"], X["site"] == "B", X["head"]]).astype(float)

    def correlations(values):
        return np.abs(np.corrcoef(np.column_stack([values, confounds]).T)[:8, 8:])

    assert (correlations(X[FEATURES]).max(0) > 0.5).all()
    assert correlations(ConfoundResidualizer(CONFOUNDS).fit_transform(X)).max() < 1e-10


def test_keep_lets_the_label_s_effect_survive_where_the_plain_regression_eats_it():
    X, dx = make_people(4000)

    def gap(values):
        return values[dx == 1, 0].mean() - values[dx == 0, 0].mean()

    plain, kept = (gap(ConfoundResidualizer(CONFOUNDS, keep=keep).fit_transform(X, dx)) for keep in (None, "y"))
    assert plain < 0.75
    assert abs(kept - 1.0) < 0.1


def test_a_table_beside_x_gives_what_columns_of_x_give():
    X, dx = make_people(200)
    inside = ConfoundResidualizer(CONFOUNDS, keep="y").fit(X, dx)
    table = X[CONFOUNDS]
    for beside in (table, {name: table[name].to_numpy() for name in CONFOUNDS}):
        outside = ConfoundResidualizer(keep="y").fit(X[FEATURES], dx, confounds=beside)
        np.testing.assert_array_equal(outside.transform(X[FEATURES], confounds=beside), inside.transform(X))


def test_arrays_and_series_are_tables_too():
    X, _ = make_people(100)
    expected = ConfoundResidualizer(["age"]).fit_transform(X[[*FEATURES, "age"]])
    for confounds in (X["age"], X["age"].to_numpy(), X[["age"]].to_numpy()):
        found = ConfoundResidualizer().fit_transform(X[FEATURES].to_numpy(), confounds=confounds)
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_a_category_of_numbers_is_one_in_x_and_beside_it():
    rng = np.random.default_rng(0)
    code = rng.integers(1, 13, 400)
    X = pd.DataFrame({"f": rng.normal(size=13)[code] * 3 + rng.normal(size=400), "site": pd.Categorical(code)})
    left = ConfoundResidualizer(["site"]).fit_transform(X)
    assert pd.Series(left[:, 0]).groupby(code).mean().std() < 1e-10 < X["f"].groupby(code).mean().std()
    for table in (X[["site"]], X["site"], {"site": X["site"]}):
        beside = ConfoundResidualizer(check=True).fit(X[["f"]], confounds=table)
        np.testing.assert_array_equal(beside.transform(X[["f"]], confounds=table), left)
    plain = X.assign(site=code)  # rows to predict that no longer know it
    np.testing.assert_array_equal(ConfoundResidualizer(["site"]).fit(X).transform(plain), left)


def test_terms_bend_with_the_confound():
    rng = np.random.default_rng(0)
    age = rng.uniform(20, 80, 400)
    table = {"age": age}
    X = ((age - 50) / 10)[:, None] ** 2 + rng.normal(size=(400, 1))
    straight = ConfoundResidualizer().fit_transform(X, confounds=table)
    bent = ConfoundResidualizer([dc.Polynomial("age", 2)]).fit_transform(X, confounds=table)
    assert np.corrcoef(straight[:, 0], (age - 50) ** 2)[0, 1] > 0.8
    assert abs(np.corrcoef(bent[:, 0], (age - 50) ** 2)[0, 1]) < 1e-10


def test_new_rows_take_the_beta_of_fit_and_are_treated_one_at_a_time():
    train, dx = make_people(200, seed=0)
    new, _ = make_people(30, seed=1)
    residualizer = ConfoundResidualizer(CONFOUNDS, keep="y").fit(train, dx)
    together = residualizer.transform(new)
    alone = np.concatenate([residualizer.transform(new.iloc[[row]]) for row in range(30)])
    np.testing.assert_allclose(together, alone, atol=1e-12)
    other = ConfoundResidualizer(CONFOUNDS, keep="y").fit(new, make_people(30, seed=1)[1])
    assert np.abs(other.transform(new) - together).max() > 0.1


def test_keep_columns_leave_x_and_may_be_absent_afterwards():
    X, dx = make_people(200)
    with_label = X.assign(dx=np.where(dx == 1, "patient", "control"))
    residualizer = ConfoundResidualizer(CONFOUNDS, keep=["dx"]).fit(with_label)
    expected = ConfoundResidualizer(CONFOUNDS, keep="y").fit(X, dx).transform(X)
    np.testing.assert_allclose(residualizer.transform(with_label), expected, atol=1e-12)
    np.testing.assert_allclose(residualizer.transform(X), expected, atol=1e-12)
    np.testing.assert_allclose(residualizer.transform(with_label.assign(dx="new kind")), expected, atol=1e-12)
    beside = ConfoundResidualizer(keep=["dx"]).fit(X[FEATURES], confounds=with_label[[*CONFOUNDS, "dx"]])
    np.testing.assert_allclose(beside.transform(X[FEATURES], confounds=X[CONFOUNDS]), expected, atol=1e-12)


def test_output_has_the_names_of_the_features_alone_and_their_precision():
    X, _ = make_people(50)
    residualizer = ConfoundResidualizer(CONFOUNDS).set_output(transform="pandas").fit(X)
    out = residualizer.transform(X)
    assert list(out.columns) == list(residualizer.get_feature_names_out()) == FEATURES
    assert list(residualizer.feature_names_in_) == [*FEATURES, *CONFOUNDS]
    assert residualizer.n_features_in_ == 11
    single = ConfoundResidualizer().fit_transform(X[FEATURES].astype(np.float32), confounds=X[CONFOUNDS])
    assert single.dtype == np.float32


@pytest.mark.parametrize(
    ("labels", "columns"),
    [
        (np.tile(["a", "b", "c"], 20), 2),
        (np.tile([0, 1, 2], 20), 2),
        (np.linspace(0, 1, 60), 1),
        (np.arange(60), 1),
        (np.arange(60) % 2 == 0, 1),
    ],
)
def test_few_whole_numbers_and_names_are_classes_and_the_rest_a_quantity(labels, columns):
    X, _ = make_people(60)
    design = ConfoundResidualizer(CONFOUNDS, keep="y").fit(X, labels).design_
    assert sum(column.role == "keep" for column in design.columns) == columns


def test_types_decide_what_the_label_is():
    X, _ = make_people(60)
    residualizer = ConfoundResidualizer(CONFOUNDS, keep="y", types={"y": "numeric"}).fit(X, np.tile([0, 1, 2], 20))
    assert residualizer.design_.names[-1] == "y"


def test_unseen_levels_and_missing_values_follow_the_design():
    X, _ = make_people(100)
    new = X.head(2).assign(site=["C", "A"], age=[np.nan, 60.0])
    strict = ConfoundResidualizer(CONFOUNDS).fit(X)
    with pytest.raises(dc.errors.TableError, match="column 'site' must hold levels seen in fit"):
        strict.transform(new)
    with pytest.raises(dc.errors.TableError, match="column 'age' must have a value in every row"):
        strict.transform(new.assign(site="A"))
    lenient = ConfoundResidualizer(["age", "site"], missing="mean", unseen="mean").fit(X.drop(columns="head"))
    moved = lenient.transform(new.drop(columns="head")) - new[FEATURES].to_numpy()
    assert (moved[0] == 0).all()
    assert (moved[1] != 0).all()


def test_without_confounds_it_says_that_it_does_nothing():
    X = np.random.default_rng(0).normal(size=(20, 3))
    with pytest.warns(dc.errors.DeconfoundWarning, match="was fitted without confounds and leaves X as it is"):
        residualizer = ConfoundResidualizer().fit(X)
    np.testing.assert_array_equal(residualizer.transform(X), X)
    with pytest.raises(dc.errors.TableError, match="got a table in transform, and fit had none"):
        residualizer.transform(X, confounds={"age": np.ones(20)})


def test_what_cannot_be_done_is_said_with_the_way_out():
    X, dx = make_people(50)
    bare = X[FEATURES].to_numpy()
    residualizer = ConfoundResidualizer().fit(bare, confounds=X[CONFOUNDS])
    with pytest.raises(NotFittedError):
        clone(residualizer).transform(bare, confounds=X[CONFOUNDS])
    faults = [
        (lambda: residualizer.transform(bare), "transform must be given the confounds of its rows, since fit was"),
        (
            lambda: residualizer.transform(bare[:5], confounds=X[CONFOUNDS]),
            "confounds must have one row per sample; got 50 rows in 'age' for 5 samples",
        ),
        (lambda: ConfoundResidualizer(CONFOUNDS).fit(bare), "X must be a DataFrame when confounds are names"),
        (lambda: ConfoundResidualizer(CONFOUNDS).fit(X).transform(bare), "X must be a DataFrame when confounds"),
        (lambda: ConfoundResidualizer(["agee", "sight"]).fit(X), "got 'agee'.*Did you mean 'age'(?s:.*)got 'sight'"),
        (lambda: ConfoundResidualizer("age").fit(X), r"confounds must be a list of columns.*Write \['age'\]"),
        (lambda: ConfoundResidualizer(CONFOUNDS, keep="dx").fit(X, dx), "keep must be a list of columns"),
        (lambda: ConfoundResidualizer(CONFOUNDS, keep="y").fit(X), "y must be given with keep='y'"),
        (lambda: ConfoundResidualizer(keep=["dx"]).fit(X), "keep must come with confounds"),
        (lambda: ConfoundResidualizer().fit(bare, confounds=["age"]), "confounds given beside X must be a DataFrame"),
        (lambda: ConfoundResidualizer().fit(bare, confounds=np.ones((50, 1, 1))), "must have one or two axes"),
        (lambda: ConfoundResidualizer(["age"]).fit(X[["age"]]), "X must hold at least one feature"),
        (
            lambda: ConfoundResidualizer().fit(bare, confounds=pd.DataFrame({"y": np.arange(50.0)})),
            "confounds and keep must not be named 'y'",
        ),
        (
            lambda: ConfoundResidualizer().fit(X.drop(columns="site"), confounds=X[CONFOUNDS]),
            "beside X must not be among its columns too; got 'age', 'head'. Leave them out",
        ),
        (
            lambda: ConfoundResidualizer(CONFOUNDS).fit(X).transform(X, confounds=X),
            "got a table in transform, and fit took them from columns of X",
        ),
    ]
    for call, words in faults:
        with pytest.raises(dc.errors.DeconfoundError, match=words):
            call()


def scaled_by_site(n=300, spread=2.0):
    """Site B spreads every feature more: no mean differs, and no linear model can tell."""
    rng = np.random.default_rng(0)
    site = rng.choice(["A", "B"], n)
    values = rng.normal(size=(n, 3)) * np.where(site == "B", 1 + spread, 1.0)[:, None]
    return pd.DataFrame(values, columns=["a", "b", "c"]).assign(site=site, age=rng.normal(60, 9, n))


def test_the_check_warns_of_what_trees_still_find_and_of_nothing_else():
    X = scaled_by_site()
    with pytest.warns(DeconfoundWarning, match="site is still in the features, though not linearly") as caught:
        checked = ConfoundResidualizer(["site", "age"], check=True).fit(X)
    assert [note.confound for note in checked.notes_] == ["site"]
    assert len(caught) == 1
    note = checked.notes_[0]
    assert note.nonlinear.value > 0.7 > note.linear.value
    residual = checked.transform(X)
    forest = RandomForestClassifier(50, random_state=0)
    assert cross_val_score(forest, residual, X["site"], scoring="roc_auc").mean() > 0.7  # and a tree does
    assert ConfoundResidualizer(["site", "age"], check=True).fit(scaled_by_site(spread=0.0)).notes_ == ()


def test_the_check_stays_within_classes_of_y():
    X = scaled_by_site(spread=0.0)
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, 300)
    X["site"] = np.where(rng.random(300) < 0.1 + 0.8 * y, "B", "A")
    X[["a", "b", "c"]] *= (1 + 2 * y)[:, None]  # the spread follows the label, and the site only with it
    assert ConfoundResidualizer(["site", "age"], keep="y", check=True).fit(X, y).notes_ == ()
    with pytest.warns(DeconfoundWarning, match="site is still in the features"):
        ConfoundResidualizer(["site", "age"], check=True).fit(X)  # without the label it cannot tell


def test_what_a_linear_probe_finds_is_no_news_of_the_check():
    rng = np.random.default_rng(0)
    age = rng.normal(size=300)
    features = rng.normal(size=(300, 3)) + age[:, None]
    assert beyond_linear(features, [column("age", age)]) == ()
