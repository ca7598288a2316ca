"""`fit`: what is trained, what is stored, and what is refused before any training."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from deconfound.auditing import audit_files
from deconfound.data import open_samples
from deconfound.errors import DeconfoundError, OptionError, StateError
from deconfound.metrics import Resampling
from deconfound.runs import Config, Run, fit, prepare
from deconfound.training import fit_fold
from tests.runs.cohort import N, assert_same_predictions, make_cohort, make_config, train


def test_stored_predictions_are_those_of_training_by_hand(tmp_path):
    """Kills a config key that does not reach the training, and rows in another order."""
    config = Config.load(make_config(tmp_path), "method=mdn", "run.seed=3", "training.lr=0.01")
    run = train(config)
    problem = prepare(config)
    for fold in problem.folds:
        fitted = fit_fold(problem.samples, problem.task, fold, config.recipe(), seed=3)
        stored = run.predictions[run.predictions["fold"] == fold.name]
        assert stored["id"].tolist() == problem.samples.ids[fold.test].tolist()
        expected = torch.from_numpy(fitted.outputs).sigmoid().numpy()[:, 0]
        np.testing.assert_allclose(stored["prob_AD"], expected, atol=1e-6)


def test_each_person_is_predicted_once_beside_labels_and_confounds(tmp_path):
    people = make_cohort()
    run = train(make_config(tmp_path, people))
    assert run.is_finished
    assert run.failures == {}
    assert list(run.predictions) == ["id", "fold", "dx", "age", "site", "prob_AD"]
    rows = run.predictions.set_index("id").loc[people["pid"]]
    assert len(run.predictions) == N
    assert rows["dx"].tolist() == people["dx"].tolist()
    assert rows["age"].astype(float).tolist() == people["age"].tolist()
    assert len(run.history("0")) == 2
    stored = Run.load(tmp_path / "run")
    pd.testing.assert_frame_equal(stored.predictions, run.predictions)


def test_a_second_call_loads_what_the_first_one_wrote(tmp_path):
    config = make_config(tmp_path)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    first = train(config)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*.*")}
    second = train(config)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*.*")} == files
    assert second.metrics == first.metrics
    assert first.metrics["dx"].plain.value > 0.5


def test_the_file_of_predictions_can_be_audited_alone(tmp_path):
    """Metrics of the run = those of an audit of its file."""
    run = train(make_config(tmp_path))
    report = audit_files(
        tmp_path / "run" / "predictions.csv",
        confounds=["age", "site"],
        labels=["dx"],
        fold="fold",
        positive="AD",
        resampling=Resampling(19, 500),
        planted=None,
        probes=False,
    )
    assert report.performance[0].honest == run.metrics["dx"]


def test_an_audit_is_stored_whole_and_its_features_too(tmp_path):
    config = make_config(tmp_path, run={"features": True})
    run = fit(config)
    assert [(row.is_features, row.confound) for row in run.audit.verdicts] == [
        (is_features, name) for is_features in (False, True) for name in ("age", "site")
    ]
    assert run.metrics["dx"] == run.audit.performance[0].honest
    again = Run.load(run.folder)
    assert again.audit.to_dict() == run.audit.to_dict()
    assert again.features().shape == (N, 8)
    assert "<html" in (run.folder / "report.html").read_text()


def test_rows_without_a_label_are_left_out_with_a_note(tmp_path):
    people = make_cohort()
    people.loc[[3, 50], "dx"] = None
    config = make_config(tmp_path, people)
    run = train(config)
    assert "2 rows without a label are left out." in run.notes
    assert len(run.predictions) == N - 2
    assert {"003", "050"}.isdisjoint(run.predictions["id"])
    whole = train(
        make_config(tmp_path, people.drop([3, 50])),
        f"run.folder={tmp_path}/other",
    )
    assert_same_predictions(run, whole)


def test_all_faults_of_a_table_are_told_before_any_training(tmp_path):
    people = make_cohort()
    people["copy"] = people["dx"].map({"AD": "yes", "CN": "no"})
    people.loc[2, "dx"] = None  # Rows are counted in the table, with those that are left out.
    people.loc[4, "age"] = np.nan
    people.loc[7, "f1"] = np.nan
    config = make_config(tmp_path, people, data={"missing": "error"})
    with pytest.raises(OptionError, match="Feature 'copy' is the label 'dx'") as caught:
        train(config)
    text = str(caught.value)
    assert "Confound 'age' is empty in row 4 (counted from 0)." in text
    assert "write design.unseen: mean" in text
    assert "1 cells of features are empty, in 'f1'" in text
    assert "write data.missing: mean" in text
    assert not (tmp_path / "run").exists()
    fine = ("data.missing=mean", "design.unseen=mean", "data.features=[-copy]")
    assert train(config, *fine).is_finished


def test_codes_need_a_type_and_the_error_shows_the_key(tmp_path):
    people = make_cohort()
    people["site"] = people["site"].map({"A": 1, "B": 2, "C": 3})
    with pytest.raises(DeconfoundError, match=r"data\.types: \{site: categorical\}"):
        train(make_config(tmp_path, people))


def test_a_wrong_module_is_told_before_any_training(tmp_path):
    with pytest.raises(OptionError, match=r"method\.at: fc9 matches no module"):
        train(make_config(tmp_path), "method=mdn", "method.at=fc9")


def test_a_site_left_out_needs_a_rule_where_new_rows_need_their_confounds(tmp_path):
    config = make_config(tmp_path, splits={"kind": "leave-one-out", "column": "site"})
    with pytest.raises(OptionError, match=r"'A'.* write design\.unseen: mean"):
        train(config, "method=mdn")
    for rules in (["method=mdn", "design.unseen=mean"], ["method=none"]):
        run = train(config, *rules, force=True)
        assert run.folds == run.finished == ("A", "B", "C")
        assert (run.predictions["fold"] == run.predictions["site"]).all()


def test_a_file_of_weights_that_is_absent_is_told_before_any_training(tmp_path):
    with pytest.raises(OptionError, match=r"network\.weights: there is no file '.*none\.pt'"):
        train(make_config(tmp_path), f"network.weights={tmp_path}/none.pt")


def test_a_fold_that_fails_stores_its_reason_and_the_others_finish(tmp_path):
    """One scanner occurs in the test rows of a single fold."""
    people = make_cohort().assign(part=np.arange(N) // 2 % 3, scanner="x")
    people.loc[people["part"] == 1, "scanner"] = np.where(
        people["age"][people["part"] == 1] > 60, "y", "x"
    )
    config = make_config(
        tmp_path,
        people.assign(part=people["part"].map({0: "A", 1: "B/2", 2: ".."})),
        design={"confounds": ["age", "scanner"]},
        splits={"kind": "column", "column": "part"},
        data={"features": ["f*"]},
        method={"name": "pmdn"},
    )
    seen = []
    run = train(config, on_progress=lambda *step: seen.append(step))
    assert list(run.failures) == ["B/2"]
    assert "'y'" in run.failures["B/2"]
    assert run.finished == ("..", "A")
    assert str(run).splitlines()[1].startswith("Fold B/2 failed: ")
    assert any("failed" in text for _, _, text in seen)
    assert sorted({*run.predictions["fold"]}) == ["..", "A"]
    # A failed fold is tried again, and finished ones are not.
    times = [path.stat().st_mtime_ns for path in run.folder.rglob("result.json")]
    assert train(config).failures == run.failures
    assert [path.stat().st_mtime_ns for path in run.folder.rglob("result.json")] == times


def test_a_training_that_diverges_everywhere_is_an_error_with_the_way_out(tmp_path):
    with pytest.raises(
        StateError, match=r"(?s)All 2 folds failed: Training diverged.*training\.lr"
    ):
        train(make_config(tmp_path), "training.lr=1e18", "training.optimizer=sgd")


def test_progress_names_fold_epoch_and_loss(tmp_path):
    seen = []
    train(make_config(tmp_path), on_progress=lambda *step: seen.append(step))
    done, total, text = seen[-1]
    assert (done, total) == (4, 4)
    assert text.startswith("fold 2 of 2: epoch 2 of 2, validation loss 0.")


def test_samples_in_python_and_parts_give_the_same_run(tmp_path):
    config = make_config(tmp_path)
    whole = train(config)
    samples = open_samples(make_cohort(), id="pid", roles=["dx", "age", "site"])
    own = train(config, f"run.folder={tmp_path}/own", data=samples)
    assert_same_predictions(whole, own)
    folder = f"run.folder={tmp_path}/parts"
    first = train(config, folder, part=(1, 2))
    assert first.finished == ("0",)
    assert first.metrics == {}
    assert train(config, folder, part=(1, 2)).finished == ("0",)
    last = train(config, folder, part=(2, 2))
    assert last.metrics == whole.metrics
    with pytest.raises(OptionError, match="part must be"):
        train(config, folder, part=(3, 2))


@pytest.mark.slow
def test_processes_give_the_numbers_of_one(tmp_path):
    config = make_config(tmp_path)
    seen = []
    run = train(config, jobs=2, on_progress=lambda *step: seen.append(step))
    assert_same_predictions(run, train(config, f"run.folder={tmp_path}/one"))
    assert seen[-1][:2] == (4, 4)


@pytest.mark.slow
def test_a_dask_cluster_gives_the_numbers_of_one_process(tmp_path):
    distributed = pytest.importorskip("distributed")
    config = make_config(tmp_path)
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster:
        run = train(config, scheduler=cluster.scheduler_address)
    assert_same_predictions(run, train(config, f"run.folder={tmp_path}/one"))


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_fabric_gives_the_numbers_of_one_process(tmp_path, devices):
    """Two processes share each batch."""
    pytest.importorskip("lightning")
    config = make_config(tmp_path)
    launcher = f"launcher={{accelerator: cpu, devices: {devices}}}"
    run = train(config, launcher, f"run.folder={tmp_path}/fabric")
    assert_same_predictions(run, train(config), tolerance=1e-5 if devices == 1 else 0.02)
