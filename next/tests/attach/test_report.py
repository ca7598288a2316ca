"""`report` against partial R² by numpy least squares."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import deconfound as dc
from deconfound.errors import OptionError, ShapeError, StateError
from tests.attach.cohort import make_cohort, make_mlp, partial_r2, unchanged


def make_reported(cohort, **weights):
    """Return a model, and the features before and after its layers in evaluation.

    Hooks of a module run in the order of their registration, so that a hook registered before
    `normalize` sees what the layer receives.
    """
    network = make_mlp()
    before, after = {}, {}

    def watch(kept):
        for name in ("0", "2"):
            network[int(name)].register_forward_hook(
                lambda module, inputs, output, name=name: kept.update({name: output.detach()})
            )

    watch(before)
    model = dc.normalize(network, cohort.design, ["0", "2"], cohort.inputs[:2])
    watch(after)
    # Coefficients from other people leave something behind, so that "after" is not just zero.
    other = make_cohort(seed=8)
    model.refit([(other.inputs, other.metadata)], prior=30)
    model.eval()(cohort.inputs, metadata=cohort.metadata)
    return model, before, after


@pytest.mark.parametrize("is_weighted", [False, True])
def test_each_line_is_partial_r2_by_least_squares(cohort, is_weighted):
    """Mean by variance and largest, before and after, each layer and confound, also weighted.

    Kills R² without the labels, a mean over features, swapped columns, and ignored weights.
    """
    model, before, after = make_reported(cohort)
    weight = np.random.default_rng(0).uniform(0, 2, 120) if is_weighted else None
    batch = (cohort.inputs, cohort.metadata)
    report = model.report([batch if weight is None else (*batch, torch.from_numpy(weight))])
    labels = cohort.target[:, None].numpy()
    assert [(line.layer, line.confound) for line in report.lines] == [
        (layer, confound) for layer in ("0", "2") for confound in ("age", "sex")
    ]
    for line in report.lines:
        confound = cohort.confound(line.confound)
        expected = partial_r2(before[line.layer], confound, labels, weight)
        assert (line.before, line.largest_before) == pytest.approx(expected, abs=1e-5)
        expected = partial_r2(after[line.layer], confound, labels, weight)
        assert (line.after, line.largest_after) == pytest.approx(expected, abs=1e-5)
    age = report.lines[0]
    assert age.before > 0.3 > age.after  # the positive control
    assert report.rows == pytest.approx(120 if weight is None else weight.sum())


def test_several_batches_equal_one(cohort):
    """Kills a mean over batches, and sums that start again with each of them."""
    model, *_ = make_reported(cohort)
    whole, parts = model.report(cohort.batches(120)), model.report(lambda: iter(cohort.batches(50)))
    pd.testing.assert_frame_equal(whole.to_frame(), parts.to_frame(), rtol=1e-4, atol=1e-6)
    assert parts.rows == pytest.approx(120)
    assert whole.rows == pytest.approx(120)


def test_a_refit_to_the_same_rows_leaves_nothing(cohort):
    """Kills a report of coefficients other than the model's."""
    model, *_ = make_reported(cohort)
    model.refit(cohort.batches(120), prior=0)
    for line in model.report(cohort.batches(50)).lines:
        assert line.largest_after < 1e-6
        assert line.largest_before >= line.before


