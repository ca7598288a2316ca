"""The networks that come with the library."""

import pytest
import torch

from deconfound.errors import OptionError
from deconfound.networks import ResNet3D


@pytest.mark.parametrize("halving", ["pool", "stride"])
def test_every_block_of_the_3d_network_halves_the_image(halving):
    network = ResNet3D(16, (3, 6, 9, 6), (5, 4), 2, halving=halving)
    edges = []
    for block in network.blocks:
        block.register_forward_hook(lambda module, inputs, output: edges.append(output.shape[-1]))
    assert network(torch.randn(2, 1, 16, 16, 16)).shape == (2, 2)
    assert edges == [8, 4, 2, 1]


def test_a_strided_block_reads_every_voxel():
    network = ResNet3D(16, (3, 6, 9, 6), (5, 4), 2, halving="stride")
    image = torch.randn(1, 1, 16, 16, 16, requires_grad=True)
    network.blocks[0].conv1(image).square().sum().backward()
    assert (image.grad != 0).all()


def test_an_unknown_halving_is_refused():
    with pytest.raises(OptionError, match="halving must be 'pool' or 'stride'; got 'mean'"):
        ResNet3D(halving="mean")
