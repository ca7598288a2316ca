"""Pipelines, cross-validation, grid search and metadata routing, with nothing leaking from test rows."""

import warnings

import numpy as np
import pytest
import sklearn
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.fixes import parse_version

import deconfound as dc
from deconfound.errors import TableError
from deconfound.sklearn import ConfoundResidualizer, DeconfoundedClassifier
from tests.sklearn_.people import CONFOUNDS, make_people

FAST = {"epochs": 3, "hidden": (8,), "random_state": 0}
FEATURES = [f"f{place}" for place in range(8)]


def network(**options):
    return DeconfoundedClassifier(CONFOUNDS, **{**FAST, **options})


def pipeline():
    return make_pipeline(ConfoundResidualizer(CONFOUNDS, keep="y"), StandardScaler(), LogisticRegression())


def learned(model):
    """All that a fit has learned, as one array."""
    if isinstance(model, DeconfoundedClassifier):
        whitening = model.design_.whitening.ravel()
        tensors = [tensor.double().ravel().numpy() for tensor in model.model_.network.state_dict().values()]
        betas = [layer.beta.double().ravel().numpy() for layer in model.model_.layers.values()]
        return np.concatenate([whitening, *tensors, *betas, model._center, model._spread])
    residualizer, scaler, last = (step for _, step in model.steps)
    return np.concatenate([*residualizer.coefficients_.values(), scaler.mean_, scaler.scale_, last.coef_[0]])


@pytest.mark.parametrize("make", [network, pipeline])
def test_what_a_fold_learns_does_not_change_when_its_test_rows_do(make):
    X, dx = make_people(120)
    folds = [(np.arange(80), np.arange(80, 120))]
    spoiled, flipped = X.copy(), dx.copy()
    spoiled.loc[80:, FEATURES] *= -50
    spoiled.loc[80:, ["age", "head"]] += 1000.0
    flipped[80:] = 1 - flipped[80:]
    before, after = (
        learned(cross_validate(make(), *data, cv=folds, return_estimator=True)["estimator"][0])
        for data in ((X, dx), (spoiled, flipped))
    )
    np.testing.assert_array_equal(before, after)
    spoiled.loc[0, "f0"] += 1.0  # a training row does change it
    other = learned(cross_validate(make(), spoiled, dx, cv=folds, return_estimator=True)["estimator"][0])
    assert np.abs(other - before).max() > 1e-6


@pytest.mark.parametrize("make", [network, pipeline])
def test_named_columns_work_with_every_scorer(make):
    X, dx = make_people(150)
    scoring = ["accuracy", "roc_auc", "neg_log_loss", "average_precision"]
    found = cross_validate(make(), X, dx, cv=KFold(3), scoring=scoring, error_score="raise")
    assert all(np.isfinite(found[f"test_{name}"]).all() for name in scoring)
    assert cross_val_predict(make(), X, dx, cv=3, method="predict_proba").shape == (150, 2)


def test_processes_give_the_numbers_of_one_process():
    X, dx = make_people(100)
    one, two = (cross_val_predict(network(), X, dx, cv=2, method="decision_function", n_jobs=jobs) for jobs in (1, 2))
    np.testing.assert_allclose(two, one, atol=1e-10)


def test_grid_search_chooses_among_layers_and_reaches_into_pipelines():
    X, dx = make_people(120)
    grid = {"layer": [None, "pmdn"], "lr": [1e-3, 1e-2]}
    search = GridSearchCV(network(), grid, cv=2, scoring="roc_auc", error_score="raise").fit(X, dx)
    assert set(search.best_params_) == set(grid)
    assert search.best_estimator_.predict(X).shape == (120,)
    reach = {"confoundresidualizer__keep": [None, "y"]}
    assert GridSearchCV(pipeline(), reach, cv=2, error_score="raise").fit(X, dx).best_score_ > 0.5


def test_a_network_follows_a_transformer_that_keeps_names():
    X, dx = make_people(100)
    keeps = ConfoundResidualizer(["head"]).set_output(transform="pandas")
    model = make_pipeline(keeps, DeconfoundedClassifier(["f7"], **FAST))
    numeric = X.drop(columns=["site", "age"])
    assert model.fit(numeric, dx).predict_proba(numeric).shape == (100, 2)
    assert model[-1].n_features_in_ == 8


def test_a_table_is_routed_through_cross_validation_with_the_estimator_s_own_score():
    X, dx = make_people(120)
    table = X[CONFOUNDS]
    with sklearn.config_context(enable_metadata_routing=True):
        model = DeconfoundedClassifier(**FAST).set_fit_request(confounds=True).set_score_request(confounds=True)
        routed = cross_validate(model, X[FEATURES], dx, cv=KFold(3), params={"confounds": table}, error_score="raise")
    named = cross_validate(network(), X, dx, cv=KFold(3))
    np.testing.assert_allclose(routed["test_score"], named["test_score"])


def test_a_table_is_routed_through_a_pipeline():
    X, dx = make_people(120)
    table = X[CONFOUNDS]
    with sklearn.config_context(enable_metadata_routing=True):
        residualizer = ConfoundResidualizer().set_fit_request(confounds=True).set_transform_request(confounds=True)
        routed = make_pipeline(residualizer, LogisticRegression()).fit(X[FEATURES], dx, confounds=table)
        predicted = routed.predict_proba(X[FEATURES], confounds=table)
    plain = make_pipeline(ConfoundResidualizer(CONFOUNDS), LogisticRegression())
    np.testing.assert_allclose(predicted, plain.fit(X, dx).predict_proba(X))


