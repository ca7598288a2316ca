"""The classifier and the regressor: what the confounds leave, what predict needs, and what is refused."""

import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.metrics import roc_auc_score
from torch import nn

import deconfound as dc
from deconfound.sklearn import ConfoundResidualizer, DeconfoundedClassifier, DeconfoundedRegressor
from tests.sklearn_.people import CONFOUNDS, make_people, within

FAST = {"epochs": 3, "hidden": (8,), "random_state": 0}
FEATURES = [f"f{place}" for place in range(8)]


@pytest.fixture(scope="module")
def scores():
    """Held-out scores of the plain network and of one with each layer, all alike but for the layer."""
    train, dx = make_people(1200, seed=0)
    test, truth = make_people(2000, seed=1)
    options = {"confounds": CONFOUNDS, "random_state": 0, "epochs": 12, "lr": 5e-3}
    found = {
        layer: DeconfoundedClassifier(layer=layer, **options).fit(train, dx).decision_function(test)
        for layer in (None, "pmdn", "mdn", "rmdn", "pmdn-alternating")
    }
    return found, test, truth


@pytest.mark.parametrize("layer", ["pmdn", "mdn", "rmdn", "pmdn-alternating"])
def test_confounds_leave_the_score_within_each_class_and_were_there_without_the_layer(scores, layer):
    found, test, truth = scores
    confounds = {"age": test["age"], "site": (test["site"] == "B").astype(float)}
    plain = {name: within(found[None], truth, values) for name, values in confounds.items()}
    left = {name: within(found[layer], truth, values) for name, values in confounds.items()}
    assert plain["age"] > 0.5
    assert plain["site"] > 0.15
    # R-MDN weighs all samples alike and lags behind a network that learns fast.
    assert max(left.values()) < (0.25 if layer == "rmdn" else 0.15)
    assert roc_auc_score(truth, found[layer]) > 0.75  # f0 alone gives 0.76


@pytest.mark.parametrize("kind", [ConfoundResidualizer, DeconfoundedClassifier])
def test_weights_that_may_not_be_written_to_are_copied(kind):
    people, dx = make_people(80, seed=0)
    weights = np.where(people["site"] == "B", 1.0, 0.5)
    weights.flags.writeable = False  # as pandas lends them
    estimator = kind(CONFOUNDS) if kind is ConfoundResidualizer else kind(CONFOUNDS, **FAST)
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # torch says it once in a process
    try:
        estimator.fit(people, dx, sample_weight=weights)  # warnings are errors
    finally:
        torch.set_warn_always(before)


def test_a_regression_loses_the_confound_and_keeps_the_quantity():
    rng = np.random.default_rng(0)
    age = rng.normal(60, 10, 3000)
    quantity = 0.6 * (age - 60) / 10 + 0.8 * rng.normal(size=3000)
    X = np.column_stack([quantity + rng.normal(size=3000), age + rng.normal(size=3000), rng.normal(size=3000)])
    train, test = slice(0, 1500), slice(1500, None)

    def partial(predicted):
        """The correlation with age of what the quantity does not explain of the prediction."""
        rest = predicted - np.polyval(np.polyfit(quantity[test], predicted, 1), quantity[test])
        return abs(np.corrcoef(rest, age[test])[0, 1])

    options = {"random_state": 0, "epochs": 12, "lr": 5e-3}
    plain = DeconfoundedRegressor(layer=None, **options).fit(X[train], quantity[train])
    model = DeconfoundedRegressor(**options).fit(X[train], quantity[train], confounds={"age": age[train]})
    predicted = model.predict(X[test], confounds={"age": age[test]})
    assert partial(plain.predict(X[test])) > 0.3
    assert partial(predicted) < 0.1
    assert model.score(X[test], quantity[test], confounds={"age": age[test]}) > 0.2
    assert np.corrcoef(predicted, quantity[test])[0, 1] > 0.5


def test_a_model_fitted_with_a_table_refuses_to_answer_without_one():
    X, dx = make_people(80)
    model = DeconfoundedClassifier(**FAST).fit(X[FEATURES], dx, confounds=X[CONFOUNDS])
    calls = [model.predict, model.predict_proba, model.decision_function]
    for call in calls:
        with pytest.raises(dc.errors.TableError, match=f"{call.__name__} must be given the confounds of its rows"):
            call(X[FEATURES])
        assert len(call(X[FEATURES], confounds=X[CONFOUNDS])) == 80
    with pytest.raises(dc.errors.TableError, match="predict must be given"):
        model.score(X[FEATURES], dx)


