"""The forms of PMDN that only the lab has, against the equations written out by autograd."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import deconfound as dc
from deconfound.layers import PMDN
from deconfound.methods import Batch, Setting, make_method
from deconfound.training import binary_cross_entropy
from deconfound_lab.baselines import AuthorsPMDN, JointPMDN, LiteralPMDN

ROWS, RATE = 24, 0.05


@pytest.fixture
def problem():
    """People of unlike units, and a network with two places for layers."""
    rng = np.random.default_rng(0)
    ill = np.arange(ROWS) % 2
    table = {
        "age": 70 + 8 * rng.normal(size=ROWS) + 6 * ill,
        "dose": 1e-3 + 2e-4 * rng.normal(size=ROWS) + 1e-4 * ill,
        "ill": ill.astype(float),
    }
    design = dc.Design(["age", "dose"], keep=["ill"], types={"ill": "numeric"}).fit(table)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 3, generator=generator)
    metadata = torch.from_numpy(design.encode(table))
    batch = Batch(x, metadata, torch.from_numpy(ill).float()[:, None])
    raw = torch.tensor(np.column_stack([np.ones(ROWS), *table.values()]), dtype=torch.float32)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)
        )
    return network, Setting(design, x[:2], at=["0", "2"]), batch, raw


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=RATE)


def with_sgd(method):
    """The literal form with plain gradient descent for β."""
    betas = method.beta_optimizer.param_groups[0]["params"]
    method.beta_optimizer = torch.optim.SGD(betas, lr=0.25)
    return method


def update(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def apply(network, x, replace):
    """The network by hand, with `replace(number, features)` after its first two linear layers."""
    first = torch.tanh(replace(0, nn.functional.linear(x, *weights(network, 0))))
    second = torch.tanh(replace(1, nn.functional.linear(first, *weights(network, 2))))
    return nn.functional.linear(second, *weights(network, 4))


def weights(network, place):
    return network[place].weight, network[place].bias


def cross_entropy(logits, batch):
    return nn.functional.binary_cross_entropy_with_logits(logits, batch.target)


def algorithm_1(network, batch, regressors, confounds, at, rate, steps):
    """Algorithm 1 with plain gradient descent on both sides; line 6 layer by layer.

    Yields β of each place and the weights after each step.
    """
    network = copy.deepcopy(network)
    betas = [torch.zeros(regressors.shape[1], size) for size in (4, 5)]

    def fit(number, features):
        # Line 6: the gradient of ½ mean ‖f − Rβ‖², with f as a constant.
        if number in at:
            beta = betas[number].clone().requires_grad_()
            penalty = 0.5 * (features.detach() - regressors @ beta).square().sum(1).mean()
            (gradient,) = torch.autograd.grad(penalty, beta)
            betas[number] = (beta - rate * gradient).detach()
        return subtract(number, features)

    def subtract(number, features):
        effect = confounds @ betas[number][: confounds.shape[1]]
        return features - effect if number in at else features

    for _ in range(steps):
        apply(network, batch.x, fit)
        # Lines 7 to 9, with the new β as constants.
        loss = cross_entropy(apply(network, batch.x, subtract), batch)
        network.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter -= RATE * parameter.grad
        yield [betas[number] for number in at], [p.detach().clone() for p in network.parameters()]


@pytest.mark.parametrize(
    ("form", "at"),
    # With two layers the literal form steps all β before any layer uses them.
    [
        ("one pass", (0,)),
        ("one pass", (1,)),
        ("one pass", (0, 1)),
        ("two passes", (0,)),
        ("two passes", (1,)),
    ],
)
def test_the_published_forms_are_algorithm_1_written_out(problem, form, at):
    """Kills: β of the previous step on line 8, a gradient through β, and a penalty not halved."""
    network, setting, batch, _ = problem
    setting = Setting(setting.design, setting.example, at=[("0", "2")[place] for place in at])
    start = copy.deepcopy(network)
    if form == "one pass":
        method = make_method("pmdn", network, setting, {"gradient": "frozen", "step": 0.25})
    else:
        method = with_sgd(LiteralPMDN(network, setting))
    optimizers = method.optimizers(sgd)
    whitened = PMDN(setting.design, 1).whitening.whiten(batch.metadata, None)
    steps = algorithm_1(start, batch, whitened.regressors, whitened.confounds, at, 0.25, 5)
    for betas, parameters in steps:
        method.train().step(method, batch, binary_cross_entropy, optimizers, update)
        layers = list(method.network.layers.values())
        for layer, beta in zip(layers, betas, strict=True):
            torch.testing.assert_close(layer.beta.detach(), beta, atol=1e-6, rtol=1e-5)
        for own, expected in zip(network.parameters(), parameters, strict=True):
            torch.testing.assert_close(own.detach(), expected, atol=1e-6, rtol=1e-5)


def test_with_two_layers_the_literal_form_fits_the_second_to_features_of_the_old_first(problem):
    """The control: from the second step on it differs from the one pass."""
    network, setting, batch, _ = problem
    options = {"gradient": "frozen", "step": 0.25}
    one_pass = make_method("pmdn", copy.deepcopy(network), setting, options)
    literal = with_sgd(LiteralPMDN(copy.deepcopy(network), setting))
    betas = []
    for method in (one_pass, literal):
        optimizers = method.optimizers(sgd)
        for _ in range(2):
            method.train().step(method, batch, binary_cross_entropy, optimizers, update)
        betas.append([layer.beta.detach() for layer in method.network.layers.values()])
    torch.testing.assert_close(betas[0][0], betas[1][0], atol=1e-3, rtol=0)
    assert (betas[0][1] - betas[1][1]).abs().max() > 1e-3


def authors_penalty(network, betas, batch, raw):
    """Penalties of both places summed; the residual of all columns goes on to the next layer."""
    penalties = []

    def replace(number, features):
        residual = features - raw @ betas[number]
        penalties.append(residual.square().sum() / len(raw))
        return residual

    apply(network, batch.x, replace)
    return sum(penalties)


def test_the_authors_penalty_and_its_gradient_are_those_written_out(problem):
    """Kills: centred metadata, detached residuals, confounds alone, and a mean over features."""
    network, setting, batch, raw = problem
    method = AuthorsPMDN(network, setting)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for beta in method.betas:
            beta.copy_(1e-3 * torch.randn(beta.shape, generator=generator))
    betas = [beta.detach().clone().requires_grad_() for beta in method.betas]
    expected = authors_penalty(network, betas, batch, raw)
    penalty = method.penalty(batch)
    torch.testing.assert_close(penalty, expected, rtol=1e-4, atol=0)
    own = torch.autograd.grad(penalty, list(method.betas))
    for one, other in zip(own, torch.autograd.grad(expected, betas), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * other.abs().max().item())


def test_the_authors_network_step_subtracts_ones_and_confounds_with_constant_beta(problem):
    network, setting, batch, raw = problem
    method = AuthorsPMDN(network, setting)
    start = copy.deepcopy(network)
    optimizers = method.optimizers(sgd)
    method.train().step(method, batch, binary_cross_entropy, optimizers, update)
    # Adam's first step has the size of its rate, and β moves before the network does.
    for beta in method.betas:
        assert beta.detach().abs().max().item() == pytest.approx(0.045, rel=1e-3)
    betas = [beta.detach() for beta in method.betas]

    def subtract(number, features):
        return features - raw[:, :3] @ betas[number][:3]

    logits = apply(start, batch.x, subtract)
    cross_entropy(logits, batch).backward()
    for parameter, before in zip(network.parameters(), start.parameters(), strict=True):
        expected = before - RATE * before.grad
        torch.testing.assert_close(parameter.detach(), expected.detach(), atol=1e-4, rtol=1e-3)
    # Labels are not read in evaluation.
    hidden = batch.metadata.clone()
    hidden[:, 2] = torch.nan
    method.eval()
    assert torch.equal(method(batch.x, hidden), method(batch.x, batch.metadata))


def test_the_gradient_of_the_joint_form_is_that_of_eq_8(problem):
    """Kills: features or β detached on either side, and a wrong 1/C."""
    network, setting, batch, raw = problem
    weight = 0.7
    method = JointPMDN(network, setting, penalty=weight)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for beta in method.betas:
            beta.copy_(1e-3 * torch.randn(beta.shape, generator=generator))
    twin = copy.deepcopy(network)
    betas = [beta.detach().clone().requires_grad_() for beta in method.betas]
    penalties = []

    def replace(number, features):
        penalties.extend(((features - raw @ betas[number]) ** 2).mean(0))
        return features - raw[:, 1:3] @ betas[number][1:3]

    logits = apply(twin, batch.x, replace)
    count = len(penalties)
    assert count == 9
    objective = cross_entropy(logits, batch) + weight / count * torch.stack(penalties).sum()
    expected = torch.autograd.grad(objective, [*twin.parameters(), *betas])
    loss = method.train().loss(batch, binary_cross_entropy)
    own = torch.autograd.grad(loss, [*network.parameters(), *method.betas])
    torch.testing.assert_close(loss, objective, rtol=1e-4, atol=0)
    for one, other in zip(own, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * other.abs().max().item())


def test_features_shrink_with_lambda_and_not_under_the_alternation(problem):
    network, setting, batch, _ = problem

    def feature_size(kind, **options):
        own = copy.deepcopy(network)
        method = kind(own, setting, **options)
        optimizers = method.optimizers(lambda parameters: torch.optim.Adam(parameters, lr=1e-2))
        for _ in range(100):
            method.train().step(method, batch, binary_cross_entropy, optimizers, update)
        return nn.functional.linear(batch.x, *weights(own, 0)).std().item()

    joint = [feature_size(JointPMDN, penalty=weight) for weight in (0.0, 0.1, 1.0)]
    literal = feature_size(LiteralPMDN, beta_rate=0.1)
    assert joint[0] > 1.2 * joint[1] > 1.2 * 1.2 * joint[2]
    assert literal > 0.8 * joint[0]
