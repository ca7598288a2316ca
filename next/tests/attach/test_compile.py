"""`torch.compile`: one graph for training, one for evaluation, and the numbers of eager mode."""

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import deconfound as dc
from tests.attach.cohort import make_mlp

# Dynamo instantiates each autograd function that it traces, against torch's own advice.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")

LAYERS = ["pmdn", "mdn", "rmdn", "pmdn-alternating"]


@pytest.fixture(autouse=True)
def _fresh_compiler():
    """Compiled code of one test must not serve the next."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def train(model, called, cohort):
    """Train for six steps of equal size; return the losses."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for _ in range(2):
        for inputs, metadata in cohort.batches(40):
            loss = called(inputs, metadata=metadata).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    return torch.stack(losses)


def check_compiled(cohort, layer, backend, make_network=make_mlp, at=("0", "2")):
    """Assert one graph per mode, and outputs and coefficients of eager mode."""
    eager, model = (
        dc.normalize(make_network(), cohort.design, at, cohort.inputs[:2], layer=layer)
        for _ in range(2)
    )
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    losses = train(model, compiled, cohort)
    assert counter.frame_count == 1
    torch.testing.assert_close(losses, train(eager, eager, cohort))
    torch.testing.assert_close(model.state_dict(), eager.state_dict())
    if layer != "pmdn-alternating":
        assert all(part.beta.abs().max() > 1e-3 for part in model.layers.values())

    for part in (model, eager):
        part.eval()
    for inputs, metadata in cohort.batches(40):
        output = compiled(inputs, metadata=metadata)
        torch.testing.assert_close(output, eager(inputs, metadata=metadata))
    assert counter.frame_count == 2


@pytest.mark.parametrize("layer", LAYERS)
def test_compiled_training_equals_eager_training(cohort, layer):
    """Acceptance 13, without code generation. `fullgraph` refuses graph breaks.

    Kills hooks that the compiler skips, buffers whose writes are lost, and a graph per step.
    """
    check_compiled(cohort, layer, "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("layer", LAYERS)
def test_inductor_equals_eager_training(cohort, layer):
    """The same with generated code. Kills writes to buffers that inductor reorders."""
    check_compiled(cohort, layer, "inductor")


def test_convolutions_with_shared_coefficients_compile(cohort):
    """Kills shapes that are read from data."""

    def make_network():
        torch.manual_seed(0)
        return nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.ReLU(inplace=True))

    check_compiled(cohort, "pmdn", "aot_eager", make_network, at="1")


def test_a_compiled_network_with_row_weights(cohort):
    """Kills weights that are dropped or checked by reading values under the compiler."""
    weight = torch.arange(120) % 3 / 2.0
    models = [dc.normalize(make_mlp(), cohort.design, "0", cohort.inputs[:2]) for _ in range(2)]
    compiled = torch.compile(models[1], fullgraph=True, backend="aot_eager")
    for _ in range(2):
        expected = models[0](cohort.inputs, metadata=cohort.metadata, weight=weight)
        output = compiled(cohort.inputs, metadata=cohort.metadata, weight=weight)
    torch.testing.assert_close(output, expected)


def test_normalizing_a_compiled_network_works_or_is_refused(cohort):
    """A compiled network may have dropped its hooks. Kills a layer that is silently never run."""
    compiled = torch.compile(make_mlp(), backend="eager")
    compiled(cohort.inputs[:2])
    model = dc.normalize(compiled, cohort.design, "*0", cohort.inputs[:2])
    model.refit([(cohort.inputs, cohort.metadata)], prior=0)
    line = model.report([(cohort.inputs, cohort.metadata)]).lines[0]
    output = model.eval()(cohort.inputs, metadata=cohort.metadata)
    plain = make_mlp()(cohort.inputs)
    assert line.before > 0.1 > line.after
    assert (output - plain).abs().max() > 0.1
