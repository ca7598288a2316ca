"""The MRI experiment in small: summarised as the paper does, honest about its ceilings, and free of leakage."""

import json
import shutil
import sys
from dataclasses import asdict, replace

import nibabel as nib
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import deconfound as dc
from deconfound.cli import app
from deconfound.errors import OptionError, RunError
from deconfound.methods import Setting, TrainingBatch, method
from deconfound_lab.cohort.cohort import simulate_cohort
from deconfound_lab.cohort.people import GROUPS
from deconfound_lab.cohort.truth import bayes_accuracy
from deconfound_lab.harness import run_experiment
from deconfound_lab.harness.estimates import Value
from deconfound_lab.harness.experiment import remake
from deconfound_lab.mri.experiment import MriExperiment
from deconfound_lab.mri.maps import load_maps, maps_of, write_files
from deconfound_lab.mri.measures import bootstrap, correlations, group_accuracies, within_groups
from deconfound_lab.mri.plan import ARMS, CENTRAL, EVERY, FULL, PAPER, QUICK, SEARCHED, Part, Plan
from deconfound_lab.mri.results import Line, Results, Trial
from deconfound_lab.mri.tables import arms_table, gaps, not_first, oracle_table, table_three, verdict
from deconfound_lab.mri.training import FoldTraining, Volumes, build_network, train_arm
from deconfound_lab.paper.table_two import TABLE_TWO