def test_labels_are_kept_and_a_table_beside_x_gives_what_columns_of_x_give():
    X, dx = make_people(80)
    beside = DeconfoundedClassifier(**FAST).fit(X[FEATURES], dx, confounds=X[CONFOUNDS])
    inside = DeconfoundedClassifier(CONFOUNDS, **FAST).fit(X, dx)
    assert [str(term) for term in beside.design_.keep] == ["y"]
    expected = beside.predict_proba(X[FEATURES], confounds=X[CONFOUNDS])
    np.testing.assert_array_equal(inside.predict_proba(X), expected)
    assert inside.n_features_in_ == 11
    assert inside.model_.network.fc1.in_features == 8


def test_a_plain_network_reads_no_confounds_but_leaves_their_columns_out():
    X, dx = make_people(80)
    plain = DeconfoundedClassifier(CONFOUNDS, layer=None, **FAST).fit(X, dx)
    moved = X.assign(age=0.0, site="elsewhere", head=np.nan)
    np.testing.assert_array_equal(plain.predict_proba(moved), plain.predict_proba(X))
    beside = DeconfoundedClassifier(layer=None, **FAST).fit(X[FEATURES], dx, confounds=X[CONFOUNDS])
    np.testing.assert_array_equal(beside.predict_proba(X[FEATURES]), plain.predict_proba(X))


def test_without_confounds_it_says_that_it_is_a_plain_network():
    X, dx = make_people(80)
    with pytest.warns(dc.errors.DeconfoundWarning, match="was fitted without confounds and is a plain network"):
        DeconfoundedClassifier(**FAST).fit(X[FEATURES], dx)


def test_seed_decides_everything_and_torch_s_own_numbers_go_on():
    X, dx = make_people(80)
    dropping = {
        **FAST,
        "network": lambda inputs, outputs: nn.Sequential(nn.Linear(inputs, 8), nn.Dropout(0.5), nn.Linear(8, outputs)),
    }
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first = torch.rand(1)
    one = DeconfoundedClassifier(CONFOUNDS, **dropping).fit(X, dx).predict_proba(X)
    assert torch.equal(torch.cat([first, torch.rand(1)]), expected)
    np.testing.assert_array_equal(DeconfoundedClassifier(CONFOUNDS, **dropping).fit(X, dx).predict_proba(X), one)
    other = DeconfoundedClassifier(CONFOUNDS, **{**dropping, "random_state": 1}).fit(X, dx).predict_proba(X)
    assert np.abs(other - one).max() > 1e-3


def test_rows_are_predicted_alone_or_together_in_any_order():
    X, dx = make_people(80)
    model = DeconfoundedClassifier(CONFOUNDS, batch_size=16, **FAST).fit(X, dx)
    together = model.decision_function(X)
    alone = np.concatenate([model.decision_function(X.iloc[[row]]) for row in range(80)])
    np.testing.assert_allclose(alone, together, atol=1e-12)
    np.testing.assert_allclose(model.decision_function(X[::-1]), together[::-1], atol=1e-12)


def test_clone_pickle_and_joblib_give_the_same_answers(tmp_path):
    X, dx = make_people(80)
    model = DeconfoundedClassifier(CONFOUNDS, **FAST).fit(X, dx)
    expected = model.predict_proba(X)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(X), expected)
    joblib.dump(model, tmp_path / "model.joblib")
    np.testing.assert_array_equal(joblib.load(tmp_path / "model.joblib").predict_proba(X), expected)
    np.testing.assert_array_equal(clone(model).fit(X, dx).predict_proba(X), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_several_classes_with_text_labels(dtype):
    X, _ = make_people(150)
    grade = np.array(["high", "low", "mid"])[np.digitize(X["f5"], [-0.5, 0.5])]
    X = X.astype(dict.fromkeys(FEATURES, dtype))
    model = DeconfoundedClassifier(CONFOUNDS, **{**FAST, "epochs": 40, "lr": 0.02}).fit(X, grade)
    assert list(model.classes_) == ["high", "low", "mid"]
    assert model.decision_function(X).shape == model.predict_proba(X).shape == (150, 3)
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1)
    assert set(model.predict(X)) <= set(model.classes_)
    assert model.score(X, grade) > 0.8


def test_unseen_levels_and_missing_values_follow_the_design():
    X, dx = make_people(80)
    new = X.head(2).assign(site=["C", "A"], age=[50.0, np.nan])
    with pytest.raises(dc.errors.TableError, match="column 'site' must hold levels seen in fit"):
        DeconfoundedClassifier(CONFOUNDS, **FAST).fit(X, dx).predict(new)
    with pytest.raises(dc.errors.TableError, match="column 'age' must have a value in every row"):
        DeconfoundedClassifier(CONFOUNDS, **FAST).fit(X.assign(age=np.where(X["age"] > 70, np.nan, X["age"])), dx)
    lenient = DeconfoundedClassifier(CONFOUNDS, missing="mean", unseen="mean", **FAST).fit(X, dx)
    assert np.isfinite(lenient.predict_proba(new)).all()


