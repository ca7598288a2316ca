"""The synthetic experiment in small: its data, one pinned cell, its tables, and a run that goes on."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import deconfound as dc
from deconfound.cli import app
from deconfound.errors import DeconfoundError, OptionError
from deconfound_lab.__main__ import ELSEWHERE, filled_page
from deconfound_lab.harness import run_experiment
from deconfound_lab.harness.page import write_page
from deconfound_lab.synthetic import measures, plan, training
from deconfound_lab.synthetic.experiment import SyntheticExperiment
from deconfound_lab.synthetic.images import CEILING, SITE_SHARES, SITES, ceiling, images_on, synthetic_images
from deconfound_lab.synthetic.measures import measure
from deconfound_lab.synthetic.networks import NETWORKS
from deconfound_lab.synthetic.page import sentence
from deconfound_lab.synthetic.plan import METHODS, Setup, full_grid, quick_grid, steps_for
from deconfound_lab.synthetic.tables import Results, closer, footing_table, main_table, network_table, of, short_table
from deconfound_lab.synthetic.training import make_problem, make_trainer, run_setup, transfer
from tests.lab.docs import without_marks

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def small(monkeypatch):
    """Two hundred images to train on and to validate with, where only the machinery is tested."""
    for room in (plan, training):
        monkeypatch.setattr(room, "TRAINING_IMAGES", 200)


def silent(done, total):
    """No progress is shown."""


def amplitude(images, row, column):
    """The factor of the bump in a quadrant: the bump sums to 1, so the pixels sum to the factor."""
    return images[:, 0, 16 * row : 16 * row + 16, 16 * column : 16 * column + 16].sum((1, 2))


def test_images_hold_the_main_effect_twice_the_confound_once_and_nothing_in_the_fourth_quadrant():
    data = synthetic_images(500, seed=2)
    upper, lower, third = amplitude(data.images, 0, 0), amplitude(data.images, 1, 1), amplitude(data.images, 1, 0)
    assert torch.corrcoef(torch.stack([upper, lower]))[0, 1] > 0.97
    torch.testing.assert_close(third, data.confound[:, 0], atol=0.8, rtol=0)
    assert data.images[:, 0, :16, 16:].std() == pytest.approx(0.01, rel=0.02)
    within = [torch.corrcoef(torch.stack([upper[data.group == g], third[data.group == g]]))[0, 1] for g in (0, 1)]
    assert max(map(abs, within)) < 0.12


def test_a_threshold_on_the_main_effect_reaches_the_ceiling_and_no_more():
    data = synthetic_images(20_000, seed=5)
    guess = amplitude(data.images, 0, 0) + amplitude(data.images, 1, 1) > 7
    assert (guess == data.group.bool()).float().mean() == pytest.approx(CEILING, abs=0.006)
    assert [ceiling(((1, 4), (1 + s, 4 + s))) for s in (1.5, 0.0, 3.0)] == [0.75, 0.5, 1.0]


def test_the_second_confound_lies_in_the_fourth_quadrant():
    data = synthetic_images(300, seed=1, kind="two")
    torch.testing.assert_close(amplitude(data.images, 0, 1), data.confound[:, 1], atol=0.8, rtol=0)
    assert set(data.table) == {"confound", "second", "group"}


def test_sites_occur_as_often_as_said_in_each_group():
    data = synthetic_images(20_000, seed=1, kind="sites")
    for group in (0, 1):
        found = [np.mean(data.columns["site"][data.group.numpy() == group] == site) for site in SITES]
        np.testing.assert_allclose(found, SITE_SHARES[group], atol=0.015)


def test_a_curved_confound_acts_by_its_third_power():
    data = synthetic_images(300, seed=1, kind="curved")
    torch.testing.assert_close(amplitude(data.images, 1, 0), data.confound[:, 0] ** 3 / 36, atol=0.8, rtol=0)


def test_with_the_texts_reading_the_draw_is_the_variance_of_the_bump():
    data = synthetic_images(200, seed=1, reading="width")
    block = data.images[:, 0, 16:, :16]
    away = torch.arange(16) - 7.5
    for group in (0, 1):
        rows = data.group == group
        profile = block[rows].mean(0).sum(1)
        assert (profile * away**2).sum() / profile.sum() == pytest.approx(float(data.confound[rows].mean()), rel=0.15)
    assert block.sum((1, 2)).mean() == pytest.approx(1, abs=0.05)


def test_an_independent_confound_says_nothing_about_the_group():
    tied, free = (synthetic_images(5000, seed=3, confound=kind) for kind in ("tied", "independent"))
    correlation = [torch.corrcoef(torch.stack([d.group.float(), d.confound[:, 0]]))[0, 1] for d in (tied, free)]
    assert correlation[0] > 0.7
    assert abs(correlation[1]) < 0.03


@pytest.mark.parametrize(("name", "value"), [("kind", "three"), ("reading", "depth"), ("confound", "loose")])
def test_what_the_generator_does_not_know_is_refused(name, value):
    with pytest.raises(OptionError, match=f"{name} must be one of .*; got '{value}'"):
        synthetic_images(10, **{name: value})


def test_the_grid_holds_every_method_at_every_batch_size_and_no_cell_twice():
    cells = full_grid()
    assert len({cell.key for cell in cells}) == len(cells)
    usual = [c for c in cells if c.problem == "one" and c.lr == 1e-4 and not c.options and not c.stages]
    for balanced, batches in ((False, (2, 20, 200, 1000, 2000)), (True, (2, 20, 200))):
        found = {(c.method, c.batch) for c in usual if c.balanced is balanced}
        assert found >= {(m, b) for m in METHODS for b in batches}
    assert {c.method for c in usual if c.batch == 1} == {"none", "mdn", "rmdn", "pmdn"}
    assert [steps_for(b) for b in (1, 2, 20, 200)] == [20_000, 10_000, 1500, 1500]


def test_one_cell_is_what_it_was_pmdn_at_batch_20_comes_to_the_ceiling_and_the_plain_cnn_passes_it():
    """The pinned cell: 200 steps, one seed, on the CPU."""
    setups = [Setup(method, 20, lr=1e-3, steps=200, seeds=(1,)) for method in ("none", "pmdn")]
    found = [run_setup(setup, CPU, silent, 1000)[0] for setup in setups]
    plain, ours = (each["best"] for each in found)
    assert plain["accuracy"] > 0.9
    assert plain["accuracy_independent"] < 0.78
    assert plain["dcor2"] > 0.2
    assert ours["accuracy"] == pytest.approx(CEILING, abs=0.025)
    assert ours["accuracy_independent"] == pytest.approx(CEILING, abs=0.025)
    assert ours["dcor2"] < 0.01
    # So do R-MDN, which moves less with a batch (0.006), and MDN, which is fitted to it (0.3).
    assert 0.015 < found[1]["gap"] < 0.1


def test_a_grid_goes_on_where_it_stopped_and_a_failing_cell_does_not_stop_the_others(small, tmp_path):
    setups = [
        Setup("none", 20, steps=2, seeds=(0, 1)),
        Setup("batchnorm", 1, steps=2, seeds=(0,)),
        Setup("pmdn", 20, steps=2, long=3, seeds=(0,)),
    ]
    first = run_experiment(SyntheticExperiment(setups=setups[:1], test_per_group=50), tmp_path).results
    results = run_experiment(SyntheticExperiment(setups=setups, test_per_group=50), tmp_path).results
    assert results["cells"][0]["seeds"] == first["cells"][0]["seeds"]
    assert [cell["cell"]["method"] for cell in results["cells"]] == ["none", "pmdn"]
    assert list(results["failures"]) == [setups[1].key]
    assert set(results["cells"][1]["seeds"][0]) >= {"best", "last", "long", "gap", "best_step", "validation_loss"}
    assert results["provenance"][0]["deconfound"] == dc.__version__
    assert "Failed: batchnorm" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "figure2.png").read_bytes().startswith(b"\x89PNG")


def test_two_trainings_of_a_seed_give_the_same_numbers(small):
    setup = Setup("pmdn", 20, steps=3, seeds=(4,))
    assert run_setup(setup, CPU, silent, 50) == run_setup(setup, CPU, silent, 50)


def test_a_cell_is_the_same_alone_and_after_others_that_drew_its_images(small):
    cells = [
        Setup("none", 20, lr=1e-2, steps=2, seeds=(0,)),
        Setup("mdn", 20, steps=2, seeds=(0,), balanced=True),
        Setup("none", 20, problem="curved", steps=2, seeds=(0,)),
        Setup("none", 20, problem="curved-linear", steps=2, seeds=(0,)),
    ]

    def alone(setup):
        images_on.cache_clear()
        return run_setup(setup, CPU, silent, 30)

    each = [alone(setup) for setup in cells]
    images_on.cache_clear()
    assert [run_setup(setup, CPU, silent, 30) for setup in cells] == each
    # Training, validation and two tests of each problem are drawn once; the second and the fourth cell find theirs.
    assert images_on.cache_info().misses == images_on.cache_info().hits == 2 * 4


def test_training_and_eval_differ_for_batch_statistics_and_not_for_the_plain_network(small):
    found = {
        method: run_setup(Setup(method, 20, steps=2, seeds=(0,)), CPU, silent, 50)[0]["gap"]
        for method in ("none", "batchnorm", "mdn")
    }
    assert found["none"] < 1e-5
    assert found["batchnorm"] > 0.1
    assert found["mdn"] > 0.1


def test_no_image_trains_and_tests_and_none_trains_and_validates(monkeypatch):
    """Equal seeds give equal images, so no seed may be drawn from twice: by any seed of a grid, or by any stage."""
    drawn = {"train": [], "held out": []}

    def record(device, per_group, seed, *rest):
        drawn["train" if per_group == 1000 and len(drawn["train"]) == len(calls) else "held out"].append(seed)
        return images_on(device, 10, seed, *rest)

    monkeypatch.setattr(training, "images_on", record)
    stages = [1000 + 50 * seed + stage for seed in range(5) for stage in range(5)]
    calls = []
    for seed in (*range(10), *stages):
        make_problem("one", seed, CPU, test_per_group=1000)
        calls.append(seed)
    everything = drawn["train"] + drawn["held out"]
    assert len(drawn["train"]) == len(calls)
    assert len(drawn["held out"]) == 3 * len(calls)
    assert len(set(everything)) == len(everything)


def test_the_best_state_is_chosen_by_the_validation_images(small):
    """With the validation labels turned round, the loss that counts grows as training goes on."""
    setup = Setup("none", 20, lr=1e-3, steps=40, seeds=(0,))
    problem = make_problem("one", 0, CPU, test_per_group=10)
    turned = replace(problem, validation=replace(problem.validation, target=1 - problem.validation.target))
    steps = []
    for each in (problem, turned):
        trainer = make_trainer(setup, 0, each, 40)
        for _ in range(40):
            trainer.step()
            if trainer.time_to_validate():
                trainer.validate()
        steps.append((int(trainer.best_step), float(trainer.best_loss)))
    assert steps[0][0] > 20
    assert steps[1][0] < steps[0][0]
    assert steps[1][1] > steps[0][1] + 0.1


def test_the_best_state_is_measured_as_such_and_the_last_as_the_last(small, monkeypatch):
    """With the validation labels turned round an early state is the best: that of a training which ends there."""

    def turned(*args, **options):
        problem = make_problem(*args, **options)
        return replace(problem, validation=replace(problem.validation, target=1 - problem.validation.target))

    monkeypatch.setattr(training, "make_problem", turned)
    setup = Setup("none", 40, lr=1e-3, steps=40, seeds=(0,))
    (found,) = run_setup(setup, CPU, silent, 50)
    assert found["best_step"] < 40
    assert found["best"] != found["last"]
    (short,) = run_setup(replace(setup, steps=found["best_step"]), CPU, silent, 50)
    assert short["last"] == short["best"] == found["best"]


@pytest.mark.parametrize("method", ["none", "mdn", "rmdn", "pmdn-alternating", "pmdn"])
def test_the_best_network_is_judged_as_trained_and_refitted_where_its_method_keeps_coefficients(small, method):
    (found,) = run_setup(Setup(method, 40, lr=1e-3, steps=5, seeds=(0,)), CPU, silent, 50)
    assert (found["best"] != found["as_trained"]) == (method != "none")


def test_weights_make_group_and_confound_independent():
    plain, balanced = (make_problem("one", 0, CPU, test_per_group=10, balanced=each) for each in (False, True))
    assert plain.train.weight is None
    for part in (balanced.train, balanced.validation):
        weight, group, confound = part.weight.numpy(), part.target.numpy(), part.metadata[:, 0].numpy()
        means = [np.average(confound[group == g], weights=weight[group == g]) for g in (0, 1)]
        assert means[1] - means[0] == pytest.approx(0, abs=0.01)
        assert confound[group == 1].mean() - confound[group == 0].mean() > 1


def test_what_is_left_of_the_confound_is_the_mean_of_both_groups(monkeypatch):
    """Features that hold the confound in group 1 alone: half of that group's dcor², recomputed by double centring."""
    tied = synthetic_images(60, seed=1)
    noise = torch.randn(120, 3, generator=torch.Generator().manual_seed(0))
    features = torch.where(tied.group[:, None] == 1, tied.confound, noise)
    monkeypatch.setattr(measures, "outputs", lambda made, design, data: (features[:, 0], features))
    found = measure(None, None, {"tied": tied, "independent": tied})

    def dcor2(x, y):
        def centred(values):
            d = torch.cdist(values.double(), values.double())
            n = len(d)
            u = d - d.sum(0) / (n - 2) - d.sum(1, keepdim=True) / (n - 2) + d.sum() / ((n - 1) * (n - 2))
            return u.fill_diagonal_(0)

        a, b = centred(x), centred(y)
        return float((a * b).sum() / ((a * a).sum() * (b * b).sum()).sqrt())

    by_hand = [dcor2(features[tied.group == g], tied.confound[tied.group == g]) for g in (0, 1)]
    assert by_hand[1] > by_hand[0] + 0.2
    assert found["dcor2"] == pytest.approx(sum(by_hand) / 2, abs=1e-5)
    within = [np.corrcoef(features[tied.group == g, 0], tied.confound[tied.group == g, 0])[0, 1] for g in (0, 1)]
    assert found["correlation"] == pytest.approx(np.mean(within), abs=1e-5)