@pytest.mark.skipif(
    parse_version(sklearn.__version__) < parse_version("1.8"), reason="the score of a pipeline does not route before"
)
def test_a_table_is_routed_through_the_cross_validation_of_a_pipeline():
    X, dx = make_people(120)
    table = X[CONFOUNDS]
    with sklearn.config_context(enable_metadata_routing=True):
        residualizer = ConfoundResidualizer().set_fit_request(confounds=True).set_transform_request(confounds=True)
        routed = make_pipeline(residualizer, LogisticRegression())
        scores = cross_validate(routed, X[FEATURES], dx, cv=KFold(3), params={"confounds": table}, error_score="raise")
    plain = make_pipeline(ConfoundResidualizer(CONFOUNDS), LogisticRegression())
    np.testing.assert_allclose(scores["test_score"], cross_validate(plain, X, dx, cv=KFold(3))["test_score"])


def test_a_scorer_that_cannot_pass_confounds_gets_an_error_and_no_number():
    X, dx = make_people(120)
    with sklearn.config_context(enable_metadata_routing=True):
        model = DeconfoundedClassifier(**FAST).set_fit_request(confounds=True)
        options = {"cv": 2, "scoring": "roc_auc", "params": {"confounds": X[CONFOUNDS]}, "error_score": "raise"}
        with pytest.raises(dc.errors.TableError, match="scikit-learn's scorers cannot pass them: name the confounds"):
            cross_validate(model, X[FEATURES], dx, **options)


def test_a_dict_that_cross_validation_does_not_split_is_refused():
    X, dx = make_people(120)
    table = {name: X[name].to_numpy() for name in CONFOUNDS}
    with sklearn.config_context(enable_metadata_routing=True):
        model = DeconfoundedClassifier(**FAST).set_fit_request(confounds=True).set_score_request(confounds=True)
        with pytest.raises(dc.errors.ShapeError, match="Cross-validation splits a DataFrame together with X"):
            cross_validate(model, X[FEATURES], dx, cv=2, params={"confounds": table}, error_score="raise")


@pytest.mark.parametrize("make", [network, pipeline])
def test_a_grid_search_on_a_table_sorted_by_site_says_why_its_scores_are_nan(make):
    X, dx = make_people(120)
    X["site"] = np.repeat(["A", "B", "C"], 40)
    grid = {"epochs": [2]} if make is network else {"logisticregression__C": [1.0]}
    with warnings.catch_warnings(record=True) as told:  # scikit-learn warns of NaN as well
        warnings.simplefilter("always")
        search = GridSearchCV(make(), grid, cv=KFold(3), refit=False).fit(X, dx)
    why = "Where a table is sorted, by site say, scikit-learn's default folds leave"
    assert any(why in str(each.message) for each in told)
    assert np.isnan(search.cv_results_["mean_test_score"]).all()
    shuffled = KFold(3, shuffle=True, random_state=0)
    found = GridSearchCV(make(), grid, cv=shuffled, refit=False, error_score="raise").fit(X, dx)
    assert np.isfinite(found.cv_results_["mean_test_score"]).all()


@pytest.mark.parametrize("make", [DeconfoundedClassifier, ConfoundResidualizer])
def test_a_frame_of_confounds_is_aligned_by_its_index_or_refused(make):
    X, dx = make_people(90)
    features, table = X[FEATURES], X[CONFOUNDS]
    options = FAST if make is DeconfoundedClassifier else {}
    model = make(**options).fit(features, dx, confounds=table)
    say = model.predict_proba if make is DeconfoundedClassifier else model.transform
    expected = np.asarray(say(features, confounds=table))
    mixed = table.sample(frac=1, random_state=0)
    np.testing.assert_array_equal(say(features, confounds=mixed), expected)
    other = make(**options).fit(features, dx, confounds=mixed)
    np.testing.assert_array_equal(other.design_.whitening, model.design_.whitening)
    assert np.abs(say(features, confounds=mixed.to_dict("list")) - expected).max() > 1e-3  # the order counts
    with pytest.raises(TableError, match=r"by their index; got 90 rows for 90, with \[90, 91, 92\] that do not match"):
        say(features, confounds=table.set_axis(range(90, 180)))
    with pytest.raises(TableError, match=r"got 90 rows for 40, with \[40, 41, 42\] that"):
        say(features.head(40), confounds=table)


def test_weights_of_the_residualizer_count_as_repeated_rows():
    X, dx = make_people(60)
    weight = np.random.default_rng(0).integers(0, 3, 60)
    repeated = np.repeat(np.arange(60), weight)
    weighted = ConfoundResidualizer(CONFOUNDS, keep="y").fit(X, dx, sample_weight=weight)
    plain = ConfoundResidualizer(CONFOUNDS, keep="y").fit(X.iloc[repeated], dx[repeated])
    np.testing.assert_allclose(weighted.transform(X), plain.transform(X), atol=1e-9)


def test_the_number_of_epochs_is_told():
    X, dx = make_people(60)
    model = network(epochs=4, early_stopping=False).fit(X, dx)
    assert model.n_iter_ == len(model.history_) == 4
