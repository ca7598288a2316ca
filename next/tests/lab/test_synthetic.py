"""The synthetic experiment in small: its images, arms, measures, cells and page."""

import numpy as np
import pytest
import torch
from scipy import integrate
from scipy.stats import norm, uniform
from torch import nn

from deconfound.attach import NormalizedModel, collect
from deconfound.errors import OptionError
from deconfound_lab.harness import Results
from deconfound_lab.report import make_blocks
from deconfound_lab.synthetic import (
    ARMS,
    CEILING,
    CEILING_WITH_CONFOUND,
    SyntheticImages,
    bump,
    fit_cell,
    grid,
    make_cell,
    make_cell_method,
    make_page,
    make_problem,
    measure,
    mode_gap,
    predict,
    synthetic_images,
    train_cell,
)

SMALL = {"per_group": 40, "test_per_group": 30}


def quadrant(images, row, column):
    return images[:, 0, 16 * row : 16 * row + 16, 16 * column : 16 * column + 16]


def amplitude(images, row, column):
    """The factor of the bump in a quadrant, because the bump sums to 1."""
    return quadrant(images, row, column).sum((1, 2))


def small_problem(arm="plain", batch=20, **settings):
    cell = make_cell(arm, batch, **{"steps": 4, "lr": 1e-3, **settings})
    return cell, make_problem(cell, **SMALL)


# Images


def test_the_bump_is_the_root_of_an_outer_product_of_normal_probabilities():
    edges = np.linspace(-5 - 11 / 32, 5 + 11 / 32, 17)
    probability = np.diff(norm.cdf(edges))
    expected = np.sqrt(np.outer(probability, probability))
    np.testing.assert_allclose(bump().numpy(), expected / expected.sum(), atol=1e-8)


def test_images_hold_one_main_effect_twice_the_confound_once_and_noise():
    data = synthetic_images(500, seed=2)
    confound = torch.tensor(data.table["confound"].to_numpy()).float()
    main = amplitude(data.images, 0, 0)
    # The sum over 256 pixels has noise of sd .16.
    assert (main - amplitude(data.images, 1, 1)).std() == pytest.approx(0.226, rel=0.1)
    assert (amplitude(data.images, 1, 0) - confound).std() == pytest.approx(0.16, rel=0.1)
    assert quadrant(data.images, 0, 1).std() == pytest.approx(0.01, rel=0.02)
    for group, (low, high) in enumerate(((1, 4), (3, 6))):
        rows = data.group == group
        own = confound[rows]
        assert low <= own.min() < low + 0.05
        assert high - 0.05 < own.max() <= high
        # Two draws: the confound is independent of the main effect within a group.
        assert abs(np.corrcoef(own, main[rows])[0, 1]) < 0.12


def test_the_ceilings_are_the_integrals_of_the_better_group():
    def densities(value):
        return [uniform(low, 3).pdf(value) for low in (1, 3)]

    best, _ = integrate.quad(lambda value: max(densities(value)) / 2, 1, 6, points=[3, 4])
    assert best == pytest.approx(CEILING)
    values = np.linspace(1, 6, 1001)[:-1] + 0.0025
    one, two = np.array([densities(value) for value in values]).T
    joint = np.maximum(np.outer(one, one), np.outer(two, two)).sum() * 0.005**2 / 2
    assert joint == pytest.approx(CEILING_WITH_CONFOUND, abs=1e-3)


def test_an_independent_confound_has_the_same_distribution_in_both_groups():
    for confound, least, largest in (("associated", 1.9, 2.1), ("independent", -0.1, 0.1)):
        data = synthetic_images(4000, seed=3, confound=confound)
        means = data.table.groupby("group")["confound"].mean()
        assert least < means[1] - means[0] < largest


def test_the_texts_reading_draws_the_variance_of_the_gaussians():
    data = synthetic_images(300, seed=1, kind="width")
    distance = torch.arange(16) - 7.5
    for group in (0, 1):
        rows = data.group.numpy() == group
        profile = quadrant(data.images, 1, 0)[rows].mean(0).sum(1)
        variance = float((profile * distance**2).sum() / profile.sum())
        assert variance == pytest.approx(data.table["confound"][rows].mean(), rel=0.15)
    assert amplitude(data.images, 1, 0).mean() == pytest.approx(1, abs=0.05)


