"""A run: what it learns, what it leaves in its folder, and every kind of task and source."""

import json
from importlib.metadata import version

import numpy as np
import pandas as pd
import pytest
import torch

from deconfound.data.sources import Source
from deconfound.errors import DeconfoundWarning, OptionError, RunError, TableError
from deconfound.metrics.performance import auc
from deconfound.training.outputs import audit_folders
from deconfound.training.problem import open_problem
from tests.training import tiny


def test_a_run_learns_the_label_and_leaves_everything_in_its_folder(tmp_path):
    path = tiny.write(tmp_path, tiny.cohort(160))
    config = tiny.config(path, tmp_path / "run", training={"epochs": 15, "lr": 0.01}, method={"name": "none"})
    results = tiny.fit(config)
    assert results["metrics"]["auc"]["mean"] > 0.7
    inside = {item.name for item in (tmp_path / "run").iterdir()} - {".lock"}
    assert inside == {"config.yaml", "run.json", "results.json", "fold-0", "fold-1"}
    names = {item.name for item in (tmp_path / "run" / "fold-0").iterdir()} - {".lock"}
    files = "checkpoint.pt design.json scaling.json history.csv predictions.csv features.npz result.json"
    assert names == set(files.split())
    origin = results["provenance"]
    assert origin["seed"] == 3
    assert origin["packages"]["torch"] == version("torch")  # torch.__version__ also names the build
    assert len(origin["data"]) == 64
    assert json.loads((tmp_path / "run" / "results.json").read_text()) == results


def test_predictions_are_those_that_the_metrics_were_taken_from(tmp_path):
    path = tiny.write(tmp_path, tiny.cohort(100))
    results = tiny.fit(tiny.config(path, tmp_path / "run"))
    table = pd.read_csv(path, dtype={"id": str})
    tested = []
    for fold in results["folds"]:
        said = pd.read_csv(tmp_path / "run" / f"fold-{fold['fold']}" / "predictions.csv", dtype={"id": str})
        assert (table["dx"].to_numpy()[said["row"]] == said["dx"]).all()
        assert (table["id"].to_numpy()[said["row"]] == said["id"]).all()
        again = auc(torch.tensor(said["logit_dx"].to_numpy()), torch.tensor((said["dx"] == "asd").to_numpy()))
        assert float(again) == pytest.approx(fold["metrics"]["auc"], abs=1e-12)
        assert np.allclose(1 / (1 + np.exp(-said["logit_dx"])), said["score_dx"])
        tested += said["row"].tolist()
    assert sorted(tested) == list(range(100))


def test_the_best_epoch_is_chosen_on_validation_rows_and_patience_ends_training(tmp_path):
    config = tiny.config(tiny.write(tmp_path), tmp_path / "run", training={"epochs": 60, "patience": 3, "lr": 0.1})
    for fold in tiny.fit(config)["folds"]:
        history = pd.read_csv(tmp_path / "run" / f"fold-{fold['fold']}" / "history.csv")
        assert fold["best_epoch"] == int(history["val_loss"].idxmin())
        assert fold["epochs"] == fold["best_epoch"] + 1 + 3 < 60


def test_methods_start_from_the_same_weights_and_rows(tmp_path):
    path = tiny.write(tmp_path)
    test = {}
    for method in ("none", "batchnorm"):
        tiny.fit(
            tiny.config(
                path,
                tmp_path / method,
                method={"name": method},
                training={"lr": 1e-12, "weight_decay": 0.0, "epochs": 1},
            )
        )
        state = torch.load(tmp_path / method / "fold-0" / "checkpoint.pt", weights_only=True)
        test[method] = next(value for key, value in state.items() if key.endswith("fc1.weight"))
    assert torch.allclose(test["none"], test["batchnorm"])


TASKS = {
    "multiclass": ({"label": "site"}, {"confounds": ["age", "sex"]}, ("auc", "balanced_accuracy", "accuracy"), 3),
    "regression": ({"label": "age"}, {"confounds": ["sex", "site"]}, ("r2", "mean_absolute_error"), 1),
    "multilabel": ({"label": ["dx", "sex"]}, {"confounds": ["age"]}, ("auc", "balanced_accuracy", "accuracy"), 2),
}


