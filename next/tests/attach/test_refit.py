"""`refit` and `refitted` against least squares by numpy."""

import numpy as np
import pytest
import torch
from torch import nn

import deconfound as dc
from deconfound.errors import OptionError, ShapeError
from tests.attach.cohort import make_cohort, make_mlp, unchanged


def make_model(cohort, at=("0", "2"), **options):
    """Return an MLP with layers that have learned a little."""
    model = dc.normalize(make_mlp(), cohort.design, at, cohort.inputs[:2], **options)
    model(cohort.inputs[:40], metadata=cohort.metadata[:40])
    return model


def betas(model):
    """Return copies of β of all layers."""
    return [layer.beta.detach().clone() for layer in model.layers.values()]


def slopes_by_numpy(features, cohort, rows=slice(None)):
    """Regress features on age, sex, label and an intercept; return the slopes of age and sex."""
    labels = cohort.target[:, None].numpy()
    columns = [cohort.confound("age"), cohort.confound("sex"), labels, np.ones_like(labels)]
    regressors = np.concatenate(columns, axis=1)[rows]
    return np.linalg.lstsq(regressors, features[rows], rcond=None)[0][:2]


def clean(features, slopes, cohort):
    """Subtract the effect of age and sex, which the design centres on its own table."""
    rows = {"age": [0.0, 1.0], "sex": ["F", "M"]}
    zero, one = cohort.design.encode(rows, dtype=np.float64)[:, :2]
    encoded = cohort.metadata[:, :2].double().numpy()
    return features - encoded @ (slopes / (one - zero)[:, None])


def by_hand(network, cohort):
    """Return the slopes at both layers, and the output, with every layer fitted in turn."""
    weight = [part.detach().double().numpy() for part in network.parameters()]
    hidden = cohort.inputs.double().numpy() @ weight[0].T + weight[1]
    first = slopes_by_numpy(hidden, cohort)
    hidden = np.maximum(clean(hidden, first, cohort), 0)
    output = hidden @ weight[2].T + weight[3]
    second = slopes_by_numpy(output, cohort)
    return first, second, clean(output, second, cohort)


@pytest.mark.parametrize("layer", ["pmdn", "mdn", "rmdn", "pmdn-alternating"])
@pytest.mark.parametrize("size", [120, 50])
def test_without_prior_it_is_least_squares_layer_after_layer(layer, size):
    """On new people, with later layers fitted to features that earlier layers have cleaned.

    Kills layers fitted all at once, last batch only, missing labels, and one that is left out.
    """
    cohort = make_cohort(seed=3)
    model = make_model(cohort, layer=layer)
    model.refit(cohort.batches(size), prior=0)
    first, second, output = by_hand(model.network, cohort)
    for name, slopes in (("0", first), ("2", second)):
        coefficients = model.coefficients()[name]
        fitted = torch.stack([coefficients["age"], coefficients["sex[M]"]])
        np.testing.assert_allclose(fitted.numpy(), slopes, atol=1e-4)
    residual = model.eval()(cohort.inputs, metadata=cohort.metadata)
    np.testing.assert_allclose(residual.detach().numpy(), output, atol=1e-4)


@pytest.mark.parametrize("prior", [1.0, 50.0, 1e9])
def test_with_a_prior_the_old_coefficients_count_for_so_many_rows(cohort, prior):
    """Ridge toward the old β in whitened units, with a free intercept, by augmented lstsq.

    Kills a prior toward zero, one that holds the intercept, and one per batch.
    """
    model = make_model(cohort, at="0")
    (old,) = betas(model)
    white = cohort.metadata.double().numpy() @ cohort.design.whitening
    regressors = np.concatenate([white, np.ones((120, 1))], axis=1)
    held = np.sqrt(prior) * np.eye(len(old))[:-1]
    features = model.network[0].weight.detach(), model.network[0].bias.detach()
    targets = (cohort.inputs @ features[0].T + features[1]).double().numpy()
    expected = np.linalg.lstsq(
        np.concatenate([regressors, held]),
        np.concatenate([targets, held @ old.numpy()]),
        rcond=None,
    )[0]
    model.refit(cohort.batches(50), prior=prior)
    np.testing.assert_allclose(betas(model)[0].numpy(), expected, atol=1e-4)


def test_the_default_prior_is_100_rows_per_direction(cohort):
    """Kills another default, and 100 rows in all."""
    models = [make_model(cohort) for _ in range(2)]
    models[0].refit(cohort.batches(120))
    models[1].refit(cohort.batches(120), prior=100 * cohort.design.confound_directions)
    assert cohort.design.confound_directions == 2
    torch.testing.assert_close(betas(models[0]), betas(models[1]))


