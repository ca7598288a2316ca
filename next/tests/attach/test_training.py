"""What training loops do besides forward and backward: AMP, accumulation, checkpoints."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import deconfound as dc
from deconfound.attach import collect
from deconfound.errors import StateError
from deconfound.layers import frozen_statistics
from tests.attach.cohort import make_mlp

# Torch warns whenever a checkpointed network runs without gradients, as on an example.
WITHOUT_WARNING = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")


class Checkpointed(nn.Module):
    """An MLP whose hidden part runs under activation checkpointing, or plainly."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        self.stem = nn.Linear(6, 8)
        self.block = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.stem(x)
        if self.kind == "plain":
            hidden = self.block(hidden)
        else:
            hidden = checkpoint(self.block, hidden, use_reentrant=self.kind == "reentrant")
        return self.head(hidden)


def make_checkpointed(cohort, kind, layer="pmdn"):
    """Return a model with layers inside and outside the checkpointed block."""
    at = ["stem", "block.0", "block.2"]
    return dc.normalize(Checkpointed(kind), cohort.design, at, cohort.inputs[:2], layer=layer)


def loss_of(model, cohort, rows):
    """Return the task loss on some rows."""
    logits = model(cohort.inputs[rows], metadata=cohort.metadata[rows])[:, 0]
    return nn.functional.binary_cross_entropy_with_logits(logits, cohort.target[rows])


def assert_same_gradients(model, other):
    """Assert that two models have the same gradients, and have some."""
    for parameter, twin in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, twin.grad, atol=1e-6, rtol=1e-4)
        assert parameter.grad.abs().sum() > 0


FIRST, SECOND = slice(0, 50), slice(50, 80)


def backward_in_order(model, cohort):
    """Two forwards before the first backward."""
    losses = [loss_of(model, cohort, rows) for rows in (FIRST, SECOND)]
    for loss in losses:
        loss.backward()


def backward_in_reverse(model, cohort):
    """Two forwards, and the second batch's backward comes first."""
    losses = [loss_of(model, cohort, rows) for rows in (FIRST, SECOND)]
    for loss in reversed(losses):
        loss.backward()


def backward_of_a_sum(model, cohort):
    """Two forwards and one backward through both."""
    (loss_of(model, cohort, FIRST) + 0.5 * loss_of(model, cohort, SECOND)).backward()


@WITHOUT_WARNING
@pytest.mark.parametrize("layer", ["pmdn", "mdn", "rmdn"])
@pytest.mark.parametrize("kind", ["reentrant", "not reentrant"])
def test_activation_checkpointing_changes_nothing(cohort, kind, layer):
    """Coefficients, counts and gradients are those of the plain network, over two steps.

    Kills a repeated forward pass that learns from its batch again, or that finds no metadata.
    """
    models = [make_checkpointed(cohort, name, layer) for name in ("plain", kind)]
    for model in models:
        for rows in (FIRST, SECOND):
            loss_of(model, cohort, rows).backward()
    assert_same_gradients(*models)
    torch.testing.assert_close(*[model.state_dict() for model in models])


@WITHOUT_WARNING
@pytest.mark.parametrize("layer", ["pmdn", "mdn", "rmdn"])
@pytest.mark.parametrize("kind", ["reentrant", "not reentrant"])
@pytest.mark.parametrize("run", [backward_in_order, backward_in_reverse, backward_of_a_sum])
def test_repeated_forward_passes_use_the_metadata_of_their_own_batch(cohort, kind, run, layer):
    """Two forward passes come before the first backward.

    Their batches differ in length. Kills a repeated pass with the metadata of the newest batch.
    Gradients are compared with β at rest, because a repeated pass uses the newest β.
    """
    models = [make_checkpointed(cohort, name, layer) for name in ("plain", kind)]
    for model in models:
        model.refit(cohort.batches(120), prior=0)
        with frozen_statistics(model):
            run(model, cohort)
    assert_same_gradients(*models)
    for model in models:
        run(model, cohort)
    betas = [[part.beta for part in model.layers.values()] for model in models]
    torch.testing.assert_close(*betas)