@pytest.mark.parametrize("task", TASKS)
def test_tasks_are_found_from_the_labels(tmp_path, task):
    data, design, measures, outputs = TASKS[task]
    path = tiny.write(tmp_path, tiny.cohort(120))
    loss = {} if task != "multilabel" else {"loss": "focal"}
    config = tiny.config(path, tmp_path / "run", data=data, design=design, training={"epochs": 12, "lr": 0.02, **loss})
    results = tiny.fit(config)
    assert results["task"]["kind"] == task
    assert tuple(results["metrics"]) == (*measures, f"independent_{measures[0]}", "independent_rows")
    said = pd.read_csv(tmp_path / "run" / "fold-0" / "predictions.csv")
    columns = [name for name in said if name.startswith("prediction_" if task == "regression" else "score_")]
    assert len(columns) == outputs
    if task == "regression":
        assert results["metrics"]["r2"]["mean"] > 0.2
        assert abs(said["prediction_age"].mean() - 62) < 6  # in the label's own units


def test_a_task_that_does_not_fit_the_labels_is_refused(tmp_path):
    path = tiny.write(tmp_path)
    with pytest.raises(OptionError, match=r"training\.task must fit the labels; got 'multiclass', but dx is binary"):
        open_problem(tiny.config(path, tmp_path, training={"task": "multiclass"}))
    with pytest.raises(OptionError, match="several labels must all have two levels"):
        open_problem(tiny.config(path, tmp_path, data={"label": ["dx", "site"]}, design={"confounds": ["age"]}))
    with pytest.raises(
        OptionError, match=r"training\.loss must be among 'bce', 'focal', 'within' for a binary task; got 'mse'"
    ):
        open_problem(tiny.config(path, tmp_path, training={"loss": "mse"}))


def test_rows_without_a_label_are_left_out(tmp_path):
    frame = tiny.cohort()
    frame.loc[[3, 8], "dx"] = None
    problem = open_problem(tiny.config(tiny.write(tmp_path, frame), tmp_path / "run"))
    used = np.concatenate([fold.test for fold in problem.folds])
    assert len(used) == len(frame) - 2
    assert not {3, 8} & set(used.tolist())


@pytest.mark.parametrize("kind", ["tsv", "parquet", "npy", "npz"])
def test_every_kind_of_file_gives_the_same_samples(tmp_path, kind):
    frame = tiny.cohort()
    features = [f"f{k}" for k in range(6)]
    expected = frame[features].to_numpy(np.float32)
    path, table = tmp_path / f"source.{kind}", None
    if kind == "tsv":
        frame.to_csv(path, sep="\t", index=False)
    elif kind == "parquet":
        frame.to_parquet(path)
    else:
        table = str(tiny.write(tmp_path, frame.drop(columns=features)))
        order = np.random.default_rng(0).permutation(len(frame)) if kind == "npz" else np.arange(len(frame))
        values = expected[order]
        np.save(path, values) if kind == "npy" else np.savez(path, x=values, id=frame["id"].to_numpy(str)[order])
    source = open_problem(tiny.config(path, tmp_path / "run", data={"table": table})).source
    assert isinstance(source, Source)
    assert np.array_equal(source.read(np.arange(len(frame))), expected)
    assert list(source.table["id"]) == frame["id"].tolist()


def test_features_and_people_are_joined_by_id_in_the_order_of_the_people(tmp_path):
    frame = tiny.cohort()
    features = frame[["id", *(f"f{k}" for k in range(6))]].sample(frac=1, random_state=0)
    source = tiny.write(tmp_path, features, "features.csv")
    people = tiny.write(tmp_path, frame[["id", "dx", "age", "sex", "site"]].iloc[10:], "people.csv")
    with pytest.warns(DeconfoundWarning, match=r"^10 of 72 rows of features\.csv have no partner by 'id' and are left"):
        problem = open_problem(tiny.config(source, tmp_path / "run", data={"table": str(people)}))
    assert list(problem.source.table["id"]) == frame["id"].tolist()[10:]
    assert np.allclose(problem.source.read(np.array([0]))[0], frame[[f"f{k}" for k in range(6)]].to_numpy()[10])


