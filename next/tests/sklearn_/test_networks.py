"""Networks as scikit-learn estimators: scikit-learn's checks, searches, and who reads what."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import deconfound as dc
from deconfound.errors import DeconfoundError
from deconfound.sklearn import DeconfoundedClassifier, DeconfoundedRegressor
from tests.helpers import CONFOUNDS
from tests.sklearn_.test_residualizer import FEATURES, make_table

# Small and quick. The learning rate lets a few epochs reach the accuracy that the checks ask for.
QUICK = {
    "network_options": {"hidden": [16]},
    "types": {0: "numeric"},
    "epochs": 12,
    "batch_size": 32,
    "lr": 0.03,
    "validation": 0.2,
    "random_state": 0,
}


def expected_failures(estimator):
    reasons = {
        "check_methods_subset_invariance": "single precision rounds by the number of rows",
    }
    if isinstance(estimator, DeconfoundedClassifier):
        reasons["check_classifiers_train"] = "of two features, one is taken out as the confound"
    return reasons


@pytest.mark.filterwarnings("ignore::deconfound.errors.DeconfoundWarning")
@parametrize_with_checks(
    [
        DeconfoundedClassifier([0], method="pmdn", **QUICK),
        DeconfoundedRegressor([0], method="residualized-inputs", **QUICK),
    ],
    expected_failed_checks=expected_failures,
    xfail_strict=False,  # Rounding depends on the processor.
)
def test_scikit_learn_finds_no_fault(estimator, check):
    """Acceptance 43: the configuration removes column 0."""
    check(estimator)


def make_classifier(**options) -> DeconfoundedClassifier:
    return DeconfoundedClassifier(
        CONFOUNDS, **{**QUICK, "types": None, "epochs": 4, "unseen": "mean", **options}
    )


def test_a_clone_is_trained_to_the_same_numbers_by_the_same_seed():
    X, y = make_table(150)
    first, second = make_classifier(), clone(make_classifier())
    np.testing.assert_array_equal(
        first.fit(X, y).predict_proba(X), second.fit(X, y).predict_proba(X)
    )


def test_options_of_the_training_can_be_searched():
    X, y = make_table(150)
    grid = {"method": ["none", "pmdn"], "lr": [1e-5, 0.03]}
    folds = KFold(3, shuffle=True, random_state=0)
    search = GridSearchCV(make_classifier(), grid, cv=folds, error_score="raise").fit(X, y)
    assert np.ptp(search.cv_results_["mean_test_score"]) > 0
    assert search.best_params_["lr"] == 0.03


def test_a_routed_table_gives_what_columns_of_x_give():
    X, y = make_table(150)
    table = X[list(CONFOUNDS)]
    with sklearn.config_context(enable_metadata_routing=True):
        beside = DeconfoundedClassifier(**{**make_classifier().get_params(), "confounds": None})
        beside.set_fit_request(confounds=True).set_score_request(confounds=True)
        scores = cross_val_score(
            beside, X[FEATURES], y, params={"confounds": table}, cv=3, error_score="raise"
        )
    np.testing.assert_allclose(scores, cross_val_score(make_classifier(), X, y, cv=3))


def test_rows_of_a_table_beside_x_are_found_by_index():
    X, y = make_table(150)
    table = X[list(CONFOUNDS)]
    options = {**make_classifier().get_params(), "confounds": None}
    fitted = DeconfoundedClassifier(**options).fit(X[FEATURES], y, confounds=table)
    shuffled = table.sample(frac=1, random_state=0)
    assert not shuffled.index.equals(table.index)
    expected = fitted.predict_proba(X[FEATURES], confounds=table)
    found = fitted.predict_proba(X[FEATURES], confounds=shuffled)
    np.testing.assert_array_equal(found, expected)


def test_probabilities_belong_to_the_classes_in_their_order():
    X, y = make_table(200)
    names = np.where(y == "case", "zebra", "ant")
    fitted = make_classifier(method="none", epochs=20).fit(X, names)
    assert fitted.classes_.tolist() == ["ant", "zebra"]
    shares = fitted.predict_proba(X)
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-6)
    assert (fitted.predict(X) == fitted.classes_[shares.argmax(1)]).all()
    assert ((fitted.decision_function(X) > 0) == (shares[:, 1] > 0.5)).all()
    assert np.mean(fitted.predict(X) == names) > 0.6


def test_three_classes_have_three_columns():
    X, _ = make_table(180)
    y = np.array(["a", "b", "c"])[np.arange(180) % 3]
    assert make_classifier().fit(X, y).predict_proba(X).shape == (180, 3)


def test_the_confound_leaves_the_predictions():
    """A regression on the confounds explains the plain predictions, and hardly those of PMDN."""
    X, y = make_table(600)
    explained = {}
    for method in ("none", "pmdn"):
        model = make_classifier(method=method, epochs=30, validation=0.3).fit(X[:400], y[:400])
        scores = model.decision_function(X[400:])
        is_case = y[400:] == "case"
        given = np.where(is_case, scores[is_case].mean(), scores[~is_case].mean())
        test = X[400:].reset_index(drop=True)
        columns = dc.Design(CONFOUNDS).fit(test).encode(test, dtype=np.float64)
        regression = LinearRegression().fit(columns, scores - given)
        explained[method] = regression.score(columns, scores - given)
    assert explained["none"] > 0.3
    assert explained["pmdn"] < 0.5 * explained["none"]


def test_a_method_that_reads_no_confound_predicts_without_them():
    X, y = make_table(150)
    table = X[list(CONFOUNDS)]
    options = {**make_classifier(method="none").get_params(), "confounds": None}
    fitted = DeconfoundedClassifier(**options).fit(X[FEATURES], y, confounds=table)
    assert fitted.predict(X[FEATURES]).shape == (150,)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"method": "pmnd"}, "pmnd.*Did you mean 'pmdn'"),
        ({"network_options": {"hiden": [4]}}, "hiden.*hidden"),
        ({"epochs": 0}, "epochs must be 1 or more; got 0"),
        ({"unseen": "mean", "confounds": ["agee"]}, "agee.*Did you mean 'age'"),
    ],
)
def test_wrong_options_name_what_is_right(options, sentence):
    X, y = make_table(90)
    with pytest.raises(DeconfoundError, match=sentence):
        make_classifier().set_params(**options).fit(X, y)


def test_a_table_that_is_missing_in_predict_is_named():
    X, y = make_table(90)
    options = {**make_classifier().get_params(), "confounds": None}
    fitted = DeconfoundedClassifier(**options).fit(X[FEATURES], y, confounds=X[list(CONFOUNDS)])
    with pytest.raises(DeconfoundError, match=r"Write predict\(X, confounds=table\)"):
        fitted.predict(X[FEATURES])
