"""`pmdn-alternating` is Algorithm 1: written out by hand here, in plain torch, it gives the same numbers."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, layer_norm

from deconfound.errors import OptionError
from tests.methods.problem import make_network, make_problem, prepare


@pytest.fixture(scope="module")
def problem():
    return make_problem(100)


class ByHand:
    """The network, its two β and their two optimisers, with every line of the algorithm spelled out."""

    def __init__(self, network, problem, beta_optimizer):
        self.first, self.last = copy.deepcopy(network[0]), copy.deepcopy(network[2])
        self.gain, self.bias = nn.Parameter(torch.ones(16)), nn.Parameter(torch.zeros(16))
        self.whitening = torch.from_numpy(problem.design.whitening).float()
        self.betas = [nn.Parameter(torch.zeros(6, 16)), nn.Parameter(torch.zeros(6, 1))]
        self.of_beta = beta_optimizer(self.betas)
        network_parameters = [*self.first.parameters(), self.gain, self.bias, *self.last.parameters()]
        self.of_network = torch.optim.Adam(network_parameters, lr=0.01)

    def forward(self, batch, frozen_beta):
        """The logits, and the features before each of the two layers."""
        white = batch.metadata @ self.whitening
        confounds = batch.metadata[:, :4] @ self.whitening[:4, :4]
        betas = [beta.detach() for beta in self.betas] if frozen_beta else self.betas
        hidden = layer_norm(self.first(batch.x), (16,), self.gain, self.bias)
        logit = self.last(torch.relu(hidden - confounds @ betas[0][:4]))
        return logit - confounds @ betas[1][:4], (hidden, logit), torch.cat([white, torch.ones(len(white), 1)], 1)

    def step(self, batch):
        with torch.no_grad():
            _, features, regressors = self.forward(batch, frozen_beta=True)
        penalty = sum(
            0.5 * (f - regressors @ beta).pow(2).sum() / len(f) for f, beta in zip(features, self.betas, strict=True)
        )
        self.of_beta.zero_grad()
        penalty.backward()
        self.of_beta.step()
        loss = binary_cross_entropy_with_logits(self.forward(batch, frozen_beta=True)[0], batch.target)
        self.of_network.zero_grad()
        loss.backward()
        self.of_network.step()
        return loss.detach()


@pytest.mark.parametrize(
    ("name", "rate", "make"),
    [
        ("sgd", 0.2, lambda betas: torch.optim.SGD(betas, lr=0.2)),
        ("adam", 0.03, lambda betas: torch.optim.Adam(betas, lr=0.03)),
    ],
)
def test_it_is_the_algorithm_written_by_hand(problem, name, rate, make):
    network = make_network()
    reference = ByHand(network, problem, make)
    model = prepare("pmdn-alternating", problem, network, beta_lr=rate, beta_optimizer=name)
    optimizer = torch.optim.Adam(model.network_parameters(), lr=0.01)
    for batch in [*problem.batches(30), *problem.batches(30)]:
        model.before_step(batch)
        loss = model.loss(batch, binary_cross_entropy_with_logits).total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(loss.detach(), reference.step(batch), atol=1e-5, rtol=1e-4)
    layers = list(model.model.layers.values())
    for layer, beta in zip(layers, reference.betas, strict=True):
        assert beta.abs().max() > 0.01
        torch.testing.assert_close(layer.beta.reshape(beta.shape), beta, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(network[0].weight, reference.first.weight, atol=1e-4, rtol=1e-3)


def test_the_step_on_beta_leaves_the_network_alone_and_the_networks_step_leaves_beta_alone(problem):
    model = prepare("pmdn-alternating", problem)
    batch = next(iter(problem.batches()))
    betas = [layer.beta for layer in model.model.layers.values()]
    network = [parameter.detach().clone() for parameter in model.network_parameters()]
    model.before_step(batch)
    assert all(torch.equal(a, b) for a, b in zip(model.network_parameters(), network, strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(beta.abs().max() > 0 for beta in betas)
    model.loss(batch, binary_cross_entropy_with_logits).total.backward()
    assert all(beta.grad is None for beta in betas)


def test_layer_norm_stands_before_each_layer_but_not_at_a_lone_logit(problem):
    assert list(prepare("pmdn-alternating", problem).model.layer_norms) == ["0"]
    two = prepare("pmdn-alternating", problem, make_network(8, 2))
    assert list(two.model.layer_norms) == ["0", "2"]
    assert len(prepare("pmdn-alternating", problem, layer_norm=False).model.layer_norms) == 0


@pytest.mark.parametrize("name", ["mdn", "pmdn", "rmdn"])
def test_other_layers_can_have_layer_norm_too_without_losing_a_lone_logit(problem, name):
    model = prepare(name, problem, layer_norm=True)
    assert list(model.model.layer_norms) == ["0"]
    assert len(prepare(name, problem).model.layer_norms) == 0
    assert model(problem.x, problem.metadata).std() > 0.01


def test_an_option_that_cannot_be_leaves_the_network_as_it_was(problem):
    network = make_network()
    with pytest.raises(OptionError, match="gradient must be"):
        prepare("pmdn", problem, network, gradient="upward", layer_norm=True)
    assert not any(module._forward_hooks for module in network.modules())


def test_the_learning_rate_of_beta_is_its_own(problem):
    (optimizer,) = prepare("pmdn-alternating", problem, beta_lr=0.07).own_optimizers()
    assert [group["lr"] for group in optimizer.param_groups] == [0.07]
    with pytest.raises(OptionError, match="beta_lr must be a number of at least 0; got -1"):
        prepare("pmdn-alternating", problem, beta_lr=-1)
    with pytest.raises(OptionError, match="beta_optimizer must be 'adam' or 'sgd'; got 'lbfgs'"):
        prepare("pmdn-alternating", problem, beta_optimizer="lbfgs")