def test_people_without_features_are_counted_and_the_rows_of_the_others_stay(tmp_path):
    frame = tiny.cohort()
    source = tiny.write(tmp_path, frame[["id", *(f"f{k}" for k in range(6))]].iloc[:-2].drop(index=[3]), "features.csv")
    people = tiny.write(tmp_path, frame[["id", "dx", "age", "sex", "site"]].drop(index=[7]), "people.csv")
    config = tiny.config(source, tmp_path / "run", data={"table": str(people)}, method={"name": "none"})
    counts = r"1 of 69 rows of features\.csv and 3 of 71 rows of people\.csv have no partner .* 68 rows remain"
    with pytest.warns(DeconfoundWarning, match=counts):
        tiny.fit(config)
    said = pd.concat([pd.read_csv(tmp_path / "run" / f"fold-{k}" / "predictions.csv", dtype=str) for k in range(2)])
    given = pd.read_csv(people, dtype=str)["id"]
    assert said["id"].tolist() == given[said["row"].astype(int)].tolist()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"features": ["f9"]},
            "data.features must be columns of the table; got 'f9', which it lacks. It has: id, person",
        ),
        ({"features": ["dx"]}, "data.features must be columns of numbers; got 'dx', which holds 'control'"),
        ({"table": "people.csv"}, "must hold every 'id' once; got '0001' in rows 1, 2"),
        ({"source": "table.doc"}, "data.source must be a table"),
    ],
)
def test_sources_that_cannot_be_read_say_why(tmp_path, monkeypatch, change, said):
    monkeypatch.chdir(tmp_path)
    path = tiny.write(tmp_path)
    people = tiny.cohort()
    people.loc[2, "id"] = "0001"
    tiny.write(tmp_path, people, "people.csv")
    with pytest.raises((TableError, OptionError), match=said):
        open_problem(tiny.config(path, tmp_path / "run", data=change))


def test_a_network_of_ones_own_is_trained_on_images(tmp_path):
    frame = tiny.cohort(60)
    random = np.random.default_rng(0)
    images = random.normal(size=(60, 1, 4, 4)) + 2 * (frame["dx"] == "asd").to_numpy()[:, None, None, None]
    np.save(tmp_path / "images.npy", images.astype(np.float32))
    table = tiny.write(tmp_path, frame[["id", "dx", "age", "sex", "site"]])
    config = tiny.config(
        tmp_path / "images.npy",
        tmp_path / "run",
        data={"table": str(table)},
        network={"name": "tests.training.test_run:small_cnn", "options": {"width": 3}},
        training={"epochs": 15, "lr": 0.02, "threads": 1},
    )
    results = tiny.fit(config)
    assert results["identity"]["data"]["scale"] == "channels"
    assert results["metrics"]["auc"]["mean"] > 0.9


def small_cnn(outputs, shape, width):
    assert shape == (1, 4, 4)
    flat = torch.nn.Flatten()
    return torch.nn.Sequential(torch.nn.Conv2d(1, width, 3), torch.nn.ReLU(), flat, torch.nn.Linear(4 * width, outputs))


def test_what_goes_to_lightning_is_passed_through(tmp_path):
    training = {"accumulate": 2, "clip": 0.5, "precision": "bf16-mixed", "optimizer": "sgd", "epochs": 2}
    results = tiny.fit(tiny.config(tiny.write(tmp_path), tmp_path / "run", training=training))
    assert results["metrics"]["auc"]["folds"] == 2


def test_controls_reach_the_method(tmp_path):
    config = tiny.config(
        tiny.write(tmp_path),
        tmp_path / "run",
        data={"controls": {"dx": "control"}},
        method={"name": "mdn", "options": {"mdn": {"controls_only": True}}},
        training={"batch_size": 40, "epochs": 1},
    )
    assert tiny.fit(config)["metrics"]["auc"]["folds"] == 2
    wrong = tiny.config(
        tmp_path / "table.csv", tmp_path / "run2", method={"name": "mdn", "options": {"mdn": {"controls_only": True}}}
    )
    with pytest.raises(OptionError, match=r"data\.controls must be given with option 'controls_only'"):
        tiny.fit(wrong)


def test_runs_of_other_folds_or_other_rows_are_not_audited_together(tmp_path):
    path, short = tiny.write(tmp_path, tiny.cohort()), {"epochs": 1}
    shuffled = tiny.write(tmp_path, tiny.cohort().sample(frac=1, random_state=0), "shuffled.csv")
    for name, source, more in (
        ("first", path, {}),
        ("same", path, {}),
        ("seed", path, {"seed": 4}),
        ("rows", shuffled, {}),
    ):
        tiny.fit(tiny.config(source, tmp_path / name, training=short, run={"folder": str(tmp_path / name), **more}))
    quick = {"permutations": 39, "bootstraps": 40, "seed": 0}
    assert len(audit_folders([tmp_path / "first", tmp_path / "same"], **quick).verdicts) == 6
    with pytest.raises(RunError, match=r"the same test folds to be audited together; got others in '.*seed'"):
        audit_folders([tmp_path / "first", tmp_path / "seed"], **quick)
    with pytest.raises(
        RunError, match=r"the same rows in the same order to be audited together; got another age, .*rows'"
    ):
        audit_folders([tmp_path / "first", tmp_path / "rows"], **quick)
