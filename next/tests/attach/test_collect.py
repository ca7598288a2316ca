"""The one collector of features."""

import pytest
import torch
from torch import nn

import deconfound as dc
from deconfound.attach import collect
from deconfound.errors import OptionError, ShapeError, StateError
from tests.attach.cohort import count_hooks, make_mlp


def test_batches_are_joined_in_order(cohort):
    """Also of several modules. Kills the last batch only, and a short batch that is lost."""
    network = make_mlp()
    with collect(network, ["0", "2"]) as collector:
        outputs = [network(inputs) for inputs, _ in cohort.batches(50)]
    assert collector.names == ("0", "2")
    torch.testing.assert_close(collector.features("2"), torch.cat(outputs).detach())
    torch.testing.assert_close(collector.features("0"), network[0](cohort.inputs).detach())
    assert not collector.features("0").requires_grad


def test_before_a_module_its_input_is_collected(cohort):
    """Kills a swapped `where`."""
    network = make_mlp()
    with collect(network, "2", where="before") as collector:
        network(cohort.inputs)
    torch.testing.assert_close(collector.features(), network[:2](cohort.inputs).detach())


def test_without_a_place_it_is_the_input_of_the_last_linear_layer(cohort):
    """Kills the first linear layer, and its output."""
    network = make_mlp()
    with collect(network) as collector:
        network(cohort.inputs)
    assert collector.names == ("2",)
    assert collector.features().shape == (120, 8)
    with pytest.raises(OptionError, match="Name a module"), collect(nn.Sequential(nn.ReLU())):
        pass


def test_at_a_normalised_module_the_normalised_output_is_collected(cohort):
    """By the network's own names. Kills features from before the layer."""
    model = dc.normalize(make_mlp(), cohort.design, ["0", "2"], cohort.inputs[:2])
    model.refit(cohort.batches(120), prior=0)
    model.eval()
    with collect(model, ["0", "2"]) as collector:
        output = model(cohort.inputs, metadata=cohort.metadata)
    torch.testing.assert_close(collector.features("2"), output.detach())
    with collect(model) as before_head:
        model(cohort.inputs, metadata=cohort.metadata)
    torch.testing.assert_close(before_head.features(), collector.features("0").relu())
    raw = model.remove()[0](cohort.inputs)
    assert (collector.features("0") - raw).abs().max() > 0.1


def test_without_detach_losses_reach_the_network(cohort):
    """Kills a graph that ends at the collector."""
    network = make_mlp()
    with collect(network, "0", detach=False) as collector:
        for inputs, _ in cohort.batches(50):
            network(inputs)
    collector.features().square().mean().backward()
    assert network[0].weight.grad.abs().sum() > 0
    assert network[2].weight.grad is None


def test_a_network_may_have_a_part_called_network():
    """Kills a look at any attribute `network` for the model's own."""
    network = nn.Module()
    network.network, network.head = nn.Linear(3, 4), nn.Linear(4, 2)
    network.forward = lambda x: network.head(network.network(x))
    with collect(network) as collector:
        network(torch.randn(5, 3))
    assert collector.names == ("head",)


def test_hooks_are_gone_afterwards(cohort):
    """Also after an error inside. Kills collectors that grow for ever."""
    network = make_mlp()
    with pytest.raises(RuntimeError, match="shapes"), collect(network, "*") as collector:
        network(cohort.inputs[:, :4])
    assert count_hooks(network) == 0
    network(cohort.inputs)
    with pytest.raises(StateError, match="No forward pass"):
        collector.features("2")


def test_clear_forgets(cohort):
    """For use batch by batch. Kills batches that stay."""
    network = make_mlp()
    with collect(network, "0") as collector:
        for inputs, _ in cohort.batches(50):
            collector.clear()
            network(inputs)
            assert collector.features().shape == (len(inputs), 8)


@pytest.mark.parametrize(
    ("at", "options", "words"),
    [
        ("hed", {}, r"'hed' matches no module"),
        (nn.Conv2d, {}, "Conv2d"),
        ("0", {"where": "behind"}, "'behind'"),
    ],
)
def test_wrong_places_are_refused(at, options, words):
    """Kills an empty collector."""
    network = make_mlp()
    with pytest.raises(OptionError, match=words), collect(network, at, **options):
        pass
    assert count_hooks(network) == 0


def test_a_name_that_was_not_collected_is_an_error_with_the_nearest(cohort):
    """Also no name where there are several. Kills the first module as a silent default."""
    network = make_mlp()
    with collect(network, ["0", "2"]) as collector:
        network(cohort.inputs)
    for name in ("02", None):
        with pytest.raises(OptionError, match="'0'"):
            collector.features(name)


def test_a_module_without_tensors_is_refused(cohort):
    """Kills a collector that skips what it does not understand."""

    class Describe(nn.Module):
        def forward(self, x):
            return str(x.shape)

    network = nn.Sequential(nn.Linear(6, 8), Describe())
    with pytest.raises(ShapeError, match="got a str"), collect(network, "1"):
        network(cohort.inputs)
    assert count_hooks(network) == 0
