"""The way of one fold: what reaches the model, and what does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import roc_auc_score

import deconfound as dc
from deconfound.data import Samples, open_samples
from deconfound.errors import OptionError, StateError
from deconfound.training import (
    FittedModel,
    Fold,
    Recipe,
    Schedule,
    fit_fold,
    read_task,
    split_folds,
)
from tests.helpers import CONFOUNDS
from tests.training.people import make_table, numbers

SCHEDULE = Schedule(epochs=3, batch_size=32, lr=0.01)
RECIPE = Recipe(CONFOUNDS, network_options={"hidden": [16]}, schedule=SCHEDULE, unseen="mean")
POSITIVE = {"label": "case"}
# One recipe for each way in which rows may be read.
RECIPES = {
    "none": replace(RECIPE, method="none"),
    "mdn": replace(RECIPE, method="mdn"),
    "pmdn": RECIPE,
    "adversarial": replace(RECIPE, method="adversarial", at=["fc1"]),
    "residualized": replace(RECIPE, method="residualized-inputs"),
    "combat": replace(
        RECIPE, method="residualized-inputs", method_options={"by": "combat"}, stratum="site"
    ),
    "balance": replace(RECIPE, method="none", balance="overlap"),
    "balance and pmdn": replace(RECIPE, balance="overlap"),
    "ranking": replace(RECIPE, method="none", loss="ranking", stratum="site"),
    "w-scores": replace(RECIPE, method="none", confounds=["age"], use_w_scores=True),
    "controls": replace(RECIPE, controls={"label": "control"}),
    "forest": replace(
        RECIPE,
        network="sklearn.ensemble:RandomForestClassifier",
        network_options={"n_estimators": 10},
        method="residualized-inputs",
        balance="overlap",
    ),
}


def make_fold(seed: int = 0) -> tuple[Samples, dc.training.Task, Fold]:
    x, table = make_table(seed=seed)
    task = read_task(table, ["label"], POSITIVE)
    return open_samples(x, table), task, split_folds(table, task, folds=4)[0]


def copy_samples(samples: Samples) -> Samples:
    return open_samples(np.array(samples.x), samples.table.copy())


@pytest.mark.parametrize("name", RECIPES)
def test_test_rows_and_their_labels_change_nothing_that_is_fitted(name):
    """Weights, epochs, scales, designs and W-scores are the same with other test rows."""
    samples, task, fold = make_fold()
    other = copy_samples(samples)
    other.x[fold.test] += 5
    table = other.table
    table.loc[fold.test, "age"] += 30
    table.loc[fold.test, "label"] = table.loc[fold.test, "label"].map(
        {"case": "control", "control": "case"}
    )
    ours, theirs = (fit_fold(one, task, fold, RECIPES[name]).model for one in (samples, other))
    assert ours.history == theirs.history
    state, other_state = ours.to_state(), theirs.to_state()
    assert state["design"] == other_state["design"]
    assert state["w_scores"] == other_state["w_scores"]
    for key, value in numbers(ours.inputs).items():
        assert torch.equal(value, numbers(theirs.inputs)[key])
    for key, value in numbers(ours.method).items():
        assert torch.equal(value, numbers(theirs.method)[key])
    rows = fold.validation
    expected = ours.outputs(samples.x[rows], samples.table.iloc[rows])
    np.testing.assert_array_equal(
        theirs.outputs(samples.x[rows], samples.table.iloc[rows]), expected
    )


@pytest.mark.parametrize("name", RECIPES)
def test_a_saved_model_gives_the_outputs_of_the_fold_without_labels(name, tmp_path):
    samples, task, fold = make_fold()
    result = fit_fold(samples, task, fold, RECIPES[name])
    torch.save(result.model.to_state(), tmp_path / "model.pt")
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    model = FittedModel.from_state(state, trust=name == "forest")
    table = samples.table.iloc[fold.test].drop(columns="label")
    again = model.outputs(samples.x[fold.test], table)
    np.testing.assert_allclose(again, result.outputs, rtol=1e-5, atol=1e-5)
    assert set(model.needed_columns) <= set(table.columns)


@pytest.mark.parametrize("name", ["none", "adversarial", "balance", "ranking"])
def test_models_that_read_no_confound_need_no_table(name):
    samples, task, fold = make_fold()
    result = fit_fold(samples, task, fold, RECIPES[name])
    assert result.model.needed_columns == ()
    blank = pd.DataFrame(index=range(len(fold.test)))
    again = result.model.outputs(samples.x[fold.test], blank)
    np.testing.assert_allclose(again, result.outputs, rtol=1e-5, atol=1e-6)


def test_methods_with_one_seed_start_from_the_same_network():
    samples, task, fold = make_fold()
    once = replace(SCHEDULE, epochs=1, lr=1e-9, weight_decay=0.0)
    states = [
        numbers(fit_fold(samples, task, fold, replace(recipe, schedule=once)).model.method)
        for recipe in (RECIPES["none"], RECIPES["adversarial"], RECIPES["residualized"])
    ]
    for state in states[1:]:
        for key, value in states[0].items():
            torch.testing.assert_close(state[key], value, rtol=0, atol=1e-6)


def test_overlap_weights_shift_the_outputs_to_the_share_of_cases():
    """With inputs that show nothing, the probability is the share of cases of the training rows."""
    _, table = make_table(400)
    is_rare = table["label"].eq("control") | (np.arange(400) % 8 == 1)
    table = table[is_rare].reset_index(drop=True)
    samples = open_samples(np.zeros((len(table), 3), np.float32), table)
    task = read_task(table, ["label"], POSITIVE)
    fold = split_folds(table, task, folds=4)[0]
    long = replace(SCHEDULE, epochs=60, lr=0.05)
    recipe = replace(RECIPES["balance"], confounds=["age"], schedule=long)
    outputs = fit_fold(samples, task, fold, recipe).outputs
    share = table["label"].iloc[fold.train].eq("case").mean()
    assert share < 0.3
    probability = 1 / (1 + np.exp(-outputs.mean()))
    assert probability == pytest.approx(share, abs=0.06)


def test_estimators_are_those_of_scikit_learn_on_the_same_rows():
    """Kills: other scaling, other weights, validation rows among the training rows."""
    samples, task, fold = make_fold()
    recipe = replace(
        RECIPES["none"], network="sklearn.linear_model:LogisticRegression", network_options={}
    )
    outputs = fit_fold(samples, task, fold, recipe).outputs
    x = samples.x.astype(np.float64)
    x = (x - x[fold.train].mean(0)) / x[fold.train].std(0)
    y = samples.table["label"].eq("case").to_numpy()
    model = LogisticRegression().fit(x[fold.train], y[fold.train])
    expected = model.decision_function(x[fold.test])
    np.testing.assert_allclose(outputs[:, 0], expected, rtol=1e-3, atol=1e-4)


def test_estimators_get_the_weights_of_the_rows():
    samples, task, fold = make_fold()
    recipe = replace(
        RECIPES["balance"], network="sklearn.linear_model:LogisticRegression", network_options={}
    )
    outputs = fit_fold(samples, task, fold, recipe).outputs
    x = samples.x.astype(np.float64)
    x = (x - x[fold.train].mean(0)) / x[fold.train].std(0)
    y = samples.table["label"].eq("case").to_numpy()
    training = samples.table.iloc[fold.train]
    weight = dc.balance(training, ["label"], CONFOUNDS, unseen="mean").row_weight
    model = LogisticRegression().fit(x[fold.train], y[fold.train], sample_weight=weight)
    weighted = np.average(y[fold.train], weights=weight)
    share = y[fold.train].mean()
    shift = np.log(share / (1 - share)) - np.log(weighted / (1 - weighted))
    expected = model.decision_function(x[fold.test]) + shift
    np.testing.assert_allclose(outputs[:, 0], expected, rtol=1e-3, atol=1e-3)


def test_an_estimator_refuses_methods_that_need_layers():
    samples, task, fold = make_fold()
    recipe = replace(RECIPE, network="sklearn.linear_model:LogisticRegression", network_options={})
    with pytest.raises(OptionError, match=r"pmdn.*needs a network of torch.*residualized-inputs"):
        fit_fold(samples, task, fold, recipe)


def test_own_code_is_not_run_without_trust(tmp_path):
    samples, task, fold = make_fold()
    state = fit_fold(samples, task, fold, RECIPES["forest"]).model.to_state()
    with pytest.raises(OptionError, match=r"RandomForestClassifier.*trust=True"):
        FittedModel.from_state(state)


def test_numbers_come_back_in_their_own_units():
    x, table = make_table(400)
    table["volume"] = 1e6 + 1e5 * (x[:, 0] + 0.1 * x[:, 1])
    task = read_task(table, ["volume"])
    samples = open_samples(x, table)
    fold = split_folds(table, task, folds=4)[0]
    schedule = replace(SCHEDULE, epochs=40)
    recipe = replace(RECIPE, confounds=["site"], method="none", schedule=schedule)
    outputs = fit_fold(samples, task, fold, recipe).outputs[:, 0]
    truth = table["volume"].to_numpy()[fold.test]
    assert np.corrcoef(outputs, truth)[0, 1] > 0.9
    assert outputs.mean() == pytest.approx(truth.mean(), rel=0.05)
    forest = replace(recipe, network="sklearn.linear_model:LinearRegression", network_options={})
    linear = fit_fold(samples, task, fold, forest).outputs[:, 0]
    expected = LinearRegression().fit(x[fold.train], table["volume"].iloc[fold.train])
    np.testing.assert_allclose(linear, expected.predict(x[fold.test]), rtol=1e-4)


def test_classes_and_several_labels_have_one_output_each():
    x, table = make_table()
    table["stage"] = np.array(["early", "late", "middle"])[np.arange(len(table)) % 3]
    samples = open_samples(x, table)
    stage = read_task(table, ["stage"])
    fold = split_folds(table, stage, folds=4)[0]
    assert fit_fold(samples, stage, fold, RECIPE).outputs.shape == (len(fold.test), 3)
    both = read_task(table, ["label", "sex"], {"label": "case", "sex": "M"})
    recipe = replace(RECIPE, confounds=["age", "site"])
    assert fit_fold(samples, both, fold, recipe).outputs.shape == (len(fold.test), 2)


def test_the_confound_leaves_and_the_label_stays():
    """A plain network follows the confounds of new people; behind the layers less is left."""
    samples, task, fold = make_fold(seed=2)
    schedule = replace(SCHEDULE, epochs=30)
    result = {}
    for name in ("none", "pmdn"):
        outputs = fit_fold(samples, task, fold, replace(RECIPES[name], schedule=schedule)).outputs
        truth = samples.table["label"].iloc[fold.test].eq("case").to_numpy()
        test = samples.table.iloc[fold.test]
        centred = outputs[:, 0] - np.where(truth, outputs[truth].mean(), outputs[~truth].mean())
        design = dc.Design(CONFOUNDS).fit(test)
        metadata = design.encode(test, dtype=np.float64)
        r2 = LinearRegression().fit(metadata, centred).score(metadata, centred)
        result[name] = r2, roc_auc_score(truth, outputs[:, 0])
    assert result["none"][0] > 0.3
    assert result["pmdn"][0] < 0.5 * result["none"][0]
    assert result["pmdn"][1] > 0.6


def test_features_are_what_the_last_linear_layer_reads():
    samples, task, fold = make_fold()
    result = fit_fold(samples, task, fold, RECIPES["none"], with_features=True)
    last = [part for part in result.model.method.modules() if isinstance(part, torch.nn.Linear)][-1]
    assert result.features.shape == (len(fold.test), last.in_features)
    logits = last(torch.from_numpy(result.features)).detach().numpy()
    np.testing.assert_allclose(logits, result.outputs, rtol=1e-4, atol=1e-5)


def test_w_scores_make_outputs_of_held_out_controls_independent_of_age():
    """Age moves the inputs, so the plain outputs follow it, and W-scores do not."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.normal(70, 8, 1200)})
    is_case = rng.random(1200) < 1 / (1 + np.exp(-(table["age"] - 70) / 8))
    table["label"] = np.where(is_case, "case", "control")
    x = np.column_stack([table["age"] / 4 + rng.normal(size=1200), is_case + rng.normal(size=1200)])
    samples = open_samples(x.astype(np.float32), table)
    task = read_task(table, ["label"], POSITIVE)
    fold = split_folds(table, task, folds=3)[0]
    recipe = replace(RECIPES["w-scores"], schedule=replace(SCHEDULE, epochs=10))
    controls = ~is_case[fold.test]
    ages = table["age"].to_numpy()[fold.test][controls]
    left = {
        use: abs(np.corrcoef(fit_fold(samples, task, fold, one).outputs[controls, 0], ages)[0, 1])
        for use, one in ((True, recipe), (False, replace(recipe, use_w_scores=False)))
    }
    assert left[False] > 0.4
    assert left[True] < 0.2