def test_transfer_is_the_mean_distance_from_the_ceilings_before_on_and_after_the_diagonal():
    accuracy = [[0.7, 0.9, 0.5], [0.8, 0.6, 0.5], [0.8, 0.7, 0.5]]
    found = transfer(accuracy, [0.75, 0.65, 0.5])
    assert found["deviation"] == pytest.approx((0.05 + 0.05 + 0.0) / 3)
    assert found["backward"] == pytest.approx((0.05 + 0.05 + 0.05) / 3)
    assert found["forward"] == pytest.approx((0.25 + 0.0 + 0.0) / 3)


def test_data_that_drift_are_measured_on_every_stage_after_each(small):
    cell = next(cell for cell in full_grid() if cell.stages)
    seed = run_setup(replace(cell, steps=1, seeds=(0,), batch=20), CPU, silent, 20)[0]
    assert np.shape(seed["as trained"]["accuracy"]) == (5, 5)
    assert seed["ceilings"] == [0.75, 0.6875, 0.625, 0.5625, 0.5]


def made_up(accuracies):
    def cell(method, values):
        seeds = [
            {"seed": k, "gap": 0.1, "best": measured, "as_trained": measured}
            for k, measured in enumerate({"accuracy": v, "accuracy_independent": v, "dcor2": 0.01} for v in values)
        ]
        return {"cell": Setup(method, 20).to_dict(), "seeds": seeds, "provenance": 0}

    return json.loads(
        json.dumps(
            {"cells": [cell(m, v) for m, v in accuracies.items()], "provenance": [], "failures": {}, "missing": []}
        )
    )


