"""Runs with balance: weights come from training rows alone, reach all that is fitted, and keep the prevalence."""

import numpy as np
import pandas as pd
import pytest
import torch

from deconfound.design.balance import balance
from deconfound.errors import OptionError, TableError
from deconfound.methods import TrainingBatch, WScores
from deconfound.training import predict
from deconfound.training.batches import loader
from deconfound.training.fold_data import fold_data
from deconfound.training.isolated import isolated_test_rows
from deconfound.training.problem import open_problem
from tests.training import tiny


def tied(n=240, seed=0):
    """A cohort whose label goes with the site: most patients come from B."""
    frame = tiny.cohort(n, seed)
    draw = np.random.default_rng(seed)
    share = np.where(frame["dx"] == "asd", 0.8, 0.2)
    frame["site"] = np.where(draw.random(n) < share, "B", "A")
    return frame


def config(tmp_path, name="run", frame=None, **sections):
    path = tiny.write(tmp_path, tied() if frame is None else frame, f"{name}.csv")
    training = {"epochs": 2, "batch_size": 40, "balance": "overlap", **sections.pop("training", {})}
    return tiny.config(path, tmp_path / name, design={"confounds": ["site"]}, training=training, **sections)


def test_a_folds_weights_make_label_and_site_independent_and_whiten_the_design_under_them(tmp_path):
    data = fold_data(open_problem(config(tmp_path)), 0)
    weight = data.train.weight[:, 0].double().numpy()
    dx, site = data.train.target[:, 0].numpy() > 0, data.problem.source.table["site"][data.fold.train]
    assert weight.mean() == pytest.approx(1, abs=1e-6)
    share = [np.average(dx[site == level], weights=weight[site == level]) for level in ("A", "B")]
    assert share[0] == pytest.approx(share[1], abs=1e-6)
    plain = [dx[site == level].mean() for level in ("A", "B")]
    assert abs(plain[0] - plain[1]) > 0.4  # the control: without weights they are tied
    metadata = data.train.metadata.double().numpy()
    assert np.allclose(np.average(metadata, axis=0, weights=weight), 0, atol=1e-6)
    assert np.allclose(np.average(metadata**2, axis=0, weights=weight), 1, atol=1e-5)
    expected = balance({"site": site, "dx": dx.astype(int)}, ["dx"], ["site"]).weights
    assert np.allclose(expected[:, 0], weight, atol=1e-6)


def test_weights_reach_the_batches_of_training_and_validation(tmp_path):
    data = fold_data(open_problem(config(tmp_path)), 0)
    for part in (data.train, data.validation):
        got = torch.cat([batch["weight"] for batch in loader(data, part)])
        assert torch.equal(got, part.weight)
    assert next(iter(data.training())).weight is not None
    assert "weight" not in next(iter(loader(data, data.test)))


def test_rows_are_drawn_by_their_weight_instead_of_being_weighted(tmp_path):
    data = fold_data(open_problem(config(tmp_path, training={"balance_by": "sample"})), 0)
    assert data.train.weight is None
    sampler = loader(data, data.train, seed=1).sampler
    drawn = np.zeros(len(data.train.rows))
    for epoch in range(300):
        sampler.set_epoch(epoch)
        np.add.at(drawn, np.concatenate(list(sampler)), 1)
    assert np.corrcoef(drawn, data.train.draw)[0, 1] > 0.95
    assert drawn.sum() == 300 * len(data.train.rows)


def test_test_rows_change_no_weight(tmp_path):
    frame = tied()
    frame["part"] = np.arange(len(frame)) // 2 % 2
    splits = {"kind": "column", "column": "part", "seed": 1}
    first = fold_data(open_problem(config(tmp_path, "one", frame, splits=splits)), 0)
    changed = frame.copy()
    tested = frame["part"] == 0
    changed.loc[tested, "site"] = np.random.default_rng(1).choice(["A", "B"], int(tested.sum()))
    second = fold_data(open_problem(config(tmp_path, "two", changed, splits=splits)), 0)
    for part in ("train", "validation"):
        assert torch.equal(getattr(first, part).weight, getattr(second, part).weight)
    other = [
        fold_data(open_problem(config(tmp_path, name, f, splits=splits)), 1)
        for name, f in (("one", frame), ("two", changed))
    ]
    assert not torch.equal(other[0].train.weight, other[1].train.weight)  # the control: there they are training rows


def test_predictions_are_given_at_the_prevalence_of_the_training_rows(tmp_path):
    frame = tied(300)
    rare = frame[(frame["dx"] == "control") | (np.arange(300) % 6 == 1)].reset_index(drop=True)
    tiny.fit(config(tmp_path, "run", rare, method={"name": "none"}))
    data = fold_data(open_problem(config(tmp_path, "run", rare)), 0)
    dx, weight = data.train.target[:, 0].double().numpy(), data.train.weight[:, 0].double().numpy()
    odds = [p / (1 - p) for p in (dx.mean(), np.average(dx, weights=weight))]
    (shift,) = data.units["prior_shift"]
    assert shift == pytest.approx(np.log(odds[0] / odds[1]))
    assert shift < -0.5
    said = pd.read_csv(tmp_path / "run" / "fold-0" / "predictions.csv", dtype={"id": str})
    new = tiny.write(tmp_path, rare.iloc[said["row"]].drop(columns="dx"), "new.csv")
    found = predict(tmp_path / "run", new, fold=0)
    assert np.allclose(found.scores[:, 0], said["score_dx"], atol=1e-6)
    assert np.allclose(said["score_dx"], 1 / (1 + np.exp(-said["logit_dx"])))