TINY = Plan(
    size=16,
    people=240,
    parts=(Part(("mdn", "pmdn"), (40,), 2),),
    folds=3,
    filters=(2, 2, 2, 2),
    epochs=1,
    least_steps=1,
    bootstraps=10,
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A finished tiny experiment."""
    root = tmp_path_factory.mktemp("mri")

    def make(**changes):
        return MriExperiment(plan=replace(TINY, **changes), cache=root / "cache")

    calls = []
    run = run_experiment(make(), root / "out", progress=lambda *state: calls.append(state))
    return root, make, Results.from_dict(run.results), calls


def test_the_full_plan_is_the_papers():
    assert FULL.batch_sizes == (20, 80, 160, 240)
    assert (FULL.size, FULL.folds, FULL.people) == (64, 5, None)
    papers = {name: next(iter(tried.values())) for name, tried in SEARCHED.items()}
    assert papers["mdn"].at == papers["rmdn"].at == papers["pmdn-paper"].at == ("relu1", "relu2", "fc3")
    assert papers["bn"].at == ("relu1", "relu2")
    assert {len(tried) for tried in SEARCHED.values()} == {3}
    assert (QUICK.size, len(QUICK.batch_sizes)) == (32, 1)
    everywhere = {(batch, fold, arm) for arm in CENTRAL for batch in FULL.batch_sizes for fold in range(5)}
    in_two = {(b, f, arm) for arm in EVERY for b in (20, 160) for f in range(3)}
    papers = {(b, 0, arm) for arm in ("bn", "adversarial", "mdn") for b in (80, 240)}
    assert set(FULL.trainings()) == everywhere | in_two | papers
    assert {(b, 0, arm) for b, arms in TABLE_TWO.items() for arm in arms} <= set(FULL.trainings())
    assert len(set(FULL.trainings())) == len(FULL.trainings())
    assert {arm for arm in EVERY if ARMS[arm].balanced} >= {"baseline-balanced", "mdn-balanced", "pmdn-balanced"}
    assert FULL.epochs_for(20, 860) == 30
    assert FULL.epochs_for(240, 860) == 75


def test_the_network_is_the_papers():
    network = build_network(FULL.network)
    assert network.fc1.in_features == 2048
    assert [network.fc1.out_features, network.fc2.out_features, network.fc3.out_features] == [128, 16, 2]


def test_layer_norm_stands_before_the_layers_where_the_arm_has_it():
    experiment = MriExperiment(plan=replace(TINY, people=120))
    data = FoldTraining(TINY.network, volumes_of(experiment.cohort), experiment.folds[0], seed=0)
    norms = {name: dict(data.prepare(ARMS[name], 1e-3).model.layer_norms) for name in ("pmdn-paper", "pmdn")}
    assert {path: tuple(norm.normalized_shape) for path, norm in norms["pmdn-paper"].items()} == {
        "relu1": (128,), "relu2": (16,),
    }  # fmt: skip
    assert norms["pmdn"] == {}


def test_every_arm_and_fold_is_trained_in_turn_and_the_maps_come_last(tiny):
    root, make, _, calls = tiny
    assert [call[0] for call in calls] == [
        "mdn, batch 40, fold 0", "pmdn, batch 40, fold 0", "mdn, batch 40, fold 1", "pmdn, batch 40, fold 1",
        "all cells", "maps of the coefficients", "maps of the coefficients",
    ]  # fmt: skip
    with pytest.raises(RunError, match=r"must hold this experiment; got one with plan\.seed 0 instead of 5"):
        run_experiment(make(seed=5), root / "out")


def test_results_are_written_with_where_they_come_from_and_the_tables(tiny):
    root, _, results, _ = tiny
    written = json.loads((root / "out" / "results.json").read_text())
    assert written["plan"]["size"] == 16
    assert [source["data"] for source in written["provenance"]] == [written["data"]]
    assert written["provenance"][0]["commit"]
    assert [trial["source"] for line in written["lines"] for trial in line["trials"]] == [0] * 8
    assert written["ceiling"] == pytest.approx(bayes_accuracy(), rel=1e-5)
    two = (root / "out" / "tables.md").read_text()
    assert "| batch | arm | Age corr ↓ |" in two
    assert "accuracy, independent ↑, as trained" in two
    assert "80.0%" in two
    assert "not trained" not in two
    assert "| 40 | MDN |" in two
    assert "UCSF | 30 (156)" in two
    for name in ("tsne.png", "comparison.png", "maps.png"):
        assert (root / "out" / name).read_bytes().startswith(b"\x89PNG")
    assert "4 trainings in " in (root / "out" / "report.html").read_text()
    assert 0 < results.truth["age"] < 0.6


def test_tables_are_made_again_from_the_results_alone(tiny, tmp_path):
    root = tiny[0]
    shutil.copy(root / "out" / "results.json", tmp_path)
    done = CliRunner().invoke(app, ["reproduce", "mri", "--report-only", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "PMDN (ours) at batch 40: accuracy on independent people" in " ".join(done.output.split())
    assert (tmp_path / "tables.md").read_text() == (root / "out" / "tables.md").read_text()
    assert (tmp_path / "tsne.png").exists()
    (tmp_path / "results.json").write_text('{"plan": {}}')
    with pytest.raises(RunError, match=r"results\.json must hold data, arms, .*; got a file without"):
        remake(MriExperiment, tmp_path)


def test_a_folder_that_is_copied_goes_on_with_a_larger_plan_and_says_what_is_missing(tiny, tmp_path):
    root, make, _, _ = tiny
    shutil.copytree(root / "out", tmp_path / "out")
    (tmp_path / "out" / "cells" / "mdn-batch-40-fold-1.npz").unlink()
    larger = make(parts=(Part(("mdn", "pmdn"), (20, 40), 3),))
    results = Results.from_dict(run_experiment(larger, tmp_path / "out", minutes=0).results)
    assert gaps(results) == [
        "Batch 20 is not trained yet.",
        "Batch 40: folds 1, 2 of MDN are not trained yet.",
        "Batch 40: fold 2 of PMDN (ours) is not trained yet.",
    ]
    assert results.find(40, "mdn").accuracy.single


def test_a_training_of_an_arm_that_has_changed_is_refused(tiny, monkeypatch):
    root, make, _, _ = tiny
    monkeypatch.setitem(ARMS, "pmdn", replace(ARMS["pmdn"], at=("fc3",)))
    with pytest.raises(
        RunError, match=r"must be of the cell 'pmdn, batch 40, fold 0' as it is now; got one of .*'fc1'"
    ):
        run_experiment(make(), root / "out", minutes=0)


def test_a_cohort_has_one_fingerprint_wherever_it_is_rendered():
    """A folder begun on a GPU goes on on a CPU: the fingerprint is one of settings, not of voxels or devices."""
    cohort = MriExperiment(plan=TINY).cohort
    assert not {"device", "table"} & set(cohort.settings)
    assert simulate_cohort(16, people=240, device="cpu:0").fingerprint == cohort.fingerprint
    assert simulate_cohort(16, people=236).fingerprint != cohort.fingerprint


def test_every_arm_trains_on_volumes_stored_in_half_precision():
    plan = replace(TINY, epochs=1, least_steps=1, people=120)
    experiment = MriExperiment(plan=plan)
    volumes = volumes_of(experiment.cohort)
    halved = replace(volumes, images=volumes.images.half())
    data = FoldTraining(plan.network, halved, experiment.folds[0], seed=0)
    for name in ("oracle", *PAPER):
        arm = ARMS[name]
        if "warmup" in arm.options:
            with pytest.raises(
                RunError, match=r"a warm-up must end before training does; got 200 batches .* \(1 epochs\)"
            ):
                train_arm(plan, data, arm, 20)
            arm = replace(arm, options=arm.options | {"warmup": 0})
        if arm.method == "erase":  # the output of these small blocks has fewer features than it takes away
            arm = replace(arm, at=("fc1",))
        made, _ = train_arm(plan, data, arm, 20)
        assert torch.isfinite(data.predict(made, halved, np.arange(5)).logits).all()


def volumes_of(cohort):
    return Volumes(torch.from_numpy(cohort.read(np.arange(len(cohort)))), dict(cohort.table))


def test_folds_hold_every_site_and_group_evenly():
    experiment = MriExperiment(plan=replace(TINY, people=None, folds=5))
    for group in GROUPS:
        counts = [(experiment.cohort.table["group"][fold.test] == group).sum() for fold in experiment.folds]
        assert max(counts) - min(counts) <= 3
    assert sorted(np.concatenate([fold.test for fold in experiment.folds]).tolist()) == list(range(1262))


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
    assert group_accuracies(logits, cohort, rows) == dict.fromkeys(GROUPS, 1.0)
    logits[cohort.table["group"] == "HAND", 0] = -1.0
    assert group_accuracies(logits, cohort, rows) == {**dict.fromkeys(GROUPS, 1.0), "HAND": 0.0}


def test_the_bootstrap_by_counts_is_the_bootstrap_by_rows():
    """The fast form against the measure itself, on the very rows that a draw has."""
    cohort = simulate_cohort(16, people=200)
    rows = np.arange(20, 200)
    scores = np.random.default_rng(1).standard_normal((len(rows), 2)) + 0.03 * cohort.table["age"][rows, None]
    drawn = bootstrap(scores, cohort, rows, draws=3)
    groups = cohort.table["group"][rows]
    random = np.random.default_rng(0)
    counts = np.zeros((len(rows), 3), dtype=int)
    for group in GROUPS:
        mine = np.flatnonzero(groups == group)
        counts[mine] = random.multinomial(len(mine), np.full(len(mine), 1 / len(mine)), size=3).T
    for draw in range(3):
        chosen = np.repeat(np.arange(len(rows)), counts[:, draw])
        by_name = within_groups(scores[chosen], cohort, rows[chosen])
        assert {name: drawn[name][draw] for name in drawn} == pytest.approx(by_name, abs=1e-9)


def made_up(changes):
    """Results of two arms at one batch size and three folds, with differences that are known."""

    def line(arm, free, left):
        trials = tuple(
            Trial(
                fold,
                dict.fromkeys(("age", "sex", "site"), 0.2),
                dict.fromkeys(("age", "sex", "site"), b),
                dict.fromkeys(GROUPS, 0.7),
                a,
                3,
                0.1,
                1.0,
                0,
            )
            for fold, (a, b) in enumerate(zip(free, left, strict=True))
        )
        level = Value(float(np.mean(left)), 0.0, 0.1)
        return Line(20, arm, "refitted", trials, dict.fromkeys(("age", "sex", "site"), level), level, 0.5)

    plan = {"parts": [{"batch_sizes": [20], "arms": ["mdn", "pmdn"], "folds": 3}]}
    lines = tuple(line(arm, *values) for arm, values in changes.items())
    chance = {"age": 0.05, "sex": 0.05, "site": 0.0}
    arms = {name: asdict(ARMS[name]) for name in ("mdn", "pmdn")}
    return Results(plan, "", arms, [], {}, lines, chance, chance, 0.8, 0.87, {"simulated": [], "paper": []}, ())


def test_differences_are_paired_over_folds_and_what_is_behind_is_called_so():
    results = made_up({"mdn": ([0.5, 0.6, 0.7], [0.02, 0.03, 0.04]), "pmdn": ([0.6, 0.7, 0.81], [0.03, 0.05, 0.05])})
    row = table_three(results).rows[0]
    assert row[:4] == ["20", "MDN", "+10.3 (+8.1 to +12.6)", "ahead"]
    assert row[4].startswith("+0.013 (")
    assert row[5] == "**behind** (interval includes 0)"
    assert not_first(results) == [
        "Batch 20: PMDN (ours) is not first in mean correlation within groups: 0.043, MDN 0.030 (accuracy 60.0%)."
    ]
    assert verdict(Value(-0.1, -0.2, -0.05), -1) == "ahead"
    assert verdict(Value(-0.1, -0.2, -0.05), 1) == "**behind**"
    assert verdict(Value(0.1, 0.1, 0.1), 1) == "ahead (one fold)"
    assert verdict(Value(0.0, -0.1, 0.1), 1) == "level"


def test_the_way_to_the_oracle_is_that_of_the_folds_that_an_arm_has():
    arms = {"baseline": ([0.5, 0.6], [0.2, 0.2]), "oracle": ([0.7, 0.7], [0.1, 0.1]), "pmdn": ([0.6], [0.1])}
    results = replace(made_up(arms), arms={name: asdict(ARMS[name]) for name in arms})
    assert oracle_table(results).rows == [["20", "PMDN (ours)", "+10.0", "50%", "+0.0"]]


def test_arms_are_shown_with_their_places():
    results = made_up({"mdn": ([0.5], [0.02]), "pmdn": ([0.6], [0.01])})
    assert arms_table(results).rows[0] == ["MDN", "`mdn`", "`fc1`, `fc2`, `fc3`", "–", "–", "–"]
    assert table_three(results).rows[0][:4] == ["20", "MDN", "+10.0", "ahead (one fold)"]


def test_coefficients_of_a_block_are_maps_of_it_and_a_picture_comes_without_nibabel(tiny, tmp_path, monkeypatch):
    root, make, _, _ = tiny
    make().make_maps(tmp_path)
    names = sorted(file.name for file in (tmp_path / "maps").iterdir())
    assert names == sorted(file.name for file in (root / "out" / "maps").iterdir())
    assert "blocks-0_age.nii.gz" in names
    volume = nib.load(tmp_path / "maps" / "blocks-0_age.nii.gz")
    assert volume.shape == (8, 8, 8)
    assert np.isfinite(volume.get_fdata()).all()
    assert volume.get_fdata().max() > 0
    first, second = (load_maps(folder / "maps.npz") for folder in (root / "out", tmp_path))
    np.testing.assert_array_equal(first.fields, second.fields)
    assert second.about["provenance"]["device"]
    assert second.about["arm"]["at"][0] == "blocks.0"
    monkeypatch.setitem(sys.modules, "nibabel", None)
    assert write_files(tmp_path) == [tmp_path / "maps.png"]


def test_a_map_holds_the_size_of_the_coefficient_over_channels():
    table = {"age": [50.0, 60.0, 70.0, 84.0]}
    design = dc.Design(confounds=["age"], keep=[]).fit(table)
    batch = TrainingBatch(torch.randn(4, 1, 16, 16, 16), torch.from_numpy(design.encode(table)), torch.zeros(4, 2))
    network = build_network(TINY.network)
    made = method("pmdn").prepare(network, Setting(design, ("blocks.0",), lambda: [batch])).train()
    made(batch.x, batch.metadata)
    maps = maps_of(made, "blocks.0", torch.zeros(1, 16, 16, 16), {})
    (beta,) = made.model.coefficients()["blocks.0"].values()
    by_hand = [(beta[0, i, 3, 5] ** 2 + beta[1, i, 3, 5] ** 2).item() / 2 for i in range(8)]
    np.testing.assert_allclose(maps.fields[0, :, 3, 5] ** 2, by_hand, rtol=1e-5)
    with pytest.raises(OptionError, match=r"place must be one with a layer; got 'blocks\.3'"):
        maps_of(made, "blocks.3", torch.zeros(1, 16, 16, 16), {})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"parts": (Part(("pmnd",), (40,), 1),)}, r"arms must be among baseline, .*; got 'pmnd'"),
        ({"parts": (Part(("pmdn",), (40,), 9),)}, "folds of a part must lie between 1 and 3; got 9"),
    ],
)
def test_plans_that_cannot_be_are_refused(changes, text):
    with pytest.raises(OptionError, match=text):
        replace(TINY, **changes)
