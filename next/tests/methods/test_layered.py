"""A layered method is `normalize` with the same options, step by step, and nothing else."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor, nn

import deconfound as dc
from deconfound.errors import OptionError
from deconfound.layers import MDN, PMDN, RMDN
from deconfound.methods import Batch, Setting, make_method, method_options
from tests import oracles
from tests.helpers import assert_same_state, random_weights, state_of
from tests.methods.problem import (
    criterion,
    make_adam,
    make_network,
    make_problem,
    train,
    update,
)

PROBLEM = make_problem()
WEIGHT = (torch.arange(120) % 3).float()


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["rows", "weighted rows"])
@pytest.mark.parametrize(
    ("name", "options"),
    [("mdn", {"gram": "batch"}), ("rmdn", {"ridge": 1.0}), ("pmdn", {"memory": 60.0})],
)
def test_it_is_normalize_by_hand_step_by_step(name, options, weight):
    """Kills weights that do not arrive, options that are dropped, and a second forward pass."""
    setting = PROBLEM.setting(at=["0", "2"])
    method = make_method(name, make_network(), setting, options)
    train(method, PROBLEM.batches(40, weight), epochs=4)

    network = make_network()
    model = dc.normalize(network, PROBLEM.design, ["0", "2"], PROBLEM.x[:2], layer=name, **options)
    optimizer = make_adam(model.parameters())
    for _ in range(4):
        for rows in torch.arange(120).split(40):
            own = None if weight is None else weight[rows]
            logits = model(PROBLEM.x[rows], metadata=PROBLEM.metadata[rows], weight=own)
            update(criterion(logits, PROBLEM.batch(rows)), optimizer)
    assert_same_state(method.network, model.state_dict())

    rows = torch.arange(120).split(40)
    held_out = [(PROBLEM.x[each], PROBLEM.metadata[each]) for each in rows]
    if weight is not None:
        held_out = [(*pair, weight[each]) for pair, each in zip(held_out, rows, strict=True)]
    model.refit(held_out)
    method.refit(PROBLEM.batches(40, weight))
    for own, other in zip(method.network.layers.values(), model.layers.values(), strict=True):
        torch.testing.assert_close(own.beta, other.beta, rtol=1e-4, atol=1e-5)


def test_without_at_layers_go_where_the_network_says_else_to_linear_layers():
    """Kills a default that ignores `default_at`."""
    method = make_method("pmdn", make_network(), PROBLEM.setting())
    assert [*method.network.layers] == ["0", "2", "4"]
    network = make_network()
    network.default_at = ("2",)
    method = make_method("pmdn", network, PROBLEM.setting())
    assert [*method.network.layers] == ["2"]


def test_per_feature_is_one_coefficient_for_each_pixel():
    """Kills `per` that does not reach `normalize`."""
    setting = Setting(PROBLEM.design, PROBLEM.x[:2].view(2, 1, 2, 3), at="0")
    shapes = {}
    for per in ("channel", "feature"):
        network = nn.Sequential(nn.Conv2d(1, 4, 1), nn.Flatten(), nn.Linear(24, 1))
        method = make_method("pmdn", network, setting, {"per": per})
        shapes[per] = method.network.layers["0"].shape
    assert shapes == {"channel": (4, 1, 1), "feature": (4, 2, 3)}


def test_held_out_rows_without_weight_are_left_out_of_the_refit():
    """Kills a refit on all rows, and one that fails on a batch without any weight."""
    weight = (torch.arange(120) >= 40).float()
    expected = make_method("pmdn", make_network(), PROBLEM.setting())
    expected.refit(lambda: [PROBLEM.batch(rows) for rows in torch.arange(40, 120).split(40)])
    method = make_method("pmdn", make_network(), PROBLEM.setting())
    method.refit(PROBLEM.batches(40, weight))
    assert_same_state(method, expected.state_dict())
    before = state_of(method)
    method.refit(PROBLEM.batches(40, 0 * weight))
    assert_same_state(method, before)
    with method.refitted(PROBLEM.batches(40, 0 * weight)):
        assert_same_state(method, before)


@pytest.mark.parametrize(("name", "layer"), [("mdn", MDN), ("rmdn", RMDN), ("pmdn", PMDN)])
def test_its_options_are_those_of_the_layer_with_the_same_defaults(name, layer):
    """Kills defaults that drift apart."""
    own = [*inspect.signature(layer).parameters.values()][2:]
    shared = {"per": "channel", "where": "after", "channel_axis": None}
    assert method_options(name) == {**shared, **{each.name: each.default for each in own}}


def test_faults_of_the_layer_reach_the_user():
    with pytest.raises(OptionError, match="memory must be a number of samples, 1 or more; got 0"):
        make_method("pmdn", make_network(), PROBLEM.setting(), {"memory": 0})
    with pytest.raises(OptionError, match="at='fc1' matches no module"):
        make_method("pmdn", make_network(), PROBLEM.setting(at="fc1"))


@pytest.mark.parametrize(
    ("optimizer", "rates"), [(torch.optim.SGD, (0.2, 0.05)), (torch.optim.Adam, (0.05, 0.01))]
)
def test_the_literal_method_is_algorithm_1(optimizer, rates):
    """A step with two passes and two optimisers: β first, then W with the new β frozen.

    Kills one optimiser for both, and the order W, β. The one-pass method is the control.
    """
    weights = random_weights(6, 5, 4, 1)
    x, target = PROBLEM.x.double(), PROBLEM.target.double()
    metadata, design = PROBLEM.metadata.double(), PROBLEM.design
    columns = len(design.confound_columns), design.confound_directions
    r = oracles.white_regressors(metadata, design.whitening)
    c = oracles.white_confounds(metadata, design.whitening, *columns)
    algorithm = oracles.AlgorithmOne(weights, c.shape[1], r.shape[1], optimizer, rates)
    setting = Setting(design, x[:2], at=["0", "2"])
    literal = make_method("tests.methods.literal:LiteralPMDN", make_tanh_mlp(weights), setting)
    one_pass = make_method("pmdn", make_tanh_mlp(weights), setting, {"gradient": "frozen"})
    remaining = iter((rates[1], rates[0]))  # W comes first, then β.
    optimizers = literal.optimizers(lambda own: optimizer(own, lr=next(remaining)))
    (single,) = one_pass.optimizers(lambda own: optimizer(own, lr=rates[1]))
    for rows in torch.arange(120).split(30):
        batch = Batch(x[rows], metadata[rows], target[rows])
        literal.step(literal, batch, squared_error, optimizers, update)
        one_pass.step(one_pass, batch, squared_error, [single], update)
        algorithm.step(x[rows], c[rows], r[rows], target[rows])
    for layer, beta in zip(literal.network.layers.values(), algorithm.beta, strict=True):
        torch.testing.assert_close(layer.beta.detach(), beta, rtol=1e-6, atol=1e-6)
    plain, control = (each.network.network for each in (literal, one_pass))
    for place, weight in zip((0, 2, 4), algorithm.w, strict=True):
        torch.testing.assert_close(plain[place].weight.detach().T, weight.detach())
    assert (control[0].weight.T - algorithm.w[0]).abs().max() > 1e-4


def make_tanh_mlp(weights: list[Tensor]) -> nn.Sequential:
    """Return linear maps without bias, with tanh between them, in double precision."""
    maps = [nn.Linear(*weight.shape, bias=False, dtype=torch.float64) for weight in weights]
    for linear, weight in zip(maps, weights, strict=True):
        linear.weight.data.copy_(weight.T)
    return nn.Sequential(maps[0], nn.Tanh(), maps[1], nn.Tanh(), maps[2])


def squared_error(logits: Tensor, batch: Batch) -> Tensor:
    """Return the mean squared error."""
    return (logits - batch.target).square().mean()