def test_training_rows_without_a_class_are_refused_by_name():
    samples, task, fold = make_fold()
    is_case = samples.table["label"].iloc[fold.train].eq("case").to_numpy()
    with pytest.raises(StateError, match="training rows have no 'case' of 'label'"):
        fit_fold(samples, task, replace(fold, train=fold.train[~is_case]), RECIPE)


def test_pretrained_weights_are_read_and_frozen_ones_stay(tmp_path):
    samples, task, fold = make_fold()
    first = fit_fold(samples, task, fold, RECIPES["none"]).model.method.network
    torch.save(first.state_dict(), tmp_path / "weights.pt")
    recipe = replace(RECIPES["none"], weights=str(tmp_path / "weights.pt"), freeze=["fc1"])
    second = fit_fold(samples, task, fold, recipe, seed=9).model.method.network
    ours, theirs = dict(first.named_parameters()), dict(second.named_parameters())
    assert torch.equal(ours["fc1.weight"], theirs["fc1.weight"])
    assert not all(torch.equal(ours[name], theirs[name]) for name in ours)
    (tmp_path / "text.pt").write_text("no weights")
    with pytest.raises(OptionError, match=r"text\.pt.*cannot be read as a state dict"):
        fit_fold(samples, task, fold, replace(recipe, weights=str(tmp_path / "text.pt")))
