"""The networks read samples of every shape they name, and say what is wrong with others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import deconfound as dc
from deconfound.errors import OptionError
from deconfound.networks import MLP, ConvNet, build
from tests.helpers import encode, fit_design, make_people

SHAPES = {
    "mlp": [(7,)],
    "convnet": [(12, 50), (1, 28, 28), (3, 37, 5), (2, 9, 8, 7), (1, 1, 6), (4, 1, 1, 1)],
}
CASES = [(name, shape) for name, shapes in SHAPES.items() for shape in shapes]


@pytest.mark.parametrize(("name", "shape"), CASES)
@pytest.mark.parametrize("outputs", [1, 3])
def test_each_network_maps_samples_to_logits_and_learns_in_every_parameter(name, shape, outputs):
    """Kills wrong axes, and a parameter that nothing depends on."""
    torch.manual_seed(0)
    network = build(name, shape, outputs)
    logits = network(torch.randn(16, *shape))
    assert logits.shape == (16, outputs)
    assert logits.std(dim=0).min() > 0
    logits.square().sum().backward()
    for parameter in network.parameters():
        assert parameter.grad.abs().max() > 0


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_each_network_is_normalised_at_its_default_modules(name, shape):
    """Kills default modules that do not exist or cannot take a layer."""
    _, table = make_people(40)
    design = fit_design(table)
    x = torch.randn(40, *shape)
    network = build(name, shape, 2)
    model = dc.normalize(network, design, at=network.default_at, example=x[:2])
    linears = [part for part in network.modules() if isinstance(part, nn.Linear)]
    assert len(model.layers) == len(linears)
    assert model(x, metadata=encode(design, table).float()).shape == (40, 2)


def test_an_mlp_is_the_product_of_its_matrices():
    """NumPy computes the same. Kills a missing ReLU, and layers in another order."""
    network = MLP((3,), 2, hidden=[5, 4])
    x = np.random.default_rng(0).normal(size=(6, 3))
    values = x
    for name in ("fc1", "fc2", "out"):
        linear = getattr(network, name)
        values = values @ linear.weight.detach().numpy().T + linear.bias.detach().numpy()
        if name != "out":
            values = np.maximum(values, 0)
    expected = torch.from_numpy(values).float()
    torch.testing.assert_close(network(torch.from_numpy(x).float()), expected, atol=1e-5, rtol=1e-5)


def test_without_hidden_layers_an_mlp_is_a_linear_model():
    assert [name for name, _ in MLP((3,), 1, hidden=()).named_children()] == ["out"]


@pytest.mark.parametrize(("name", "shape"), [("mlp", (7,)), ("convnet", (1, 16, 16))])
def test_dropout_acts_in_training_alone(name, shape):
    network, x = build(name, shape, 1, {"dropout": 0.5}), torch.randn(8, *shape)
    assert not torch.equal(network(x), network(x))
    network.eval()
    torch.testing.assert_close(network(x), network(x), rtol=0, atol=0)


def test_a_sample_s_logits_do_not_depend_on_the_other_samples_of_its_batch():
    """Kills batch normalisation, under which another site in the batch moves the logits."""
    network = ConvNet((3, 20, 20), 2)
    x = torch.randn(6, 3, 20, 20)
    others = x.clone()
    others[1:] = 5 + 3 * others[1:]
    torch.testing.assert_close(network(others)[0], network(x)[0], atol=1e-5, rtol=1e-5)


def test_a_convnet_reads_samples_of_another_size():
    network = ConvNet((1, 16, 16), 1)
    assert network(torch.randn(2, 1, 40, 25)).shape == (2, 1)


def test_each_block_halves_every_axis_longer_than_one():
    blocks = ConvNet((2, 21, 1, 8), 1, channels=(4, 4)).blocks
    shapes = [blocks[:count](torch.randn(1, 2, 21, 1, 8)).shape[2:] for count in range(3)]
    assert [tuple(shape) for shape in shapes] == [(21, 1, 8), (11, 1, 4), (6, 1, 2)]


@pytest.mark.parametrize(
    ("channels", "groups", "expected"),
    [(16, 8, 8), (12, 8, 6), (7, 8, 1), (1, 8, 1), (64, 1, 1), (8, 8, 4)],
)
def test_groups_are_the_largest_divisor_that_leaves_two_channels_in_each(
    channels, groups, expected
):
    network = ConvNet((1, 8, 8), 1, channels=[channels], groups=groups)
    assert network.blocks[0][1].num_groups == expected


def test_a_deep_convnet_still_tells_samples_apart_where_all_axes_have_length_one():
    """Kills groups of one channel: their only number, less its own mean, is 0."""
    torch.manual_seed(0)
    network = ConvNet((1, 4, 4), 1, channels=[8] * 5, groups=8)
    assert network(torch.randn(20, 1, 4, 4)).std() > 1e-4


def test_a_convnet_learns_what_an_image_shows():
    """Bright squares against dark ones; with labels at random it learns nothing (control)."""
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(64).float() % 2
    x = torch.randn(64, 1, 8, 8, generator=generator)
    x[:, :, 2:6, 2:6] += target[:, None, None, None]
    shuffled = target[torch.randperm(64, generator=generator)]

    def accuracy(labels):
        torch.manual_seed(0)
        network = ConvNet((1, 8, 8), 1, channels=(8, 8), hidden=8)
        optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
        for _ in range(40):
            logits = network(x[:32]).squeeze(1)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, labels[:32])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        logits = network(x[32:]).squeeze(1)
        return float(((logits > 0) == (labels[32:] > 0)).float().mean())

    assert accuracy(target) > 0.9
    assert accuracy(shuffled) < 0.8


def test_all_wrong_arguments_are_reported_together():
    with pytest.raises(OptionError) as error:
        MLP((3, 8, 8), 0, hidden="64", dropout=1)
    assert str(error.value).splitlines() == [
        "An MLP reads samples of shape (d,); got (3, 8, 8). Use an MLP for tables, a ConvNet for "
        "signals, images and volumes.",
        "outputs must be a whole number from 1; got 0.",
        "hidden must be a list such as [64, 32]; got '64'.",
        "dropout must be a number from 0 to below 1; got 1.",
    ]
    with pytest.raises(OptionError) as error:
        ConvNet((30,), 1, channels=[16, 0], hidden=True, groups=2.0)
    assert [line.split()[0] for line in str(error.value).splitlines()] == [
        *("A", "hidden", "groups", "channels"),
    ]