def test_tables_say_how_much_nearer_the_ceiling_we_are_seed_by_seed():
    results = Results(made_up({"none": [0.94, 0.95], "pmdn": [0.83, 0.84]}))
    ours, theirs = results.find("pmdn", batch=20), results.find("none", batch=20)
    assert of(ours, "accuracy").mean == pytest.approx(0.835)
    by_hand = [abs(a - CEILING) - abs(b - CEILING) for a, b in ((0.94, 0.83), (0.95, 0.84))]
    assert closer(ours, theirs).mean == pytest.approx(np.mean(by_hand))
    assert "| plain CNN | 94.5 ± 6.4 / 94.5 / 0.010 |" in main_table(results).markdown()
    assert "accuracy of 83.5 to 83.5 %, where plain CNN has 94.5 to 94.5 %" in sentence(results)


def test_the_command_makes_the_report_again_from_the_results(tmp_path):
    (tmp_path / "results.json").write_text(json.dumps(made_up({"none": [0.94, 0.95], "pmdn": [0.83, 0.84]})))
    done = CliRunner().invoke(app, ["reproduce", "synthetic", "--report-only", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "the ceiling without the confound is 83.3 %" in " ".join(done.output.split())
    assert "Nearer the ceiling" in (tmp_path / "report.html").read_text()
    assert "## Nearer the ceiling" in (tmp_path / "tables.md").read_text()


def test_figure_and_tables_in_the_docs_are_those_of_the_committed_results(tmp_path):
    folder = ROOT / "docs" / "results" / "synthetic"
    write_page(SyntheticExperiment.page(json.loads((folder / "results.json").read_text()), folder), tmp_path)
    assert (tmp_path / "tables.md").read_text() == (folder / "tables.md").read_text()
    assert without_marks((ROOT / "docs" / "results" / "synthetic.md").read_text()) == without_marks(
        filled_page("synthetic")
    )


def test_committed_cells_are_cells_of_the_grid_and_what_is_missing_is_named():
    content = json.loads((ROOT / "docs" / "results" / "synthetic" / "results.json").read_text())
    grid = {cell.key: json.loads(json.dumps(cell.to_dict())) for cell in full_grid()}
    cells = [each["cell"] for each in content["cells"]]
    found = [Setup.from_dict(cell).key for cell in cells]
    assert dict(zip(found, cells, strict=True)) == {key: grid[key] for key in found}
    assert len(set(found)) == len(found)
    assert set(content["missing"]) == set(grid) - set(found)
    assert {each["provenance"] for each in content["cells"]} == set(range(len(content["provenance"])))
    assert not content["failures"]


@pytest.mark.parametrize(("page", "name"), ELSEWHERE.items())
def test_tables_of_other_pages_are_those_of_the_committed_results(page, name):
    assert (ROOT / page).read_text() == filled_page(name, ROOT / page)


def test_the_short_table_tells_as_trained_refitted_and_weighted_apart():
    content = made_up({"none": [0.94, 0.95], "pmdn": [0.83, 0.84]})
    weighted = json.loads(json.dumps(content["cells"][1]))
    weighted["cell"]["balanced"] = True
    for seed in content["cells"][1]["seeds"]:
        seed["as_trained"] = {**seed["best"], "accuracy": 0.9}
    content["cells"].append(weighted)
    table = short_table(Results(content))
    assert table.head[1:] == ["batch 20, as trained", "batch 20, refitted", "batch 20, with weights"]
    assert table.rows[0][1:] == ["94.5 ± 6.4 / 94.5", "–", "–"]
    assert table.rows[1][1:] == ["90.0 / 83.5", "83.5 ± 6.4 / 83.5", "83.5 ± 6.4 / 83.5"]
    assert [row[:3] for row in footing_table(Results(content)).rows] == [
        ["plain CNN", "–", "–"], ["PMDN, one pass", "–", "as trained"], ["PMDN, one pass", "–", "refitted"],
        ["PMDN, one pass", "overlap", "–"],
    ]  # fmt: skip


def test_the_quick_grid_is_small_and_its_tables_are_at_its_own_learning_rate():
    cells = quick_grid()
    assert len(cells) == 12
    assert all(len(cell.seeds) == 1 for cell in cells)
    content = made_up({"pmdn": [0.83]})
    content["cells"][0]["cell"] = json.loads(json.dumps(cells[-1].to_dict()))
    assert "83.0 / 83.0 / 0.010" in main_table(Results(content)).markdown()


@pytest.mark.parametrize("experiment", ["synthetic", "mri"])
def test_a_device_that_is_not_there_is_refused(experiment, tmp_path):
    asked = CliRunner().invoke(app, ["reproduce", experiment, "--device", "tpu", "--out", str(tmp_path)])
    assert "--device must be auto, cpu or cuda; got 'tpu'" in str(asked.exception)
    if not torch.cuda.is_available():
        asked = CliRunner().invoke(app, ["reproduce", experiment, "--device", "cuda", "--out", str(tmp_path)])
        assert "got 'cuda' where torch finds no GPU. Use --device cpu" in str(asked.exception)


@pytest.mark.parametrize("experiment", ["synthetic", "mri"])
def test_what_the_figure_needs_is_asked_for_before_anything_is_trained(experiment, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    asked = CliRunner().invoke(app, ["reproduce", experiment, "--quick", "--out", str(tmp_path)])
    assert isinstance(asked.exception, DeconfoundError)
    assert "matplotlib must be installed" in str(asked.exception)
    assert "deconfound[train]" in str(asked.exception)
    assert not list(tmp_path.iterdir())


def test_the_authors_formulation_is_theirs_recomputed_by_hand(small):
    """Ones and raw metadata; the pass for β takes the label's part out too and feeds the rest on."""
    problem = make_problem("one", 0, CPU, test_per_group=10)
    trainer = make_trainer(Setup("pmdn-authors", 20, lr=1e-5, seeds=(0,)), 0, problem, 5)
    made, batch = trainer.method, problem.train.batch(torch.arange(20))
    torch.manual_seed(0)
    for beta in made.betas:
        beta.data.normal_(0, 0.01)
    raw = made._raw(batch.metadata)
    shown = synthetic_images(100, 0).table
    assert set(raw[:, 0].tolist()) == {1.0}
    np.testing.assert_allclose(raw[:, 1], np.asarray(shown["confound"])[:20], rtol=1e-5)
    assert set(raw[:, 2].tolist()) <= {0.0, 1.0}

    def by_hand(columns, penalise):
        network, rest, penalties = made.network, batch.x, []
        for name, norm, beta in zip(("conv1", "conv2", "fc1"), made.norms, made.betas, strict=True):
            features = norm(getattr(network, name)(rest.flatten(1) if name == "fc1" else rest))
            rest = features - torch.tensordot(raw[:, :columns], beta[:columns], 1)
            penalties.append(rest.square().flatten(1).sum(1).mean())
            rest = torch.relu(rest)
        return sum(penalties) if penalise else network.fc2(rest)[:, 0]

    torch.testing.assert_close(made(batch.x, batch.metadata), by_hand(2, penalise=False))
    expected = torch.autograd.grad(by_hand(3, penalise=True), list(made.betas))
    steps = []
    made._optimizer.step = lambda: steps.append([beta.grad.clone() for beta in made.betas])
    made.before_step(batch)
    for gradient, other in zip(steps[0], expected, strict=True):
        torch.testing.assert_close(gradient, other)
    assert {id(p) for p in made.network_parameters()}.isdisjoint({id(beta) for beta in made.betas})
    assert run_setup(Setup("pmdn-authors", 20, lr=1e-5, steps=3, seeds=(0,)), CPU, silent, 50)[0]["best"]


@pytest.mark.parametrize("network", ["gru", "transformer"])
def test_other_networks_are_trained_like_the_cnn_with_a_layer_on_every_block(network, tmp_path, small):
    setup = Setup("pmdn", 20, steps=2, seeds=(0,), network=network)
    assert Setup.from_dict(json.loads(json.dumps(setup.to_dict()))) == setup
    assert "network" not in Setup("pmdn", 20).to_dict()
    made = make_trainer(setup, 0, make_problem("one", 0, CPU, test_per_group=20), 2).method
    assert {path.replace("/", ".") for path in made.model.layers} == set(NETWORKS[network][1])
    run = run_experiment(SyntheticExperiment(setups=[setup], test_per_group=50), tmp_path)
    (row,) = network_table(Results(run.results)).rows
    assert row[:4] == [network, "20", "PMDN, one pass", "–"]
    assert "Other networks" in (tmp_path / "report.html").read_text()


def test_a_recurrent_network_sees_every_row_and_a_transformer_every_patch():
    image = torch.zeros(1, 1, 32, 32, requires_grad=True)
    for network, _ in NETWORKS.values():
        (gradient,) = torch.autograd.grad(network()(image + 0.1).sum(), image)
        assert (gradient.view(4, 8, 4, 8).abs().amax((1, 3)) > 0).all()
        assert network()(torch.zeros(3, 1, 32, 32)).shape == (3,)