def test_two_confounds_and_three_sites():
    two = synthetic_images(300, seed=1, kind="two")
    second = amplitude(two.images, 0, 1).numpy()
    assert two.confounds == ["confound", "second"]
    assert np.std(second - two.table["second"]) == pytest.approx(0.16, rel=0.1)
    sites = synthetic_images(5000, seed=1, kind="sites")
    shares = sites.table.groupby("group")["site"].value_counts(normalize=True)
    for group, expected in enumerate(((0.5, 0.4, 0.1), (0.1, 0.4, 0.5))):
        found = [shares[group, site] for site in "ABC"]
        np.testing.assert_allclose(found, expected, atol=0.03)
    assert sites.confound_numbers().shape == (10_000, 3)


@pytest.mark.parametrize(("name", "value"), [("kind", "three"), ("confound", "tied")])
def test_unknown_images_are_refused(name, value):
    with pytest.raises(OptionError, match=f"{name} must be one of .*; got '{value}'"):
        synthetic_images(10, **{name: value})


def test_no_image_is_drawn_for_two_purposes_or_two_seeds():
    drawn = []
    for seed in range(4):
        problem = make_problem(make_cell("plain", 20, seed), per_group=3, test_per_group=3)
        parts = [problem.fitting, problem.held_out]
        drawn += [part.batch(torch.arange(6)).x for part in parts]
        drawn += [data.images for data in problem.tests.values()]
    assert len({image.numpy().tobytes() for image in torch.cat(drawn)}) == 4 * 24


# Arms


def named_types(network):
    return {name: type(module) for name, module in network.named_children()}


@pytest.mark.parametrize(
    ("arm", "norms"),
    [
        ("plain", (nn.Identity, nn.Identity, nn.Identity)),
        ("batchnorm", (nn.BatchNorm2d, nn.BatchNorm2d, nn.BatchNorm1d)),
        ("mdn", (nn.Identity, nn.Identity, nn.Identity)),
        ("pmdn", (nn.Identity, nn.Identity, nn.Identity)),
        ("pmdn-published", (nn.LayerNorm, nn.LayerNorm, nn.LayerNorm)),
        ("pmdn-literal", (nn.LayerNorm, nn.LayerNorm, nn.LayerNorm)),
        ("pmdn-authors", (nn.LayerNorm, nn.LayerNorm, nn.LayerNorm)),
    ],
)
def test_each_arm_is_the_papers_cnn_with_its_norm_before_each_relu(arm, norms):
    cell, problem = small_problem(arm)
    method = make_cell_method(cell, problem)
    model = method.network
    network = model.network if isinstance(model, NormalizedModel) else model
    shapes = ((16, 28, 28), (32, 24, 24), (84,))
    expected = [nn.Conv2d, norms[0], nn.ReLU, nn.Conv2d, norms[1], nn.ReLU]
    expected += [nn.Linear, norms[2], nn.ReLU, nn.Linear]
    assert list(named_types(network).values()) == expected
    assert (network.conv1.weight.shape, network.conv2.weight.shape) == (
        (16, 1, 5, 5),
        (32, 16, 5, 5),
    )
    assert (network.fc1.in_features, network.fc1.out_features) == (18_432, 84)
    assert network.fc2.out_features == 1
    if isinstance(model, NormalizedModel):
        points = [(point.name, point.shape) for point in model.plan.points]
        assert points == list(zip(("norm1", "norm2", "norm3"), shapes, strict=True))
    if arm == "pmdn-authors":
        assert [tuple(beta.shape[1:]) for beta in method.betas] == list(shapes)
    if norms[0] is nn.LayerNorm:
        own = [network.norm1, network.norm2, network.norm3]
        assert [norm.normalized_shape for norm in own] == list(shapes)


def test_methods_start_from_equal_weights():
    states = []
    for arm in ("plain", "mdn", "pmdn", "adversarial"):
        cell, problem = small_problem(arm)
        method = make_cell_method(cell, problem)
        model = method.network
        states.append(model.network if isinstance(model, NormalizedModel) else model)
    for other in states[1:]:
        for one, two in zip(states[0].parameters(), other.parameters(), strict=True):
            assert torch.equal(one, two)


def test_the_published_arm_is_not_refitted_and_ours_is():
    for arm, is_refitted in (("pmdn-published", False), ("pmdn-literal", False), ("pmdn", True)):
        cell, problem = small_problem(arm)
        method, progress = fit_cell(cell, problem)
        has_moved = any(
            not torch.equal(value, progress.best_state[name])
            for name, value in method.state_dict().items()
            if name.endswith("beta")
        )
        assert has_moved == is_refitted
    assert dict(ARMS["pmdn-published"].options) == {"gradient": "frozen", "step": 0.02}