def test_a_weight_is_a_repeated_row(cohort):
    """Weights 0, 1 and 2 equal rows left out, taken once and twice. Kills ignored weights."""
    weight = torch.arange(120) % 3
    rows = torch.repeat_interleave(torch.arange(120), weight)
    models = [make_model(cohort) for _ in range(2)]
    for model, held_out in (
        (models[0], (cohort.inputs, cohort.metadata, weight)),
        (models[1], (cohort.inputs[rows], cohort.metadata[rows])),
    ):
        model.refit([held_out], prior=10)
    torch.testing.assert_close(betas(models[0]), betas(models[1]), atol=1e-5, rtol=1e-4)


def test_shared_coefficients_are_fitted_to_the_mean_of_their_positions(cohort):
    """Kills a fit of images by position, or of the first position alone."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv1d(1, 4, 3))
    inputs = cohort.inputs[:, None]
    model = dc.normalize(network, cohort.design, "0", inputs[:2])
    model.refit([(inputs, cohort.metadata)], prior=0)
    channel_means = network[0]._conv_forward(inputs, *network.parameters()).mean(2)
    slopes = slopes_by_numpy(channel_means.detach().double().numpy(), cohort)
    age = model.coefficients()["0"]["age"]
    np.testing.assert_allclose(age.ravel().numpy(), slopes[0], atol=1e-5)


def test_batches_may_come_from_a_loader_or_a_function(cohort):
    """Kills a second pass that reads an exhausted iterator."""
    data = torch.utils.data.TensorDataset(cohort.inputs, cohort.metadata)
    sources = (
        cohort.batches(50),
        torch.utils.data.DataLoader(data, batch_size=50),
        lambda: iter(cohort.batches(50)),
    )
    fitted = []
    for source in sources:
        model = make_model(cohort)
        model.refit(source, prior=0)
        fitted.append(betas(model))
    for other in fitted[1:]:
        torch.testing.assert_close(other, fitted[0])


def test_only_coefficients_change(cohort):
    """Running statistics of a BatchNorm, modes and random state stay. Kills a pass in training."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    model = dc.normalize(network, cohort.design, "3", cohort.inputs[:2])
    network[2].eval()
    with unchanged(network):
        model.refit(cohort.batches(50))
    assert model.layers["3"].beta.abs().sum() > 0
    assert model.training
    assert not network[2].training


def test_refitted_puts_the_coefficients_back(cohort):
    """Also after an error inside, and training goes on as if nothing had been. Kills a leak."""
    model = make_model(cohort)
    old = betas(model)
    with unchanged(model):
        with model.refitted(cohort.batches(50), prior=0):
            assert (model.layers["0"].beta - old[0]).abs().max() > 0.01
        with pytest.raises(KeyError), model.refitted(cohort.batches(50)):
            raise KeyError("validation")


@pytest.mark.parametrize("size", [120, 50], ids=["one batch", "several"])
def test_an_error_in_the_middle_leaves_all_layers_as_they_were(cohort, size):
    """Kills a refit of the first layer that survives a crash before the second."""
    model = make_model(cohort)

    def crash(module, inputs):
        raise KeyError("out of memory")

    handle = model.network[2].register_forward_pre_hook(crash)
    with unchanged(model), pytest.raises(KeyError):
        model.refit(cohort.batches(size), prior=0)
    handle.remove()
    model(cohort.inputs, metadata=cohort.metadata)


@pytest.mark.parametrize(
    ("make_batches", "error", "words"),
    [
        (lambda cohort: iter(cohort.batches(50)), OptionError, "an iterator is empty after"),
        (lambda cohort: [], OptionError, "at least one batch"),
        (lambda cohort: [cohort.inputs], OptionError, r"\(inputs, metadata\)"),
        (lambda cohort: [(cohort.inputs, cohort.metadata[:9])], ShapeError, "9 rows for 120"),
        (lambda cohort: [(cohort.inputs, cohort.metadata + torch.nan)], ShapeError, "NaN"),
        (lambda cohort: [(cohort.inputs, cohort.metadata, -torch.ones(120))], ShapeError, "weight"),
        (lambda cohort: [*cohort.batches(50), (cohort.inputs, None)], ShapeError, "None"),
    ],
    ids=["iterator", "empty", "no metadata", "rows", "nan", "weight", "late"],
)
def test_unusable_batches_are_refused_and_nothing_changes(cohort, make_batches, error, words):
    """Kills silent fits to nothing, and checks that come after the first layer's refit."""
    model = make_model(cohort)
    for method in (model.refit, model.report):
        with unchanged(model), pytest.raises(error, match=words):
            method(make_batches(cohort))


def test_labels_are_needed(cohort):
    """Without labels their effect would be credited to the confounds."""
    model = make_model(cohort)
    unlabelled = cohort.design.encode(cohort.table[["age", "sex"]])
    with unchanged(model), pytest.raises(ShapeError, match=r"needs its labels"):
        model.refit([(cohort.inputs, unlabelled)])


@pytest.mark.parametrize("prior", [-1, float("nan")])
def test_an_impossible_prior_is_refused(cohort, prior):
    """Kills a negative ridge, which can blow β up."""
    model = make_model(cohort)
    with unchanged(model), pytest.raises(OptionError, match="prior must be"):
        model.refit(cohort.batches(50), prior=prior)
