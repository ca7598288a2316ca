"""The MRI experiment in small: resumed in parts, summarised as the paper does, and honest about its ceilings."""

import json
from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest
import torch

from deconfound.data.cohort import simulate_cohort
from deconfound.data.people import GROUPS
from deconfound.data.truth import bayes_accuracy
from deconfound.errors import OptionError, RunError
from deconfound.experiments.mri import ARMS, FULL, QUICK, Plan, run_mri
from deconfound.experiments.mri.drawing import write_maps
from deconfound.experiments.mri.fold import Trainer, build_network, load
from deconfound.experiments.mri.plan import Arm
from deconfound.experiments.mri.results import around, correlations, group_accuracy, over_folds, within_groups
from deconfound.experiments.mri.running import divide, simulate

TINY = Plan(
    size=16,
    people=240,
    batch_sizes=(40,),
    folds=3,
    run_folds=2,
    filters=(2, 2, 2, 2),
    epochs=1,
    least_steps=1,
    arms=("mdn", "pmdn"),
    bootstraps=10,
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A finished tiny experiment, stopped once on the way."""
    root = tmp_path_factory.mktemp("mri")
    options = {"plan": TINY, "out": root / "out", "device": "cpu", "cache": root / "cache"}
    assert run_mri(**options, minutes=0) is None
    calls = []
    results = run_mri(**options, progress=lambda *state: calls.append(state))
    return root, options, results, calls


def test_the_full_plan_is_the_papers():
    assert FULL.batch_sizes == (20, 80, 160, 240)
    assert (FULL.size, FULL.folds, FULL.run_folds, FULL.people) == (64, 5, 5, None)
    assert ARMS["mdn"].at == ARMS["pmdn"].at == ("relu1", "relu2", "fc3")
    assert ARMS["bn"].at == ("relu1", "relu2")
    assert ARMS["pmdn-before"].at == ("fc1", "fc2", "fc3")
    assert (QUICK.size, len(QUICK.batch_sizes)) == (32, 1)
    assert len(FULL.cells()) == 4 * 5 * len(ARMS)
    assert FULL.epochs_for(20, 860) == 30
    assert FULL.epochs_for(240, 860) == 100


def test_the_network_is_the_papers_and_has_layer_norm_where_the_arm_has_it():
    network = build_network(FULL, ARMS["pmdn-paper"])
    assert network.fc1.in_features == 2048
    assert [network.fc1.out_features, network.fc2.out_features, network.fc3.out_features] == [128, 16, 2]
    assert isinstance(network.relu1[1], torch.nn.LayerNorm)
    assert isinstance(build_network(FULL, ARMS["pmdn"]).relu1, torch.nn.ReLU)


def test_a_second_call_goes_on_and_a_third_trains_nothing(tiny, monkeypatch):
    _, options, results, calls = tiny
    assert [call[0] for call in calls][:2] == ["mdn, batch 40, fold 0", "pmdn, batch 40, fold 0"]
    assert len(calls) == 4
    monkeypatch.setattr(Trainer, "run", lambda *_: pytest.fail("trained again"))
    assert run_mri(**options) == results
    with pytest.raises(RunError, match="must hold this experiment; got one with another plan or cohort"):
        run_mri(**(options | {"plan": replace(TINY, seed=5)}))


def test_results_are_written_with_where_they_come_from_and_the_tables(tiny):
    root, _, results, _ = tiny
    written = json.loads((root / "out" / "results.json").read_text())
    assert written["plan"]["size"] == 16
    assert written["provenance"]["data"] == written["data"]
    assert written["results"]["ceiling"] == bayes_accuracy()
    assert len(written["results"]["lines"]) == 2
    two = (root / "out" / "table2.md").read_text()
    assert "| 40 | Age corr ↓ |" in two
    assert "Accuracy, independent ↑" in two
    assert "80.0%" in two
    assert "UCSF | 30 (156)" in (root / "out" / "table1.md").read_text()
    assert (root / "out" / "tsne.png").read_bytes().startswith(b"\x89PNG")
    assert 0 < results.truth["age"] < 0.6


def test_a_broken_training_is_named(tiny, tmp_path):
    from deconfound.experiments.mri.running import read_outcome

    (tmp_path / "x.npz").write_bytes(b"broken")
    with pytest.raises(RunError, match=r"x\.npz must be a finished training; got"):
        read_outcome(tmp_path / "x.npz")


def test_folds_hold_every_site_and_group_evenly():
    cohort = simulate_cohort(16)
    parts = divide(replace(TINY, people=None, folds=5), cohort)
    for group in GROUPS:
        counts = [(cohort.table["group"][fold.test] == group).sum() for fold in parts]
        assert max(counts) - min(counts) <= 3
    assert sorted(np.concatenate([fold.test for fold in parts]).tolist()) == list(range(1262))


def test_the_true_labels_correlate_with_the_confounds_and_a_severity_within_groups_does_not():
    """The paper's marginal correlations of perfect answers are far from zero; within groups they vanish."""
    cohort = simulate_cohort(16)
    rows = np.arange(len(cohort))
    labels = np.stack([cohort.table["hiv"], cohort.table["mci"]], axis=1).astype(float)
    severity = np.stack([cohort.severity["hiv"], cohort.severity["mci"]], axis=1)
    marginal, within = correlations(labels, cohort, rows), within_groups(severity, cohort, rows)
    assert marginal["age"] == pytest.approx(0.32, abs=0.05)
    assert marginal["site"] == pytest.approx(0.13, abs=0.02)
    assert within["age"] < 0.12
    assert abs(within["site"]) < 0.02
    leaking = severity + 0.2 * cohort.table["age"][:, None]
    assert within_groups(leaking, cohort, rows)["age"] > 0.6


def test_accuracy_counts_people_with_both_labels_right_in_each_group():
    cohort = simulate_cohort(16, people=100)
    rows = np.arange(100)
    truth = np.stack([cohort.table["hiv"], cohort.table["mci"]], axis=1)
    logits = np.where(truth == 1, 1.0, -1.0)
    assert group_accuracy(logits, cohort, rows) == 1.0
    logits[cohort.table["group"] == "HAND", 0] = -1.0
    assert group_accuracy(logits, cohort, rows) == 0.75


def test_an_interval_over_folds_is_students():
    from scipy import stats

    values = [0.4, 0.5, 0.45, 0.6, 0.55]
    found = over_folds(values)
    low, high = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-3)


