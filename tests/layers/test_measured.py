"""The features that the gain is measured on."""

import pytest
import torch

import deconfound as dc
from deconfound import gain


@pytest.mark.parametrize("features", [1, 7, 8, 84, 1023, 1024, 2047])
def test_up_to_twice_the_number_every_feature_is_measured(features):
    matrix = torch.arange(2.0 * features).view(2, features)
    assert torch.equal(gain.measured(matrix), matrix)


@pytest.mark.parametrize("features", [2048, 2100, 12_544, 73_728, 151_296, 262_144, 1_000_003])
def test_of_more_features_runs_of_neighbours_are_measured_from_end_to_end(features):
    places = gain.measured(torch.arange(features)[None])[0]
    runs = places.view(-1, gain.RUN)
    assert torch.equal(runs, runs[:, :1] + torch.arange(gain.RUN))
    assert (runs[1:, 0] - runs[:-1, 0]).unique().tolist() == [gain.spacing(features)]
    assert runs[0, 0] == 0
    assert features - places[-1] <= gain.spacing(features)
    assert 850 < len(places) < 2048


def test_the_state_has_a_trend_for_each_of_them():
    assert gain.new_state([2, 0, 1], 84).trend.shape == (3, 84)
    assert gain.new_state([2, 0, 1], 12_544).trend.shape == (3, len(gain.measured(torch.zeros(1, 12_544))[0]))


@pytest.mark.parametrize(
    "shape",
    [
        (128, 28, 28), (256, 14, 14), (64, 56, 56), (64, 112, 112), (64, 64, 64), (16, 32, 32, 32), (1, 64, 64, 64),
        (4, 32, 32), (16, 28, 28), (32, 24, 24), (512, 7, 7), (197, 768),
    ],
    ids=str,
)  # fmt: skip
def test_they_lie_all_over_an_image(shape):
    """As many places of an image as there are, or most of as many as are measured."""
    features, places = torch.Size(shape).numel(), torch.Size(shape[1:]).numel()
    measured = gain.measured(torch.arange(features)[None])[0] % places
    assert len(measured.unique()) > 0.8 * min(places, gain.MEASURED_FEATURES)


def test_beta_follows_a_drift_inside_an_image_whose_edge_is_blank():
    design = dc.Design(confounds=["age"]).fit({"age": torch.linspace(40, 80, 64).tolist()})
    layer, rng = dc.PMDN(design, (128, 28, 28)), torch.Generator().manual_seed(0)
    for step in range(30):
        age = 60 + 12 * torch.randn(16, generator=rng)
        metadata = torch.as_tensor(design.encode({"age": age.tolist()})).float()
        x = torch.randn(16, 128, 28, 28, generator=rng) + step / 10 * metadata[:, :1, None, None]
        x[:, :, 0] = 0
        out = layer(x, metadata)
    age, inside = metadata[:, 0] - metadata[:, 0].mean(), out[:, :, 1:].mean((1, 2, 3))
    assert (age @ inside / age.square().sum()).abs() < 0.5  # of an effect of 2.9
