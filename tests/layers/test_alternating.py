import numpy as np
import pytest
import torch
from torch import nn

import deconfound as dc
from tests.conftest import make_cohort


class Net(nn.Module):
    """One linear feature layer, a metadata layer, one output layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(3, 5), layer, nn.Linear(5, 1)

    def forward(self, x, metadata):
        return self.last(self.layer(self.first(x), metadata)).squeeze(1)


def test_one_pass_with_frozen_beta_is_the_alternation_with_sgd():
    """The same η schedule gives the same β and the same network gradients at every step."""
    cohort = make_cohort(n=320)
    inputs = torch.randn(cohort.n, 3, dtype=torch.float64)
    label = torch.from_numpy(cohort.table["dx"]).double()
    torch.manual_seed(3)
    one_pass = Net(dc.PMDN(cohort.design, 5, gradient="frozen", step=0.25)).double()
    two_pass = Net(dc.AlternatingPMDN(cohort.design, 5)).double()
    two_pass.load_state_dict(one_pass.state_dict(), strict=False)
    parameters = dc.split_parameters(two_pass)
    two_network = torch.optim.SGD(parameters.network, lr=0.1)
    two_beta = torch.optim.SGD(parameters.coefficients, lr=0.25)
    one_network = torch.optim.SGD(one_pass.parameters(), lr=0.1)
    for rows in torch.arange(cohort.n).split(80):
        # Under 1 / λmax the cap of the one-pass step has no part in this.
        white = cohort.metadata[rows] @ torch.from_numpy(cohort.design.whitening)
        assert torch.linalg.eigvalsh(white.T @ white / len(rows))[-1] < 4

        def loss(model, rows=rows):
            logits = model(inputs[rows], cohort.metadata[rows])
            return nn.functional.binary_cross_entropy_with_logits(logits, label[rows])

        one_network.zero_grad()
        loss(one_pass).backward()
        one_network.step()
        dc.alternating_step(two_pass, lambda loss=loss: loss(two_pass), two_network, two_beta)
        torch.testing.assert_close(two_pass.layer.beta.data, one_pass.layer.beta, atol=1e-8, rtol=0)
        for ours, theirs in zip(one_pass.first.parameters(), two_pass.first.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-8, rtol=0)
    assert one_pass.layer.beta.abs().max() > 0.05


def test_penalty_is_half_the_mean_square_summed_over_features(cohort):
    layer = dc.AlternatingPMDN(cohort.design, 5).double()
    with torch.no_grad():
        layer.beta.normal_()
    layer(cohort.features, cohort.metadata)
    white = cohort.metadata.numpy() @ cohort.design.whitening
    fitted = np.column_stack([white, np.ones(cohort.n)]) @ layer.beta.detach().numpy()
    naive = sum(0.5 * np.mean((cohort.features.numpy()[:, j] - fitted[:, j]) ** 2) for j in range(5))
    assert layer.penalty.item() == pytest.approx(naive, rel=1e-12)


def test_task_loss_leaves_beta_alone_and_penalty_leaves_the_network_alone(cohort):
    net = Net(dc.AlternatingPMDN(cohort.design, 5)).double()
    net(torch.randn(cohort.n, 3, dtype=torch.float64), cohort.metadata).sum().backward()
    assert net.layer.beta.grad is None
    assert net.first.weight.grad is not None
    net.first.weight.grad = None
    net.layer.penalty.backward()
    assert net.layer.beta.grad is not None
    assert net.first.weight.grad is None


def test_joint_objective_shrinks_features_and_the_alternation_does_not(cohort):
    """Why the paper alternates: with one objective, smaller features lower the penalty."""
    norms = {}
    for layer in (dc.JointPMDN(cohort.design, 5), dc.AlternatingPMDN(cohort.design, 5)):
        torch.manual_seed(0)
        net = Net(layer).double()
        inputs = torch.randn(cohort.n, 3, dtype=torch.float64)
        start = net.first(inputs).norm().item()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for _ in range(50):
            task = 0.0 * net(inputs, cohort.metadata).sum()
            optimizer.zero_grad()
            (task + layer.penalty).backward()
            optimizer.step()
        norms[type(layer).__name__] = net.first(inputs).norm().item() / start
    assert norms["JointPMDN"] < 0.5
    assert norms["AlternatingPMDN"] == pytest.approx(1.0)


def test_alternating_step_refuses_a_model_without_penalty_layers(cohort):
    net = Net(dc.PMDN(cohort.design, 5))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(dc.errors.OptionError, match="model must hold AlternatingPMDN layers; got none"):
        dc.alternating_step(net, lambda: torch.zeros(()), optimizer, optimizer)


def test_penalty_before_a_forward_says_what_to_do(cohort):
    with pytest.raises(dc.errors.DeconfoundError, match="penalty must follow a training forward"):
        _ = dc.AlternatingPMDN(cohort.design, 5).penalty


def test_non_finite_features_give_beta_no_gradient(cohort):
    layer = dc.AlternatingPMDN(cohort.design, 5).double()
    broken = cohort.features.clone()
    broken[0, 0] = torch.nan
    layer(broken, cohort.metadata)
    layer.penalty.backward()
    assert torch.equal(layer.beta.grad, torch.zeros_like(layer.beta))
    assert layer.skipped == 1
