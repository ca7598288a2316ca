"""Pipelines, cross-validation and ensembles, with columns of X and with routed tables."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn
from sklearn.ensemble import BaggingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from deconfound.errors import DeconfoundError
from deconfound.sklearn import ConfoundResidualizer
from tests.helpers import CONFOUNDS
from tests.sklearn_.test_residualizer import FEATURES, make_table

FOLDS = KFold(3, shuffle=True, random_state=0)


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def named_pipeline(**options):
    return make_pipeline(
        ConfoundResidualizer(CONFOUNDS, **options), StandardScaler(), LogisticRegression()
    )


def routed_pipeline():
    residualizer = ConfoundResidualizer()
    residualizer.set_fit_request(confounds=True).set_transform_request(confounds=True)
    return make_pipeline(residualizer, StandardScaler(), LogisticRegression())


def test_a_fold_learns_nothing_from_its_test_rows():
    """Kills a design or β of all rows. A training row does change the fit (control)."""
    X, y = make_table(120)
    folds = [(np.arange(80), np.arange(80, 120))]

    def learned(table):
        fitted = cross_validate(
            named_pipeline(), table, y, cv=folds, return_estimator=True, error_score="raise"
        )["estimator"][0]
        effects = list(fitted[0].coefficients_.values())
        return np.concatenate([np.ravel(effects), fitted[-1].coef_[0]])

    changed = X.copy()
    changed.loc[80:, FEATURES] *= -50
    changed.loc[80:, "age"] += 1000
    np.testing.assert_allclose(learned(changed), learned(X), atol=1e-12)
    changed.loc[0, "f0"] += 1
    assert np.abs(learned(changed) - learned(X)).max() > 1e-6


def test_a_routed_table_gives_what_columns_of_x_give(routing):
    """Kills a table that reaches `fit` and not `transform`, or is not split with X."""
    X, y = make_table(150)
    table = X[list(CONFOUNDS)]
    pipeline = routed_pipeline().fit(X[FEATURES], y, confounds=table)
    found = pipeline.predict_proba(X[FEATURES], confounds=table)
    np.testing.assert_allclose(found, named_pipeline().fit(X, y).predict_proba(X), atol=1e-9)


def test_grid_search_routes_the_table_to_every_fold(routing):
    """Acceptance 43. Kills a search whose folds see other rows of the table."""
    X, y = make_table(150)
    grid = {"logisticregression__C": [0.01, 1.0]}
    options = {"cv": FOLDS, "error_score": "raise"}
    named = GridSearchCV(named_pipeline(), grid, **options).fit(X, y)
    routed = GridSearchCV(routed_pipeline(), grid, **options)
    routed.fit(X[FEATURES], y, confounds=X[list(CONFOUNDS)])
    for key in ("mean_test_score", "split0_test_score"):
        np.testing.assert_allclose(routed.cv_results_[key], named.cv_results_[key])
    assert routed.best_params_ == named.best_params_


def test_options_can_be_searched():
    """Kills a constructor that changes its arguments, which clones refuse."""
    X, y = make_table(150)
    grid = {"confoundresidualizer__keep": [None, "y"]}
    search = GridSearchCV(named_pipeline(), grid, cv=FOLDS, error_score="raise").fit(X, y)
    assert np.ptp(search.cv_results_["mean_test_score"]) > 0
    predicted = cross_val_predict(named_pipeline(keep="y"), X, y, cv=FOLDS)
    assert np.mean(predicted == y) > 0.5


@pytest.mark.parametrize("kind", ["array", "DataFrame"])
def test_bagging_works_with_column_numbers(kind):
    """Fault 18. Kills confounds that are found by name alone.

    Bagging passes arrays; a DataFrame with text becomes an array of objects.
    """
    X, y = make_table(150)
    data = X if kind == "DataFrame" else X.drop(columns=["site", "sex"]).to_numpy()
    numbers = list(range(3, data.shape[1]))
    pipeline = make_pipeline(ConfoundResidualizer(numbers), LogisticRegression())
    bagging = BaggingClassifier(pipeline, 5, random_state=0).fit(data, y)
    assert bagging.predict_proba(data).shape == (150, 2)
    assert bagging.estimators_[0][0].coefficients_["x3"].shape == (3,)


def test_a_scorer_that_passes_no_table_gets_an_error_and_no_number(routing):
    """Kills features that pass without removal."""
    X, y = make_table(90)
    options = {"cv": FOLDS, "params": {"confounds": X[list(CONFOUNDS)]}, "error_score": "raise"}
    with pytest.raises(DeconfoundError, match="make the confounds columns of X"):
        cross_validate(routed_pipeline(), X[FEATURES], y, scoring="roc_auc", **options)


def test_a_dict_that_cross_validation_does_not_split_is_refused(routing):
    """Kills rows that are cut to fit."""
    X, y = make_table(90)
    table = X[list(CONFOUNDS)].to_dict("list")
    with pytest.raises(DeconfoundError, match="Cross-validation splits a DataFrame together"):
        cross_validate(
            routed_pipeline(), X[FEATURES], y, params={"confounds": table}, error_score="raise"
        )


def test_after_a_step_that_keeps_names_columns_are_found_by_name():
    """Kills positions that are fixed before the steps in front."""
    X, y = make_table(90)
    numeric = X.drop(columns=["site", "sex"])
    scaler = StandardScaler().set_output(transform="pandas")
    names = ["age", "volume", "dose"]
    pipeline = make_pipeline(scaler, ConfoundResidualizer(names))
    found = pipeline.fit_transform(numeric, y)
    plain = ConfoundResidualizer(names).fit_transform(numeric)
    expected = (plain - plain.mean(0)) / numeric[FEATURES].to_numpy().std(0)
    np.testing.assert_allclose(found, expected, atol=1e-9)