def test_of_images_a_feature_is_the_mean_of_a_channel(cohort):
    """Kills a report by pixel, which noise would fill."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv1d(1, 4, 3))
    inputs = cohort.inputs[:, None]
    with torch.no_grad():
        channel_means = network(inputs).mean(2)
    model = dc.normalize(network, cohort.design, "0", inputs[:2])
    line = model.report([(inputs, cohort.metadata)]).lines[0]
    labels = cohort.target[:, None].numpy()
    expected = partial_r2(channel_means, cohort.confound("age"), labels)
    assert (line.before, line.largest_before) == pytest.approx(expected, abs=1e-5)


def test_chance_is_the_mean_for_features_that_depend_on_nothing():
    """2,000 independent features of 60 people, a number and a category of four levels.

    The sd of a feature's R² is at most .034, that of the mean .0008: the band of .004 has a false
    alarm once in 10⁶. Kills directions / rows without the rank of labels and intercept, and chance
    of a category counted as one direction.
    """
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "age": rng.normal(70, 8, 60),
            "site": rng.permutation(np.repeat([*"ABCD"], 15)),
            "dx": rng.permutation(np.repeat([*"XYZ"], 20)),
        }
    )
    design = dc.Design(["age", "site"], keep=["dx"]).fit(table)
    features = torch.from_numpy(rng.normal(size=(60, 2000)).astype(np.float32))
    model = dc.normalize(nn.Sequential(nn.Identity()), design, "0", features[:2])
    age, site = model.report([(features, design.encode(table))]).lines
    for line, directions in ((age, 1), (site, 3)):
        assert line.chance == pytest.approx(directions / 57)
        assert line.before == pytest.approx(line.chance, abs=0.004)


def test_constant_features_and_absent_confounds_explain_nothing(cohort):
    """A dead unit, and rows of one sex. Kills 0 / 0, and noise of rounding reported as R²."""
    network = make_mlp()
    with torch.no_grad():
        network[0].weight[3] = 0
        network[0].bias[3] = 1000
    model = dc.normalize(network, cohort.design, "0", cohort.inputs[:2])
    men = torch.tensor(cohort.table["sex"] == "M")
    report = model.report([(cohort.inputs[men], cohort.metadata[men])])
    age, sex = report.lines
    assert 0.1 < age.before <= age.largest_before < 1
    assert (sex.before, sex.largest_before, sex.chance) == pytest.approx((0, 0, 0), abs=1e-9)
    assert report.to_frame().notna().all(axis=None)


def test_features_with_a_large_mean_have_the_r2_of_centred_ones(cohort):
    """Kills a threshold on sums of squares that are not centred."""
    network = nn.Sequential(nn.Identity())
    shares = []
    for mean in (0.0, 5e4):
        features = cohort.inputs.double() + mean
        model = dc.normalize(network, cohort.design, "0", features[:2])
        shares.append(model.report([(features, cohort.metadata)]).lines[0].before)
        model.remove()
    assert shares[1] == pytest.approx(shares[0], rel=1e-4)
    assert shares[0] > 0.1


@pytest.mark.parametrize("measure", ["report", "refit"])
def test_features_that_are_not_finite_are_refused_by_name(cohort, measure):
    """Kills a report of zeros, and a refit that changes nothing without a word."""
    model, *_ = make_reported(cohort)
    inputs = cohort.inputs.clone()
    inputs[5] = float("nan")
    with pytest.raises(ShapeError, match="at '0' must be finite"):
        getattr(model, measure)([(inputs, cohort.metadata)])


def test_too_few_rows_are_refused(cohort):
    """With as many rows as columns any confound explains everything."""
    model, *_ = make_reported(cohort)
    with pytest.raises(OptionError, match=r"more rows than columns.* got 4 rows"):
        model.report([(cohort.inputs[:4], cohort.metadata[:4])])
    weight = torch.zeros(120)
    with pytest.raises(OptionError, match="got 0 rows"):
        model.report([(cohort.inputs, cohort.metadata, weight)])


def test_a_module_that_a_batch_does_not_reach_is_named(cohort):
    """A branch that is not taken in evaluation. Kills a KeyError, and a refit without effect."""

    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.main, self.side = nn.Linear(6, 4), nn.Linear(6, 4)

        def forward(self, x):
            return self.main(x) + (self.side(x) if len(x) == 2 else 0)

    model = dc.normalize(Branch(), cohort.design, ["main", "side"], cohort.inputs[:2])
    for batches in (cohort.batches(120), cohort.batches(60)):
        with pytest.raises(StateError, match="'side' was not called"):
            model.refit(batches)
        with pytest.raises(StateError, match="'side' was not called"):
            model.report(batches)


def test_a_report_changes_nothing(cohort):
    """Kills a pass in training mode: β, running statistics, modes and random state stay."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    model = dc.normalize(network, cohort.design, ["0", "3"], cohort.inputs[:2])
    network[2].eval()
    with unchanged(model):
        model.report(cohort.batches(50))


def test_a_report_prints_and_shows_itself_in_notebooks(cohort):
    """Kills numbers without names, and markup from names of columns."""
    table = cohort.table.rename(columns={"age": "<b>age"})
    design = dc.Design(["<b>age", "sex"], keep=["dx"]).fit(table)
    model = dc.normalize(make_mlp(), design, ["0", "2"], cohort.inputs[:2])
    report = model.report([(cohort.inputs, design.encode(table))])
    title, header, *lines = str(report).splitlines()
    assert "Partial R²" in title
    assert "120 rows" in title
    assert header.split() == list(report.to_frame().columns)
    assert len(lines) == len(report.to_frame()) == 4
    assert lines[0].split()[:3] == ["0", "<b>age", f"{report.lines[0].before:.3f}"]
    page = report._repr_html_()
    assert "<b>" not in page
    assert f"{report.lines[0].before:.3f}" in page