@WITHOUT_WARNING
@pytest.mark.parametrize("kind", ["reentrant", "not reentrant"])
def test_gradients_in_evaluation_pass_checkpoints(cohort, kind):
    """Saliency maps need them. Kills recomputation that finds no metadata outside training."""
    gradients = []
    for name in ("plain", kind):
        model = make_checkpointed(cohort, name)
        loss_of(model, cohort, FIRST)
        loss_of(model.eval(), cohort, FIRST).backward()
        gradients.append(model.network.stem.weight.grad)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("layer", ["pmdn", "mdn", "rmdn", "pmdn-alternating"])
def test_autocast_to_bfloat16_learns_the_same_coefficients(cohort, layer):
    """bfloat16 keeps 8 bits: features are off by 2⁻⁹ of their size. Kills β in half precision."""
    models, outputs = [], []
    for is_autocast in (False, True):
        model = dc.normalize(make_mlp(), cohort.design, "0", cohort.inputs[:2], layer=layer)
        for _ in range(20):
            with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
                output = model(cohort.inputs, metadata=cohort.metadata)
            output.float().square().mean().backward()
        with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
            model.refit(cohort.batches(120), prior=30)
        models.append(model)
        outputs.append(output)
    assert outputs[1].dtype == torch.bfloat16
    assert models[1].layers["0"].beta.dtype == torch.float32
    betas = [model.layers["0"].beta.detach() for model in models]
    torch.testing.assert_close(betas[1], betas[0], atol=0.01, rtol=0)
    assert betas[0].abs().max() > 0.3


@pytest.mark.parametrize("layer", ["pmdn", "mdn", "rmdn"])
def test_a_step_that_a_gradient_scaler_skips_leaves_no_trace(cohort, layer):
    """The loss overflows once, and the scale halves. Kills NaN or scaled gradients in the state."""
    models = []
    for overflows in (False, True):
        model = dc.normalize(make_mlp(), cohort.design, "0", cohort.inputs[:2], layer=layer)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        for step in range(12):
            factor = torch.inf if overflows and step == 6 else 1.0
            optimizer.zero_grad()
            scaler.scale(loss_of(model, cohort, FIRST) * factor).backward()
            if overflows or step != 6:  # the other model leaves this step out by hand
                scaler.step(optimizer)
                scaler.update()
        assert scaler.get_scale() == (2.0**9 if overflows else 2.0**10)
        models.append(model)
    for parameter, twin in zip(*[model.parameters() for model in models], strict=True):
        torch.testing.assert_close(parameter, twin, atol=1e-2, rtol=0)
    for value in models[1].state_dict().values():
        assert value.isfinite().all()
    betas = [model.layers["0"].beta for model in models]
    torch.testing.assert_close(*betas, atol=1e-2, rtol=0)


def test_accumulated_gradients_are_the_sum_over_micro_batches(cohort):
    """Kills a layer that keeps a graph, or learns, across the batches of one step."""
    model = dc.normalize(make_mlp(), cohort.design, ["0", "2"], cohort.inputs[:2])
    total = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for rows in torch.arange(120).split(30):
        alone = copy.deepcopy(model)
        alone.zero_grad()
        for each in (model, alone):
            (loss_of(each, cohort, rows) / 4).backward()
        for value, parameter in zip(total, alone.parameters(), strict=True):
            value += parameter.grad
    for value, parameter in zip(total, model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, value)


@pytest.mark.parametrize("layer", ["pmdn", "mdn", "rmdn", "pmdn-alternating"])
def test_a_first_batch_of_one_sample_and_an_in_place_relu(cohort, layer):
    """Kills an output that shares memory with what backward or the network still needs."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))
    model = dc.normalize(network, cohort.design, ["0", "1", "2"], cohort.inputs[:2], layer=layer)
    for rows in (slice(0, 1), FIRST):
        loss_of(model, cohort, rows).backward()
    for parameter in network.parameters():
        assert parameter.grad.isfinite().all()


@WITHOUT_WARNING
def test_a_loss_that_bypasses_the_output_is_refused_under_checkpointing(cohort):
    """Backward then repeats the block before it has brought the batch along.

    Kills a repeated pass with the batch of an earlier backward.
    """
    model = make_checkpointed(cohort, "not reentrant")
    loss_of(model, cohort, FIRST).backward()
    with collect(model, "block", detach=False) as collector:
        loss_of(model, cohort, SECOND)
    with pytest.raises(StateError, match="before it has reached the output"):
        collector.features().square().mean().backward()