def test_no_label_of_a_test_image_reaches_a_prediction():
    cell, problem = small_problem("pmdn")
    method, _ = fit_cell(cell, problem)
    data = problem.tests["associated"]
    logits, _ = predict(method, problem.design, data)
    unlabelled = SyntheticImages(data.images, 1 - data.group, data.table.drop(columns="group"))
    assert torch.equal(predict(method, problem.design, unlabelled)[0], logits)


def test_what_is_measured_is_the_first_fully_connected_layer_after_normalisation():
    cell, problem = small_problem("pmdn-authors")
    method = make_cell_method(cell, problem)
    with torch.no_grad():
        method.betas[2].fill_(0.5)
    data = problem.tests["associated"]
    _, features = predict(method, problem.design, data)
    with torch.no_grad(), collect(method.network, "norm3") as collector:
        method(data.images, torch.from_numpy(problem.design.encode(data.table)))
    before = collector.features()
    effect = 0.5 * (1 + torch.tensor(data.table["confound"].to_numpy()).float())
    torch.testing.assert_close(features, before - effect[:, None], atol=1e-4, rtol=1e-4)


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


def test_measures_are_those_by_definition():
    cell, problem = small_problem("plain")
    method, _ = fit_cell(cell, problem)
    measures = measure(method, problem)
    data = problem.tests["associated"]
    logits, features = predict(method, problem.design, data)
    group = data.group.numpy()
    confound = data.table[["confound"]].to_numpy()
    within = [
        dcor2_by_definition(features.numpy()[group == g], confound[group == g]) for g in (0, 1)
    ]
    assert measures["dcor2"] == pytest.approx(np.mean(within), abs=1e-5)
    is_right = (logits.numpy()[:, 0] > 0) == (group == 1)
    assert measures["accuracy"] == pytest.approx(is_right.mean())
    free = problem.tests["independent"]
    logits, _ = predict(method, problem.design, free)
    is_right = (logits.numpy()[:, 0] > 0) == (free.group.numpy() == 1)
    assert measures["independent"] == pytest.approx(is_right.mean())


def test_weights_make_group_and_confound_independent_in_both_parts():
    _, problem = small_problem("plain", weights="overlap")
    held_out = problem.held_out.without_inputs()
    group, weight = held_out.target[:, 0], held_out.layer_weight
    assert torch.equal(weight, held_out.weight)
    assert weight.mean() == pytest.approx(1)
    for part, tolerance in ((problem.fitting, 1e-3), (problem.held_out, 0.4)):
        rows = torch.cat([batch.layer_weight for batch in part.batches()])
        columns = part.without_inputs()
        group, confound = columns.target[:, 0], columns.metadata[:, 0]
        means = [np.average(confound[group == g], weights=rows[group == g]) for g in (0, 1)]
        # Unweighted, the groups are 1.3 sd apart.
        assert abs(means[1] - means[0]) < tolerance


def test_the_warm_up_and_the_length_of_trainings_are_as_written():
    lengths = [make_cell("plain", batch)["steps"] for batch in (1, 2, 20, 200, 2000)]
    assert lengths == [20_000, 10_000, 1500, 1500, 1500]


# Training


def test_the_gap_between_modes_is_that_of_batch_statistics():
    """MDN's coefficients in training are those of two images; PMDN has one β for both modes."""
    gaps = {}
    for arm in ("plain", "mdn", "pmdn"):
        cell, problem = small_problem(arm, batch=2, steps=60)
        method, progress = fit_cell(cell, problem)
        method.load_state_dict(progress.best_state)
        before = {name: value.clone() for name, value in method.state_dict().items()}
        gaps[arm] = mode_gap(method, problem.fitting, 2)
        for name, value in method.state_dict().items():
            assert torch.equal(value, before[name]), name
    assert gaps["plain"] < 1e-5
    assert gaps["mdn"] > 0.5
    assert gaps["pmdn"] < gaps["mdn"] / 5


def test_one_image_at_a_time_sorted_by_site():
    """Online learning: outputs are finite, and the confound's share of the features falls."""
    cell, problem = small_problem("pmdn", batch=1, steps=80, kind="sites", order="sorted", lr=1e-4)
    columns = problem.fitting.without_inputs()
    assert len(columns.metadata[:, :2].unique_consecutive(dim=0)) == 3
    # Within a site the groups come at random.
    assert len(columns.target.unique_consecutive(dim=0)) > 10
    method, progress = fit_cell(cell, problem)
    assert progress.step == 80
    logits, features = predict(method, problem.design, problem.tests["associated"])
    assert logits.isfinite().all()
    assert features.isfinite().all()
    held_out = [(batch.x, batch.metadata) for batch in problem.held_out.batches()]
    first = method.network.report(held_out).lines[0]
    # Layers behind the first one receive what it has removed already, or too much of it.
    assert first.after < 0.5 * first.before


