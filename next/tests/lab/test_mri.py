"""The MRI experiment in small: arms, measures, leakage, cells and the page."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from deconfound.attach import NormalizedModel
from deconfound.errors import OptionError
from deconfound.methods import Batch
from deconfound.training import Focal, outputs
from deconfound_lab.cohort import simulate_cohort
from deconfound_lab.harness import Results, load_cells, run_experiment
from deconfound_lab.mri import (
    ARMS,
    BATCHES,
    TABLE_ARMS,
    BalancedFocal,
    MRINet,
    compute_cell,
    fit_cell,
    grid,
    make_cell,
    make_cell_method,
    make_page,
    make_people_cell,
    make_problem,
    make_schedule,
    measure,
    measure_accuracies,
    measure_associations,
    measure_within_groups,
    mri_experiment,
    pool_folds,
    split_people,
)
from deconfound_lab.report import make_blocks, to_markdown

SMALL = {
    "folds": 2,
    "size": 16,
    "people": 60,
    "filters": [4, 4, 4, 4],
    "epochs": 1,
    "steps": 2,
}
CPU = torch.device("cpu")
DOCS = Path(__file__).parents[2] / "docs" / "results"


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Scans are made once for all tests of this file."""
    before = os.environ.get("DECONFOUND_CACHE")
    os.environ["DECONFOUND_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    del os.environ["DECONFOUND_CACHE"]
    if before is not None:
        os.environ["DECONFOUND_CACHE"] = before


def small_problem(arm="plain", **settings):
    cell = make_cell(arm, 20, 0, **{**SMALL, **settings})
    return cell, make_problem(cell, CPU)


# Arms


def plain_network(method):
    model = method.network
    return model.network if isinstance(model, NormalizedModel) else model


@pytest.mark.parametrize(
    ("arm", "norm", "places"),
    [
        ("plain", nn.Identity, None),
        ("batchnorm", nn.BatchNorm1d, None),
        ("adversarial", nn.Identity, None),
        ("mdn", nn.Identity, ["norm1", "norm2", "fc3"]),
        ("pmdn-literal", nn.LayerNorm, ["norm1", "norm2", "fc3"]),
        ("pmdn", nn.Identity, [*(f"blocks.{place}" for place in range(4)), "fc1", "fc2", "fc3"]),
    ],
)
def test_each_arm_has_the_papers_modules_and_its_layers_in_the_papers_places(arm, norm, places):
    cell, problem = small_problem(arm)
    method = make_cell_method(cell, problem)
    network = plain_network(method)
    kinds = [type(module) for module in network.children()]
    assert kinds == [nn.Sequential, nn.Linear, nn.ReLU, norm, nn.Linear, nn.ReLU, norm, nn.Linear]
    assert len(network.blocks) == 4
    has_layers = isinstance(method.network, NormalizedModel)
    assert has_layers == (places is not None)
    if places is not None:
        points = method.network.plan.points
        assert [point.name for point in points] == places
        # One coefficient for each voxel of a block, as in the paper.
        assert all(point.shape == point.features for point in points)
    if arm == "pmdn-literal":
        assert method.beta_optimizer.param_groups[0]["lr"] == 0.045
        assert not ARMS[arm].is_refitted
    if arm == "adversarial":
        assert (set(method.modules_of_heads), method.weight, method.warmup) == (
            {"blocks"},
            0.2,
            100,
        )


def test_the_network_has_the_papers_sizes_and_filters_to_choose():
    network = MRINet()
    sizes = [(layer.in_features, layer.out_features) for layer in (network.fc1, network.fc2)]
    assert sizes == [(2048, 128), (128, 16)]
    assert (network.fc3.in_features, network.fc3.out_features) == (16, 2)
    assert [block.conv1.out_channels for block in network.blocks] == [16, 32, 64, 32]
    literal = MRINet(filters=(3, 6, 9, 6))
    assert [block.conv1.out_channels for block in literal.blocks] == [3, 6, 9, 6]
    assert literal.fc1.in_features == 6 * 4**3
    assert literal.blocks(torch.zeros(1, 1, 64, 64, 64)).shape == (1, 6, 4, 4, 4)
    with pytest.raises(OptionError, match="size must be a multiple of 16; got 20"):
        MRINet(20)
    with pytest.raises(OptionError, match="norm must be one of 'none', 'batch', 'layer'; got 'x'"):
        MRINet(norm="x")


def test_arms_of_a_fold_start_from_equal_weights():
    states = []
    for arm in ("plain", "mdn", "pmdn"):
        cell, problem = small_problem(arm)
        states.append(list(plain_network(make_cell_method(cell, problem)).parameters()))
    for other in states[1:]:
        assert all(torch.equal(one, two) for one, two in zip(states[0], other, strict=True))


def test_focal_loss_by_hand():
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(12, 2, generator=random)
    target = torch.randint(2, (12, 2), generator=random).float()
    batch = Batch(torch.empty(0), torch.empty(0), target)
    plain = binary_cross_entropy_with_logits(logits, target)
    torch.testing.assert_close(Focal(gamma=0)(logits, batch), plain)
    true = torch.where(target > 0, logits.sigmoid(), 1 - logits.sigmoid())
    losses = (1 - true) ** 2 * -true.log()
    torch.testing.assert_close(Focal(gamma=2)(logits, batch), losses.mean())
    # With shares, people with and without a label count half each.
    shares = torch.tensor([0.2, 0.5])
    balanced = losses * 0.5 / torch.where(target > 0, shares, 1 - shares)
    torch.testing.assert_close(BalancedFocal((0.2, 0.5))(logits, batch), balanced.mean())
    weight = torch.rand(12, 2, generator=random)
    weighted = BalancedFocal((0.2, 0.5))(logits, batch._replace(weight=weight))
    torch.testing.assert_close(weighted, (balanced * weight).mean())


def test_large_batches_have_enough_steps_and_a_higher_rate():
    small, large = (make_schedule(make_cell("pmdn", batch, 0), rows=860) for batch in (20, 240))
    assert (small.epochs, small.lr) == (30, 5e-4)
    assert large.epochs * -(-860 // 240) >= 300
    assert large.lr == pytest.approx(5e-4 * 12**0.5)


# Measures


@pytest.fixture(scope="module")
def people():
    return simulate_cohort(16, people=160).table


@pytest.fixture(scope="module")
def scores(people):
    noise = np.random.default_rng(0).standard_normal((len(people), 2))
    site = (people["site"] == "ADNI").to_numpy()[:, None]
    return noise + 0.05 * people[["age"]].to_numpy() + [[1.0, 0.2]] * site


def dcor2_by_definition(x, y):
    """The U-statistic by double centring."""

    def centred(values):
        distances = np.linalg.norm(values[:, None] - values[None], axis=-1)
        n = len(values)
        rows = distances.sum(0) / (n - 2)
        result = distances - rows - rows[:, None] + distances.sum() / ((n - 1) * (n - 2))
        np.fill_diagonal(result, 0)
        return result

    a, b = centred(x), centred(y)
    return (a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum())


def associations_by_hand(scores, people, names=("age", "sex", "site")):
    one_hot = pd.get_dummies(people["site"]).to_numpy(dtype=float)
    is_man = people["sex"] == "M"
    measures = {
        "age": lambda x: abs(stats.pearsonr(x, people["age"])[0]),
        "sex": lambda x: abs(stats.pointbiserialr(is_man, x)[0]),
        "site": lambda x: dcor2_by_definition(x[:, None], one_hot),
    }
    return {name: np.mean([measures[name](x) for x in scores.T]) for name in names}


def test_associations_are_those_of_scipy_and_of_the_definition(scores, people):
    assert measure_associations(scores, people) == pytest.approx(
        associations_by_hand(scores, people)
    )


def test_within_groups_is_the_mean_over_groups_in_which_a_confound_varies(scores, people):
    expected = {name: [] for name in ("age", "sex", "site")}
    for group in ("CTRL", "MCI", "HIV", "HAND"):
        rows = (people["group"] == group).to_numpy()
        # All people with HAND are at one site.
        names = ("age", "sex") if group == "HAND" else ("age", "sex", "site")
        for name in names:
            expected[name].append(associations_by_hand(scores[rows], people[rows], names)[name])
    measures = measure_within_groups(scores, people)
    assert {name: float(values[0]) for name, values in measures.items()} == pytest.approx(
        {name: np.mean(values) for name, values in expected.items()}
    )


def test_a_bootstrap_sample_is_people_repeated(scores, people):
    """The counts of the bootstrap against the same people written out; seeds give equal counts."""
    rows = np.flatnonzero(people["group"] == "CTRL")
    own, own_scores = people.iloc[rows].reset_index(drop=True), scores[rows]
    n = len(own)
    counts = np.random.default_rng(5).multinomial(n, np.full(n, 1 / n), size=3)
    measures = measure_within_groups(own_scores, own, draws=3, seed=5)
    for draw, times in enumerate(counts):
        repeated = np.repeat(np.arange(n), times)
        expected = associations_by_hand(own_scores[repeated], own.iloc[repeated])
        assert {name: measures[name][1 + draw] for name in measures} == pytest.approx(expected)


def test_folds_are_put_on_one_scale_and_the_interval_holds_the_measure(scores, people):
    halves = np.array_split(np.arange(len(people)), 2)
    folds = [(scores[rows], people.iloc[rows]) for rows in halves]
    estimate = pool_folds(folds)
    scaled = pool_folds([(100 * scores[halves[0]] - 7, people.iloc[halves[0]]), folds[1]])
    assert scaled.value == pytest.approx(estimate.value)
    assert estimate.low < estimate.value < estimate.high
    # Without its shift the interval of random scores would lie above the measure.
    noise = np.random.default_rng(2).standard_normal((len(people), 2))
    null = pool_folds([(noise, people)])
    samples = np.mean([*measure_within_groups(noise, people, 200).values()], axis=0)[1:]
    assert samples.mean() > null.value + 0.02
    assert abs((null.low + null.high) / 2 - null.value) < 0.02


def test_accuracy_needs_both_labels_right_and_counts_groups_equally(people):
    labels = people[["hiv", "mci"]].to_numpy()
    assert measure_accuracies(labels - 0.5, people) == pytest.approx(
        dict.fromkeys(("CTRL", "MCI", "HIV", "HAND"), 1.0)
    )
    only_hiv = np.stack([labels[:, 0] - 0.5, np.full(len(people), -1.0)], axis=1)
    expected = {"CTRL": 1.0, "MCI": 0.0, "HIV": 1.0, "HAND": 0.0}
    assert measure_accuracies(only_hiv, people) == pytest.approx(expected)


# What is fitted to whom


def test_the_three_parts_share_nobody_and_folds_test_everybody_once():
    tests = []
    for number in range(5):
        table, fold = split_people(make_people_cell(number))
        parts = [fold.train, fold.validation, fold.test]
        assert len(np.unique(np.concatenate(parts))) == sum(map(len, parts)) == 1262
        # Each part has people of all groups and sites.
        assert all(table.iloc[part].groupby(["site", "group"]).ngroups == 8 for part in parts)
        tests.append(fold.test)
    assert sorted(np.concatenate(tests)) == list(range(1262))


def test_the_mean_brain_and_the_design_know_training_people_alone():
    """Kills the mutant that averages all people."""
    cell, problem = small_problem()
    table, fold = split_people(cell)
    scans = torch.tensor(np.array(simulate_cohort(16, people=60).samples().x)).float()
    own = scans[torch.from_numpy(fold.train)]
    scale = (own - own.mean(0)).std()
    for part, rows in (
        (problem.fitting, fold.train),
        (problem.held_out, fold.validation),
        (problem.tests["associated"], fold.test),
    ):
        inputs = part.batch(torch.arange(len(rows))).x
        expected = (scans[torch.from_numpy(rows)] - own.mean(0)) / scale
        torch.testing.assert_close(inputs, expected, atol=1e-4, rtol=1e-4)
        metadata = part.without_inputs().metadata[:, 0]
        ages, training_ages = table["age"].iloc[rows], table["age"].iloc[fold.train]
        by_hand = (ages - training_ages.mean()) / training_ages.std(ddof=0)
        np.testing.assert_allclose(metadata, by_hand, atol=1e-4)


def test_no_label_of_a_test_person_reaches_a_prediction():
    cell, problem = small_problem("pmdn")
    method, _ = fit_cell(cell, problem, CPU)
    part, people = problem.tests["associated"], problem.test_people["associated"]
    hidden = problem.design.encode(people[["age", "sex", "site"]])
    known = problem.design.encode(people)
    # The control: with their labels, metadata are others.
    assert not np.allclose(hidden, known)
    np.testing.assert_allclose(part.without_inputs().metadata, hidden)
    logits = outputs(method, part)
    batch = part.batch(torch.arange(len(part)))
    with torch.no_grad():
        again = method(batch.x, torch.from_numpy(known))
    torch.testing.assert_close(logits, again, atol=1e-5, rtol=1e-4)


def test_the_oracle_learns_from_as_many_people_in_whom_labels_are_independent():
    _, plain = small_problem("plain")
    _, oracle = small_problem("oracle")
    assert len(oracle.fitting) == len(plain.fitting)
    assert len(oracle.held_out) == len(plain.held_out)
    labels, age = oracle.fitting.without_inputs().target, plain.fitting.without_inputs().target
    assert labels.mean(0)[0] > age.mean(0)[0] + 0.1  # half of them have HIV, not a fifth
    both = [problem.tests["independent"].batch(torch.arange(4)).x for problem in (plain, oracle)]
    learned = oracle.fitting.batch(torch.arange(len(oracle.fitting))).x
    assert not any(torch.equal(scan, other) for scan in both[1] for other in learned)
    assert plain.test_people["associated"].equals(oracle.test_people["associated"])


def test_balanced_arms_weigh_people_so_that_each_label_is_independent():
    """The control: without weights, and under the weights of the other label, it is not."""
    _, problem = small_problem("plain-balanced", people=400)
    batch = problem.fitting.without_inputs()
    age = batch.metadata[:, 0].double().numpy()

    def correlation(label, weight):
        columns = np.stack([batch.target[:, label], age])
        covariance = np.cov(columns, aweights=weight)
        return abs(covariance[0, 1]) / np.sqrt(covariance[0, 0] * covariance[1, 1])

    for label in (0, 1):
        own, other = batch.weight[:, label], batch.weight[:, 1 - label]
        assert correlation(label, own) < 0.01
        assert min(correlation(label, np.ones(len(age))), correlation(label, other)) > 0.1
    held_out = problem.held_out.without_inputs()
    np.testing.assert_allclose(held_out.weight.mean(0), 1, rtol=1e-5)


def test_epochs_of_the_adversarys_warm_up_are_not_chosen():
    cell, problem = small_problem("adversarial", people=40, epochs=55)
    cell = {**cell, "batch": 4}
    _, progress = fit_cell(cell, problem, CPU)
    assert progress.history[0]["step"] < 200 < progress.step
    late = [entry for entry in progress.history if entry["step"] >= 200]
    assert progress.best in late
    assert progress.best == min(late, key=lambda entry: entry["validation_loss"])


def test_measures_of_a_cell_are_those_of_its_outputs():
    cell, problem = small_problem("pmdn")
    method, _ = fit_cell(cell, problem, CPU)
    measures = measure(method, problem)
    logits, people = outputs(method, problem.tests["associated"]), problem.test_people["associated"]
    np.testing.assert_allclose(measures["scores"], logits, atol=1e-3)
    expected = associations_by_hand(logits.double().numpy(), people)
    assert measures["associations"] == pytest.approx(expected, abs=1e-4)
    independent = problem.test_people["independent"]
    accuracies = measure_accuracies(outputs(method, problem.tests["independent"]), independent)
    assert measures["independent"] == pytest.approx(np.mean(list(accuracies.values())))


# Cells and the page


def test_the_plan_has_six_arms_at_four_batch_sizes_in_five_folds():
    cells = grid()
    assert len({str(sorted(cell.items(), key=str)) for cell in cells}) == len(cells)
    for arm in TABLE_ARMS:
        for batch in BATCHES:
            assert all(make_cell(arm, batch, fold) in cells for fold in range(5))
    assert (len(TABLE_ARMS), BATCHES) == (6, (20, 80, 160, 240))
    assert all(make_people_cell(fold) in cells for fold in range(5))
    assert all(make_cell(arm, 160, 2) in cells for arm in ARMS)


def test_an_unknown_setting_is_refused():
    with pytest.raises(OptionError, match="There is no setting 'epoch'"):
        make_cell("pmdn", 20, 0, epoch=3)


@pytest.fixture(scope="module")
def small_cells():
    cells = [make_people_cell(fold, folds=2, people=60) for fold in range(2)]
    cells += [make_cell(arm, 20, fold, **SMALL) for arm in ("plain", "pmdn") for fold in range(2)]
    return [*cells, make_cell("mdn", 80, 0, **SMALL), make_cell("pmdn", 80, 0, **SMALL)]


@pytest.fixture(scope="module")
def results(small_cells, tmp_path_factory):
    return run_experiment(mri_experiment(small_cells), tmp_path_factory.mktemp("mri"))


def test_a_stopped_experiment_goes_on_with_equal_results(small_cells, results, tmp_path):
    experiment = mri_experiment(small_cells)
    assert run_experiment(experiment, tmp_path, minutes=0).cells == []
    first = mri_experiment(small_cells[:3])
    run_experiment(first, tmp_path)
    computed = []
    run_experiment(experiment, tmp_path, on_progress=lambda *facts: computed.append(facts))
    assert [done for done, _, _ in computed] == list(range(4, len(small_cells) + 1))
    for one, two in zip(load_cells(experiment, tmp_path).cells, results.cells, strict=True):
        assert one["config"] == two["config"]
        assert "error" not in one
        if "step" in one["result"]:
            assert one["result"]["validation_loss"] == pytest.approx(
                two["result"]["validation_loss"], rel=1e-4
            )


def test_the_page_is_made_from_the_json_alone(results, tmp_path):
    results.save(tmp_path / "mri.json")
    settings = {name: make_cell("plain", 20, 0, **SMALL)[name] for name in ("seed", *SMALL)}
    page = make_page(Results.load(tmp_path / "mri.json"), settings)
    again = make_page(results, settings)
    for title, table in page.tables.items():
        assert table.equals(again.tables[title])
    lines = to_markdown(page.tables["Table 2"]).splitlines()
    assert lines[2].count("–") == 4  # BN, the adversary, MDN and the published PMDN at batch 20
    plain, pmdn = (results.find(arm=arm, batch=20) for arm in ("plain", "pmdn"))
    ages = [
        np.mean([cell["result"][state]["associations"]["age"] for cell in cells])
        for cells, state in ((plain, "as_trained"), (pmdn, "refitted"))
    ]
    assert lines[2].split(" | ")[2::5] == [f"{age:.3f}" for age in ages]
    assert lines[6].split(" | ")[2::5] == ["2 of 2", "2 of 2"]
    # 60 people, in proportion to Table 1.
    people = page.tables["Table 1"]
    assert people["HAND"].tolist() == ["7 (145)", "0 (0)", "0 (0)"]


def test_tsne_has_features_of_mdn_and_pmdn_with_neighbour_agreement(results):
    settings = {name: make_cell("plain", 20, 0, **SMALL)[name] for name in ("seed", *SMALL)}
    figure = make_page(results, settings).figures["t-SNE"]
    titles = [panel.get_title() for panel in figure.axes]
    assert [title.split("\n")[0] for title in titles] == [
        "MDN by site",
        "MDN by sex",
        "PMDN by site",
        "PMDN by sex",
    ]
    assert all("neighbours agree" in title for title in titles)
    tested = len(results.find(arm="people", fold=0)[0]["result"]["age"])
    dots = [sum(len(dots.get_offsets()) for dots in panel.collections) for panel in figure.axes]
    assert dots == [tested] * 4


def stored(arm, fold, independent, release="1.0.0"):
    measures = {
        "associations": {"age": 0.4, "sex": 0.1, "site": 0.3},
        "groups": {"CTRL": 0.8, "MCI": 0.6, "HIV": 0.4, "HAND": 0.6},
        "independent": independent,
        "left": [0.05, 0.03, 0.07],
    }
    made = {"release": release, "commit": "abc", "dirty": False, "device": "CPU", "versions": {}}
    config = make_cell(arm, 20, fold)
    return {
        "config": config,
        "result": {"as_trained": measures},
        "seconds": 1.0,
        "provenance": made,
    }


def test_folds_have_a_corrected_interval_and_releases_are_not_mixed():
    values = [0.5, 0.55, 0.6, 0.5, 0.6]
    cells = [stored("plain", fold, value) for fold, value in enumerate(values)]
    cells += [stored("batchnorm", fold, 0.4, "0.2.0") for fold in range(3)]
    cells += [stored("adversarial", 0, 0.9, "0.2.0"), stored("adversarial", 1, 0.5)]
    table = make_page(Results.join(cells)).tables["one footing"].set_index("arm")
    column = "independent accuracy ↑, as trained"
    # Nadeau and Bengio: the variance of the mean is (1/5 + 1/4) s².
    half = stats.t.ppf(0.975, 4) * np.sqrt((1 / 5 + 1 / 4) * np.var(values, ddof=1))
    low, high = (100 * (np.mean(values) + side * half) for side in (-1, 1))
    assert table.loc["Baseline", column] == f"55.0 ({low:.1f} to {high:.1f})"
    assert table.loc["Baseline", "left within groups ↓, as trained"] == "0.050 (0.030 to 0.070)"
    assert table.loc["BN", "folds"] == "3 of 5, 0.2.0"
    assert table.loc["Adversarial", column] == "50.0"
    assert table.loc["Adversarial", "folds"] == "1 of 5"


def test_a_page_without_results_has_gaps():
    page = make_page(Results([], []))
    assert set(page.tables["Table 2"]["PMDN"]) == {"–"}
    assert page.figures["t-SNE"].axes[0].get_title() == "not computed yet"


def test_the_documentation_is_made_from_its_json():
    if not (DOCS / "mri.json").exists():
        pytest.skip("the documentation is not part of this copy")
    results = Results.load(DOCS / "mri.json")
    page = make_page(results)
    text = (DOCS / "mri.md").read_text(encoding="utf-8")
    for title, content in make_blocks("mri", page, results).items():
        assert f"<!-- begin {title} -->\n\n{content}\n\n<!-- end {title} -->" in text
    # Table 1 is the paper's, to the person.
    for row in page.tables["Table 1"].to_numpy()[:, 1:]:
        assert all(cell.split(" (")[0] == cell.split(" (")[1].rstrip(")") for cell in row)
    old = [cell for cell in results.cells if cell["release"] == "0.2.0"]
    assert all(cell["commit"].startswith("cc51e8245d") for cell in old)


def test_cells_of_people_hold_what_tables_need():
    cell = compute_cell(make_people_cell(1, folds=2, people=60))
    assert set(cell) == {"age", "sex", "site", "group", "hiv", "mci"}
    assert {len(column) for column in cell.values()} == {30}
