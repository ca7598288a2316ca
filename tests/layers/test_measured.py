"""The features that the gain is measured on."""

import pytest
import torch

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
    assert 1000 < len(places) < 2056


def test_the_state_has_a_trend_for_each_of_them():
    assert gain.new_state([2, 0, 1], 84).trend.shape == (3, 84)
    assert gain.new_state([2, 0, 1], 12_544).trend.shape == (3, len(gain.measured(torch.zeros(1, 12_544))[0]))