def test_all_wrong_options_are_named_at_once():
    X, dx = make_people(20)
    wrong = DeconfoundedClassifier(CONFOUNDS, layer="pmnd", epochs=0, lr=-1.0, hidden=(8, 0), validation_fraction=1.5)
    with pytest.raises(dc.errors.OptionError) as fault:
        wrong.fit(X, dx)
    lines = str(fault.value).splitlines()
    assert len(lines) == 5
    assert "epochs must be a whole number of at least 1; got 0." in lines
    assert "lr must be a number above 0; got -1.0." in lines
    assert any(line.endswith("got 'pmnd'. Did you mean 'pmdn'?") for line in lines)


def test_what_cannot_be_done_is_said_with_the_way_out():
    X, dx = make_people(40)

    def fit(y=dx, **options):
        return DeconfoundedClassifier(CONFOUNDS, **FAST, **options).fit(X, y)

    three = np.arange(40) % 3
    faults = [
        (lambda: fit(y=np.full(40, "a")), "y must hold at least two classes; got one class: 'a'."),
        (
            lambda: fit(network=nn.Sequential(nn.Linear(8, 5))),
            r"the network must return \(n, 1\) or \(n, 2\) for 2 classes",
        ),
        (
            lambda: fit(network=nn.Sequential(nn.Linear(8, 1)), y=three),
            r"must return \(n, 3\) for 3 classes; got shape \(2, 1\)",
        ),
        (lambda: fit(network=lambda inputs, outputs: "net"), "network must build a torch.nn.Module; got str"),
        (lambda: fit(network=3), "network must be a torch.nn.Module or a function"),
        (lambda: fit(lr=1e300), "the (training|validation) loss must be finite; got nan in epoch 0. Lower lr"),
        (lambda: fit(lr=1e300, early_stopping=False), "the training loss must be finite; got (nan|inf) in epoch"),
        (lambda: fit(device="abacus"), "device must be 'auto' or a device of torch"),
        (lambda: fit(device="cuda:77"), "device must be 'auto' or a device of torch that is here"),
        (lambda: fit(refit="no"), "refit must be True or False; got 'no'"),
        (lambda: fit(layer_options={"gradeint": 1}), "Did you mean 'gradient'"),
    ]
    for call, words in faults:
        with pytest.raises(dc.errors.DeconfoundError, match=words):
            call()


@pytest.mark.parametrize("layer", [None, "mdn"])
def test_weights_of_full_batches_are_rows_repeated_or_left_out(layer):
    """MDN fits each batch by itself, so that nothing depends on how many rows there are in all."""
    X, dx = make_people(120)
    weight = np.ones(120)
    weight[:30], weight[30:60] = 2.0, 0.0
    repeated = np.r_[0:30, 0:30, 60:120]
    options = {**FAST, "layer": layer, "early_stopping": False, "batch_size": 500}
    weighted = DeconfoundedClassifier(CONFOUNDS, **options).fit(X, dx, sample_weight=5 * weight)
    again = DeconfoundedClassifier(CONFOUNDS, **options).fit(X.iloc[repeated].reset_index(drop=True), dx[repeated])
    np.testing.assert_allclose(weighted.decision_function(X), again.decision_function(X), rtol=1e-3, atol=1e-5)
    plain = DeconfoundedClassifier(CONFOUNDS, **options).fit(X, dx)
    assert np.abs(weighted.decision_function(X) - plain.decision_function(X)).max() > 1e-2
    with pytest.raises(ValueError, match=r"must (contain|be positive in) at least one"):
        DeconfoundedClassifier(CONFOUNDS, **options).fit(X, dx, sample_weight=0 * weight)


def test_sparse_inputs_are_refused():
    from scipy.sparse import csr_array

    with pytest.raises(TypeError, match=r"Sparse data was passed for X.*dense"):
        DeconfoundedClassifier(**FAST).fit(csr_array(np.eye(6)), [0, 1] * 3, confounds={"age": np.arange(6.0)})


def test_pandas_categories_booleans_and_nullable_numbers_are_read():
    X, dx = make_people(80)
    table = pd.DataFrame(
        {
            "site": X["site"].astype("category"),
            "smokes": X["age"] > 62,
            "visits": pd.array([1, 2, 3, 30] * 20, dtype="Int64"),
        }
    )
    model = DeconfoundedClassifier(types={"visits": "numeric"}, **FAST).fit(X[FEATURES], dx, confounds=table)
    assert model.design_.names == ("site[B]", "smokes[True]", "visits", "y[1]")
    assert len(model.predict(X[FEATURES], confounds=table)) == 80