@pytest.mark.parametrize("network", ["gru", "transformer"])
def test_other_networks_train_under_pmdn(network):
    cell, problem = small_problem("pmdn", network=network, steps=12)
    method, progress = fit_cell(cell, problem)
    assert len(method.network.layers) == {"gru": 2, "transformer": 3}[network]
    assert np.isfinite(progress.best["validation_loss"])
    assert np.isfinite(list(measure(method, problem).values())).all()


# The grid and its page


def test_the_grid_has_each_arm_at_each_batch_size_with_three_seeds():
    cells = grid()
    assert len({str(sorted(cell.items(), key=str)) for cell in cells}) == len(cells)
    arms = ("plain", "batchnorm", "mdn", "pmdn-published", "pmdn", "adversarial", "rmdn")
    for arm in (*arms, "pmdn-authors", "pmdn-literal"):
        for batch in (2, 20, 200, 1000, 2000):
            seeds = {seed for seed in range(3) if make_cell(arm, batch, seed) in cells}
            # The adversary's correlation needs more than two images.
            can_learn = arm != "adversarial" or batch > 2
            assert seeds == ({0, 1, 2} if can_learn else set()), (arm, batch)
    for arm in ("plain", "mdn", "rmdn", "pmdn", "pmdn-published"):
        assert all(make_cell(arm, 1, seed) in cells for seed in range(3))
    for arm in arms:
        assert all(make_cell(arm, batch, weights="overlap") in cells for batch in (20, 200))
    # The first cells are the most informative, and the slowest come last.
    assert {cell["batch"] for cell in cells[:18]} == {20, 200}
    assert all(cell["batch"] < 1000 for cell in cells[:-54])


def stored(arm, seed, accuracy, release="1.0.0", batch=20):
    measures = {"accuracy": accuracy, "independent": accuracy - 0.1, "dcor2": 0.25}
    states = ("as_trained", "refitted") if arm == "pmdn" else ("as_trained",)
    made = {"release": release, "commit": "abc", "dirty": False, "device": "CPU", "versions": {}}
    return {
        "config": make_cell(arm, batch, seed),
        "result": {"gap": 0.5, **dict.fromkeys(states, measures)},
        "seconds": 1.0,
        "provenance": made,
    }


def test_the_page_shows_means_gaps_and_the_release_that_made_them():
    cells = [stored("plain", seed, 0.94 + seed / 100) for seed in range(3)]
    cells += [stored("pmdn", 0, 0.83), stored("pmdn", 1, 0.5, "0.2.0")]
    cells += [stored("pmdn", seed, 0.84, "0.2.0", batch=200) for seed in range(3)]
    results = Results.join(cells)
    page = make_page(results)
    lines = make_blocks("synthetic", page, results)["accuracy by batch size"].splitlines()
    assert lines[2] == (
        "| plain CNN | as trained | – | – | 95.0 ± 2.5 / 85.0 / 0.250 | – | – | – |"
    )
    # A mean never mixes releases; the newest one wins.
    assert lines[4].split(" | ")[4:6] == [
        "83.0 / 73.0 / 0.250",
        "84.0 ± 0.0 / 74.0 / 0.250 (0.2.0)",
    ]
    assert len(lines) == 5
    assert "plain CNN, as trained: 95.0 to 95.0 % over batch sizes 20." in page.text["summary"]
    assert len(page.figures["Figure 2"].axes) == 2


def test_a_page_without_results_has_empty_tables():
    page = make_page(Results([], []))
    assert all(table.empty for table in page.tables.values())


@pytest.mark.slow
def test_figure_2_in_short_trainings():
    """One seed: the plain network uses the confound, MDN leaks at batch 2, PMDN does not."""
    short = {20: {"steps": 400, "lr": 5e-4}, 2: {"steps": 2000, "lr": 2e-4}}
    results = {
        (arm, batch): train_cell(make_cell(arm, batch, **short[batch]))
        for arm, batch in (("plain", 20), ("plain", 2), ("mdn", 2), ("pmdn", 2), ("pmdn", 20))
    }
    for batch in (2, 20):
        assert results["plain", batch]["as_trained"]["accuracy"] >= 0.92
        refitted = results["pmdn", batch]["refitted"]
        assert refitted["accuracy"] == pytest.approx(CEILING, abs=0.02)
        assert refitted["independent"] >= 0.825
    assert results["mdn", 2]["as_trained"]["accuracy"] >= 0.89
