"""The one collector of features, and the one place that inserts plain normalisations."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import deconfound as dc
from deconfound.errors import DeconfoundError, OptionError
from deconfound.surgery import collect, insert_norms, last_linear

TABLE = {"age": [61.0, 70.0, 78.0, 55.0, 66.0, 81.0]}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))


def hooks(module: nn.Module) -> int:
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules())


def test_batches_are_concatenated_and_detached():
    net, x = network(), torch.randn(10, 3)
    with collect(net, "0") as collected:
        for part in x.split(4):
            net(part)
    # A product of 10 rows may round otherwise than one of 4: no BLAS promises equal bits for other shapes.
    assert torch.allclose(collected.features(), net[0](x).detach(), rtol=1e-5, atol=1e-6)
    assert not collected.features().requires_grad


def test_without_a_name_it_is_the_input_of_the_last_linear_layer():
    net, x = network(), torch.randn(5, 3)
    with collect(net) as collected:
        net(x)
    assert collected.paths == ("2",) == (last_linear(net),)
    assert torch.equal(collected.features(), net[1](net[0](x)).detach())


def test_after_a_normalised_module_the_normalised_output_is_collected():
    design = dc.Design(["age"]).fit(TABLE)
    model = dc.normalize(network(), design, at="0", example=torch.zeros(2, 3))
    model.layers["0"].set_beta(torch.ones(2, 8))
    x, metadata = torch.randn(6, 3), design.encode(TABLE)
    model.eval()
    with collect(model, ["0", "2"]) as collected:
        output = model(x, metadata=metadata)
    plain = model.network[0].weight.detach() @ x.T
    expected = plain.T + model.network[0].bias.detach() - torch.from_numpy(metadata)
    assert torch.allclose(collected.features("0"), expected, atol=1e-6)
    assert torch.equal(collected.features("2"), output.detach())


def test_take_begins_anew_and_flat_makes_rows():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())
    with collect(net, nn.ReLU, where="before", flat=True, device="cpu") as collected:
        net(torch.randn(4, 1, 5, 5))
        assert collected.take().shape == (4, 18)
        net(torch.randn(3, 1, 5, 5))
        assert collected.take("1").shape == (3, 18)


def test_with_a_graph_the_loss_reaches_the_network():
    net = network()
    with collect(net, "0", detach=False) as collected:
        net(torch.randn(4, 3))
    collected.features().sum().backward()
    assert net[0].weight.grad is not None


def test_samples_come_first_where_sequences_have_them_second():
    net = nn.Sequential(nn.LSTM(3, 5))
    with collect(net, "0") as collected:
        net(torch.randn(7, 2, 3))  # seven steps of two samples
    assert collected.features().shape == (2, 7, 5)


def test_hooks_are_gone_also_after_an_error():
    net = network()
    with pytest.raises(RuntimeError), collect(net, "0"):
        net(torch.randn(4, 99))
    assert hooks(net) == 0


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: collect(network(), "nought"), OptionError, "at must match modules of the network; got 'nought'"),
        (lambda: collect(network(), "0", where="beside"), OptionError, "where must be 'after' or 'before'"),
        (lambda: collect(nn.ReLU()), OptionError, "at=None must find a linear layer"),
        (lambda: collect(network(), ["0", "2"]).features(), OptionError, "path must be one of 0, 2; got None"),
        (
            lambda: collect(network(), "0").features(),
            DeconfoundError,
            "must be collected by a forward inside the block",
        ),
    ],
)
def test_errors_say_what_to_do(make, kind, words):
    with pytest.raises(kind, match=words):
        make()


def test_layer_norm_stands_after_named_modules_and_is_removed_with_the_layers():
    design, net, x = dc.Design(["age"]).fit(TABLE), network(), torch.randn(6, 3)
    before = net(x)
    model = dc.normalize(net, design, at="2", layer_norm="1", example=x)
    assert list(model.layer_norms) == ["1"]
    with collect(model, "1") as collected:
        model.eval()(x, metadata=design.encode(TABLE))
    assert torch.allclose(collected.features(), nn.functional.layer_norm(net[0](x).relu(), (8,)), atol=1e-5)
    assert torch.equal(model.remove()(x), before)
    assert hooks(net) == 0


def test_the_plan_shows_where_layer_norm_goes():
    design = dc.Design(["age"]).fit(TABLE)
    plan = dc.normalize(network(), design, at="0", layer_norm=["1"], example=torch.zeros(2, 3), dry_run=True)
    assert "insert layer_norm after" in str(plan).splitlines()[2]
    plan = dc.normalize(network(), design, at="0", layer_norm=True, example=torch.zeros(2, 3), dry_run=True)
    assert "insert layer_norm and pmdn after" in str(plan)
    with pytest.raises(OptionError, match="layer_norm must match modules of the network; got 'nought'"):
        dc.normalize(network(), design, at="0", layer_norm="nought", example=torch.zeros(2, 3))


def test_other_norms_are_inserted_at_the_places_of_a_plan():
    design, net = dc.Design(["age"]).fit(TABLE), network()
    plan = dc.normalize(net, design, at=["0", "2"], example=torch.zeros(2, 3), dry_run=True)
    norms = insert_norms(net, plan.places, lambda place: nn.BatchNorm1d(place.feature_shape[0], affine=False))
    out = net(torch.randn(50, 3))
    assert list(norms) == ["0", "2"]
    assert torch.allclose(out.mean(0), torch.zeros(2), atol=1e-5)


def test_a_network_in_double_precision_takes_its_layers_in_double_precision():
    design = dc.Design(["age"]).fit(TABLE)
    for example in (torch.zeros(2, 3, dtype=torch.float64), None):
        model = dc.normalize(network().double(), design, at=["0", "2"], example=example)
        out = model(torch.randn(6, 3, dtype=torch.float64), metadata=design.encode(TABLE))
        out.sum().backward()
        assert out.dtype == torch.float64 == model.layers["0"].beta.dtype