@pytest.mark.parametrize(
    ("label", "kind"), [("dx", "inverse"), ("dx", "entropy"), ("age", "entropy"), (["dx", "sex"], "overlap")]
)
def test_every_kind_of_balance_trains(tmp_path, label, kind):
    results = tiny.fit(config(tmp_path, data={"label": label}, training={"balance": kind, "epochs": 1}))
    assert [fold["balance"]["kind"] for fold in results["folds"]] == [kind, kind]


def test_isolated_test_rows_show_no_tie_and_hold_whole_people(tmp_path):
    frame = tied(400)
    frame["person"] = frame.index // 2
    frame["dx"] = np.repeat(frame["dx"].to_numpy()[::2], 2)
    frame["dx"] = np.where(frame.index // 2 % 2, "asd", "control")
    frame["site"] = np.where(np.random.default_rng(0).random(400) < np.where(frame["dx"] == "asd", 0.8, 0.2), "B", "A")
    splits = {"kind": "isolated", "folds": 3}
    problem = open_problem(config(tmp_path, "run", frame, splits=splits, data={"person": "person"}))
    tie = lambda rows: np.corrcoef(frame["dx"].iloc[rows] == "asd", frame["site"].iloc[rows] == "B")[0, 1] ** 2  # noqa: E731
    assert tie(np.arange(400)) > 0.25
    seen = []
    for fold in problem.folds:
        assert tie(fold.test) < 0.01
        assert 60 <= len(fold.test) <= 68
        assert abs((frame["dx"].iloc[fold.test] == "asd").mean() - 0.5) < 0.05
        people = [set(frame["person"].iloc[part]) for part in (fold.train, fold.validation, fold.test)]
        assert sum(map(len, people)) == len(set.union(*people))
        assert "of the labels among" in fold.note
        seen += fold.test.tolist()
    assert len(seen) == len(set(seen))


def test_too_few_people_for_isolated_test_rows_are_told():
    codes, confounds = np.arange(12.0)[:, None] % 2, np.arange(12.0)[:, None]
    with pytest.raises(TableError, match="must have people enough for 5 test sets of their own; got 12"):
        isolated_test_rows(codes, confounds, np.arange(12), np.arange(12), numeric=False, folds=5, seed=0)


def without_overlap():
    """A cohort whose third site has no patient and no man: its rows teach no label."""
    frame = tied(360)
    alone = (frame["dx"] == "control") & (frame["sex"] == "F") & (frame.index % 3 == 0)
    frame.loc[alone, "site"] = "C"
    return frame


def test_a_level_without_weight_for_any_label_is_fitted_with_weight_one_and_not_learned(tmp_path):
    labels = {"label": ["dx", "sex"]}
    data = fold_data(open_problem(config(tmp_path, frame=without_overlap(), data=labels)), 0)
    balance = data.problem.balance(0).train
    assert balance.unweighted == (("site", "C"),)
    for part in (data.train, data.validation):
        alone = torch.from_numpy(np.asarray(data.problem.source.table["site"])[part.rows] == "C")
        assert alone.any()
        assert torch.equal(part.layer_weight[alone], torch.ones(int(alone.sum())))
        assert not part.weight[alone].any()
        torch.testing.assert_close(part.layer_weight[~alone], part.weight[~alone].mean(1))
        read = torch.cat([TrainingBatch(**each).row_weight for each in loader(data, part)])
        assert torch.equal(read, part.layer_weight)  # what layers and refit read
    assert torch.equal(next(iter(data.training())).row_weight, data.train.layer_weight[:256])


def test_drawn_rows_of_a_level_without_weight_do_not_tie_label_and_site_again(tmp_path):
    """Drawn rows under the weights of their losses are, on average, the weights themselves."""
    frame, labels = without_overlap(), {"label": ["dx", "sex"]}
    exact = fold_data(open_problem(config(tmp_path, "one", frame, data=labels)), 0).train
    drawn = fold_data(
        open_problem(config(tmp_path, "two", frame, data=labels, training={"balance_by": "sample"})), 0
    ).train
    assert drawn.draw.sum() == pytest.approx(1)
    expected = torch.from_numpy(drawn.draw)[:, None] * drawn.weight.double() * len(drawn.rows)
    torch.testing.assert_close(expected, exact.weight.double(), atol=1e-5, rtol=1e-4)
    assert torch.equal(drawn.layer_weight, torch.ones(len(drawn.rows)))


def test_combat_takes_rows_that_are_drawn_by_weight_and_refuses_weights(tmp_path):
    with pytest.raises(OptionError, match=r"training\.balance_by must be sample for method 'combat'"):
        open_problem(config(tmp_path, method={"name": "combat"}))
    chosen = config(tmp_path, method={"name": "combat"}, training={"balance_by": "sample", "epochs": 1})
    data = fold_data(open_problem(chosen), 0)
    shown = [batch.target for batch in data.training()]
    assert all(batch.row_weight is None for batch in data.training())
    site = np.concatenate([batch.table["site"] for batch in data.training()])
    case = torch.cat(shown)[:, 0].numpy() > 0
    assert abs(case[site == "A"].mean() - case[site == "B"].mean()) < 0.25  # 0.6 in the table
    assert len(tiny.fit(chosen)["folds"]) == 2


def test_w_scores_of_a_run_are_those_of_its_validation_controls_and_predict_gives_them_too(tmp_path):
    frame = tied(600)
    frame["f2"] += 3 * (frame["site"] == "B")
    training = {"balance": "none", "epochs": 8, "lr": 0.05, "batch_size": 100}
    plain = tiny.fit(config(tmp_path, "plain", frame, method={"name": "none"}, training=training))
    chosen = config(tmp_path, "run", frame, method={"name": "none"}, training={**training, "w_scores": True})
    results = tiny.fit(chosen)
    problem = open_problem(chosen)
    data = fold_data(problem, 0)
    said = [pd.read_csv(tmp_path / name / "fold-0" / "predictions.csv", dtype={"id": str}) for name in ("plain", "run")]
    held = tiny.write(tmp_path, frame.iloc[data.validation.rows], "held.csv")
    scores = predict(tmp_path / "plain", held, fold=0).scores[:, 0].logit().numpy()
    controls = frame.iloc[data.validation.rows]["dx"].to_numpy() == "control"
    norm = WScores.fit(scores, {"site": frame.iloc[data.validation.rows]["site"]}, ["site"], controls)
    table = {"site": said[0]["site"].to_numpy()}
    expected = norm.at_average(said[0]["logit_dx"].to_numpy(), table)
    assert np.allclose(said[1]["logit_dx"], expected, atol=1e-4)
    w = norm(said[0]["logit_dx"].to_numpy(), table)
    assert np.allclose(np.argsort(w), np.argsort(said[1]["logit_dx"].to_numpy()))
    gaps = []
    for each in said:
        by_site = each[each["dx"] == "control"].groupby("site")["logit_dx"].mean()
        gaps.append(by_site["B"] - by_site["A"])
    assert gaps[0] > 0.5  # the control: the plain network scores site B higher
    assert abs(gaps[1]) < gaps[0] / 2
    new = tiny.write(tmp_path, frame.iloc[said[1]["row"]].drop(columns="dx"), "new.csv")
    assert np.allclose(predict(tmp_path / "run", new, fold=0).scores[:, 0], said[1]["score_dx"], atol=1e-6)
    assert results["folds"][0]["unknown_to_w_scores"] == []
    assert plain["folds"][0]["unknown_to_w_scores"] is None
    with pytest.raises(TableError, match="site"):
        predict(tmp_path / "run", tiny.write(tmp_path, frame.drop(columns=["dx", "site"]), "bare.csv"))


def test_w_scores_that_cannot_be_are_refused_before_training(tmp_path):
    training = {"balance": "none", "w_scores": True}
    with pytest.raises(OptionError, match=r"fold 0: controls must be more than twice the 2 coefficients"):
        open_problem(config(tmp_path, frame=tied(30), training=training))
    with pytest.raises(OptionError, match=r"^the config: training\.w_scores must be false for a numeric label"):
        open_problem(config(tmp_path, data={"label": "age"}, training=training))


def test_performance_is_also_given_where_label_and_site_are_independent(tmp_path):
    frame = tied(400)
    frame[[f"f{k}" for k in range(6)]] = np.random.default_rng(3).normal(size=(400, 6))
    frame["f2"] = 3.0 * (frame["site"] == "B")  # all that the features know of the label is the site
    training = {"balance": "none", "epochs": 8, "lr": 0.02}
    data = {"features": ["f*"]}
    results = tiny.fit(config(tmp_path, frame=frame, data=data, method={"name": "none"}, training=training))
    means = {name: value["mean"] for name, value in results["metrics"].items()}
    assert means["auc"] > 0.7  # the control
    assert abs(means["independent_auc"] - 0.5) < 0.08
    said = pd.read_csv(tmp_path / "run" / "fold-0" / "predictions.csv")
    case, site = said["dx"] == "asd", said["site"]
    share = case.groupby(site).transform("mean")
    weight = np.where(case, 1 - share, share)
    up, down = (said["logit_dx"].to_numpy()[rows] for rows in (case, ~case))
    wins = (up[:, None] > down) + 0.5 * (up[:, None] == down)
    fold = results["folds"][0]["metrics"]
    assert fold["independent_auc"] == pytest.approx(np.average(wins, weights=np.outer(weight[case], weight[~case])))
    assert fold["independent_rows"] == pytest.approx(weight.sum() ** 2 / (weight**2).sum())
