"""The features that the gain is measured on."""

import math

import pytest
import torch

import deconfound as dc
from deconfound.layers.pmdn.gain import new_state
from deconfound.layers.pmdn.sampled import SAMPLED_FEATURES, Sampled, sample_of

SHAPES = [
    (128, 28, 28), (256, 14, 14), (64, 56, 56), (64, 112, 112), (64, 64, 64), (16, 32, 32, 32), (1, 64, 64, 64),
    (4, 32, 32), (16, 28, 28), (32, 24, 24), (512, 7, 7), (197, 768),
]  # fmt: skip
# The next prime number of runs, or one of few distances with a factor in common, would see little of these.
HARD = [
    (8, 28, 28), (10, 28, 28), (2, 56, 56), (6, 24, 24), (13, 20, 20), (8, 16, 16), (20, 26, 26), (128, 96, 96),
    (384, 32, 32, 32), (384, 91, 109), (480, 32, 32), (240, 64, 32), (320, 32, 32, 32), (96, 72, 72), (24, 144, 144),
]  # fmt: skip


def places(shape, measured):
    return measured.of(torch.arange(math.prod(shape))[None])[0]


def unseen(shape, measured):
    """The widest part of a row, slice or channel, as a share of it, that no run ever covers."""
    widest = 0.0
    for axis in range(1, len(shape)):
        period = math.prod(shape[axis:])
        seen = (places(shape, measured) % period).unique()
        gaps = torch.cat([seen, seen[:1] + period]).diff() - 1
        widest = max(widest, gaps.max().item() / period)
    return widest


@pytest.mark.parametrize("features", [1, 7, 8, 84, 1023, 1024, 2047])
def test_up_to_twice_the_number_every_feature_is_measured(features):
    matrix = torch.arange(2.0 * features).view(2, features)
    assert torch.equal(sample_of((features,)).of(matrix), matrix)


@pytest.mark.parametrize("features", [2048, 2100, 12_544, 73_728, 151_296, 262_144, 1_000_003])
def test_of_more_features_runs_of_neighbours_are_measured_from_end_to_end(features):
    measured = sample_of((features,))
    found = places((features,), measured)
    each = found.view(-1, measured.run)
    assert torch.equal(each, each[:, :1] + torch.arange(measured.run))
    assert (each[1:, 0] - each[:-1, 0]).unique().tolist() == [measured.apart]
    assert each[0, 0] == 0
    assert features - found[-1] <= measured.apart
    assert 850 < len(found) < 2048


def test_the_state_has_a_trend_for_each_of_them():
    assert new_state(3, 3, 84).trend.shape == (3, 84)
    design = dc.Design(confounds=["age"]).fit({"age": [50.0, 60.0, 70.0]})
    layer = dc.PMDN(design, (16, 28, 28))
    assert layer.gain_trend.shape == (2, len(places((16, 28, 28), sample_of((16, 28, 28)))))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_they_lie_all_over_an_image(shape):
    """As many places of an image as there are, or most of as many as are measured."""
    image = math.prod(shape[1:])
    found = places(shape, sample_of(shape)) % image
    assert len(found.unique()) > 0.8 * min(image, SAMPLED_FEATURES)


@pytest.mark.parametrize("shape", [*SHAPES, *HARD], ids=str)
def test_no_large_part_of_a_row_slice_or_channel_goes_unseen(shape):
    assert unseen(shape, sample_of(shape)) < 0.05
    assert 450 < len(places(shape, sample_of(shape))) < 2048


def test_a_distance_that_does_not_know_the_shape_leaves_such_parts():
    assert unseen((8, 28, 28), Sampled(8, 8 * 7)) > 0.7
    assert unseen((384, 32, 32, 32), Sampled(8, 8 * 12_289)) > 0.9


@pytest.mark.parametrize("shape", [*SHAPES, (480, 32, 32), (24, 144, 144), (96, 72, 72)], ids=str)
def test_most_of_an_image_is_seen_where_its_shape_is_not_known(shape):
    assert unseen(shape, sample_of((math.prod(shape),))) < 0.3


def test_an_axis_of_one_changes_nothing():
    assert sample_of((1, 128, 14, 14)) == sample_of((128, 14, 14)) == sample_of((128, 14, 14, 1))


@pytest.mark.parametrize("shape", [(128, 28, 28), (8, 28, 28)], ids=str)
def test_beta_follows_a_drift_inside_an_image_whose_edges_are_blank(shape):
    design = dc.Design(confounds=["age"]).fit({"age": torch.linspace(40, 80, 64).tolist()})
    layer, rng = dc.PMDN(design, shape), torch.Generator().manual_seed(0)
    for step in range(30):
        age = 60 + 12 * torch.randn(16, generator=rng)
        metadata = torch.as_tensor(design.encode({"age": age.tolist()})).float()
        x = torch.randn(16, *shape, generator=rng) + step / 10 * metadata[:, :1, None, None]
        x[:, :, 0] = x[..., :8] = 0
        out = layer(x, metadata)
    age, inside = metadata[:, 0] - metadata[:, 0].mean(), out[:, :, 1:, 8:].mean((1, 2, 3))
    assert (age @ inside / age.square().sum()).abs() < 0.5  # of an effect of 2.9
