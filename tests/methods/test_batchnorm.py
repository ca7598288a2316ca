"""The batchnorm method is torch's BatchNorm at the places, whatever the features look like."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from deconfound.errors import ShapeError
from deconfound.methods.batchnorm import weighted_batch_norm
from tests.methods.problem import fit, make_network, make_problem, prepare


@pytest.fixture(scope="module")
def problem():
    return make_problem(60)


def assert_same_in_train_and_eval(model, reference, x):
    for mode in (True, True, False):
        torch.testing.assert_close(model.train(mode)(x), reference.train(mode)(x), atol=1e-5, rtol=1e-5)


def test_flat_features_have_torchs_own_batchnorm(problem):
    network = make_network()
    reference = nn.Sequential(copy.deepcopy(network[0]), nn.BatchNorm1d(16), nn.ReLU(), copy.deepcopy(network[2]))
    model = prepare("batchnorm", replace(problem, at=("0",)), network)
    assert_same_in_train_and_eval(model, reference, problem.x)


def test_images_have_torchs_own_batchnorm_per_channel(problem):
    images = replace(problem, x=torch.randn(60, 1, 6, 6), at=("0",))
    network = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(48, 1))
    reference = nn.Sequential(copy.deepcopy(network[0]), nn.BatchNorm2d(3), *copy.deepcopy(network[1:]))
    model = prepare("batchnorm", images, network)
    assert_same_in_train_and_eval(model, reference, images.x)


class SequenceNorm(nn.Module):
    """BatchNorm of the channels of `(n, length, channels)`."""

    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x):
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


def test_sequences_have_torchs_own_batchnorm_per_channel(problem):
    sequences = replace(problem, x=torch.randn(60, 5, 8), at=("0",))
    network = nn.Sequential(nn.Linear(8, 4), nn.Flatten(), nn.Linear(20, 1))
    reference = nn.Sequential(copy.deepcopy(network[0]), SequenceNorm(4), *copy.deepcopy(network[1:]))
    model = prepare("batchnorm", sequences, network)
    assert_same_in_train_and_eval(model, reference, sequences.x)


def test_single_samples_are_refused_until_a_larger_batch_has_taught_something(problem):
    model = prepare("batchnorm", problem)
    with pytest.raises(ShapeError, match="the batches of method 'batchnorm' must have at least 2 samples; got 1"):
        model(problem.x[:1])
    fit(model, problem)
    before = copy.deepcopy(model.state_dict())
    alone = model.train()(problem.x[:1])
    torch.testing.assert_close(alone, model.eval()(problem.x[:1]))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_weights_of_two_and_zero_are_rows_that_are_there_twice_and_not_at_all():
    x = torch.randn(12, 5, 7)
    weight = torch.tensor([2.0] * 4 + [0.0] * 4 + [1.0] * 4)
    one, two = nn.BatchNorm1d(5), nn.BatchNorm1d(5)
    found = weighted_batch_norm(x, weight, one)
    twice = torch.cat([x[:4], x[:4], x[8:]])
    expected = two(twice)
    torch.testing.assert_close(found[:4], expected[:4])
    torch.testing.assert_close(found[8:], expected[8:])
    torch.testing.assert_close(one.running_mean, two.running_mean)
    even, usual = nn.BatchNorm1d(5), nn.BatchNorm1d(5)
    torch.testing.assert_close(weighted_batch_norm(x, torch.full((12,), 3.0), even), usual(x))
    torch.testing.assert_close(even.running_var, usual.running_var)
    torch.testing.assert_close(weighted_batch_norm(x, torch.zeros(12), even), usual(x))