def test_an_interval_of_replicates_stands_around_the_value():
    found = around(0.1, (0.2 + np.linspace(-0.05, 0.05, 101)).tolist())
    assert (found.mean, found.low, found.high) == pytest.approx((0.1, 0.0525, 0.1475))


def test_coefficients_of_a_block_are_written_as_maps(tmp_path):
    cohort, independent = simulate(replace(TINY, people=80), torch.device("cpu"))
    volumes, free = (load(each, torch.device("cpu")) for each in (cohort, independent))
    trainer = Trainer(TINY, volumes, free, divide(TINY, cohort)[0], seed=0)
    made, _, _ = trainer.train(Arm("", "pmdn", at=("blocks.0", "fc3")), 40)
    files = write_maps(made, "blocks.0", tmp_path)
    assert {file.name.split("_")[1].split("-")[0] for file in files} >= {"age.nii.gz"}
    volume = nib.load(files[0])
    assert volume.shape == (8, 8, 8)
    assert np.isfinite(volume.get_fdata()).all()
    assert volume.get_fdata().max() > 0
    with pytest.raises(OptionError, match=r"path must be a place with a layer; got 'blocks.3'"):
        write_maps(made, "blocks.3", tmp_path)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"arms": ("pmnd",)}, r"arms must be among baseline, .*; got 'pmnd'"),
        ({"run_folds": 9}, "run_folds must lie between 1 and 3; got 9"),
    ],
)
def test_plans_that_cannot_be_are_refused(changes, text):
    with pytest.raises(OptionError, match=text):
        replace(TINY, **changes)
