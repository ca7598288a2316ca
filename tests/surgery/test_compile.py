"""torch.compile without graph breaks: the same numbers as eager, and no recompilation from batch to batch."""

import copy

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import deconfound as dc
from deconfound.errors import DeconfoundError

# Dynamo itself makes an instance of the autograd function while it traces it.
pytestmark = pytest.mark.filterwarnings(
    "ignore:<class 'torch.autograd.function.Function'> should not be:DeprecationWarning"
)

LAYERS = {
    "mdn": {"layer": "mdn"},
    "mdn-batch": {"layer": "mdn", "gram": "batch"},
    "pmdn": {"layer": "pmdn"},
    "pmdn-frozen": {"layer": "pmdn", "gradient": "frozen"},
    "rmdn": {"layer": "rmdn"},
    "layer-norm": {"layer": "pmdn", "layer_norm": True},
}


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    torch._dynamo.reset()


def attach(design, **options):
    network = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1))
    return dc.normalize(network, design, at=["0", "2"], example=torch.zeros(2, 5), **options)


def step(call, model, x, metadata):
    model.zero_grad()
    output = call(x, metadata=metadata)
    output.square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.05 * parameter.grad
    return output.detach()


def assert_same_state(one, two):
    for key, value in one.state_dict().items():
        torch.testing.assert_close(value, two.state_dict()[key], msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("name", LAYERS)
def test_the_whole_graph_compiles_once_for_train_and_once_for_eval(cohort, name):
    eager = attach(cohort.design, **LAYERS[name])
    model = copy.deepcopy(eager)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    x, metadata = cohort.features.float(), cohort.metadata.float()
    for rows in torch.arange(cohort.n).split(50):
        got = step(compiled, model, x[rows], metadata[rows])
        torch.testing.assert_close(got, step(eager, eager, x[rows], metadata[rows]))
    assert counter.frame_count == 1
    assert_same_state(model, eager)
    model.eval()
    eager.eval()
    for rows in torch.arange(cohort.n).split(50):
        with torch.no_grad():
            got, expected = (call(x[rows], metadata=metadata[rows]) for call in (compiled, eager))
        torch.testing.assert_close(got, expected)
    assert counter.frame_count == 2
    assert_same_state(model, eager)


@pytest.mark.parametrize("layer", ["pmdn", "mdn", "rmdn"])
def test_compiled_code_counts_samples_in_double_precision_too(cohort, layer):
    eager = attach(cohort.design, layer=layer).double()
    model = copy.deepcopy(eager)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for rows in torch.arange(cohort.n).split(50):
        for call, of in ((compiled, model), (eager, eager)):
            step(call, of, cohort.features[rows], cohort.metadata[rows])
    assert_same_state(model, eager)
    counter = model.layers["0"].weight if layer == "rmdn" else model.layers["0"].samples
    assert counter > 100


def test_frozen_statistics_hold_in_compiled_code(cohort):
    model = attach(cohort.design)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x, metadata = cohort.features.float(), cohort.metadata.float()
    step(compiled, model, x, metadata)
    before = copy.deepcopy(model.layers.state_dict())
    with model.frozen_statistics():
        compiled(x, metadata=metadata).sum().backward()
    assert all(torch.equal(before[key], value) for key, value in model.layers.state_dict().items())
    step(compiled, model, x, metadata)
    assert not torch.equal(before["0.beta"], model.layers["0"].beta)


def test_numpy_metadata_compile_as_tensors_do(cohort):
    model = attach(cohort.design).eval()
    model.train()(cohort.features.float(), metadata=cohort.metadata)
    model.eval()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x, metadata = cohort.features.float(), cohort.design.encode(cohort.table)
    torch.testing.assert_close(compiled(x, metadata=metadata), model(x, metadata=metadata))


# The C++ compiler takes its time. Inductor imports modules of torch.jit, which is deprecated.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_inductor_gives_the_numbers_of_eager(cohort):
    eager = attach(cohort.design)
    model = copy.deepcopy(eager)
    compiled = torch.compile(model, fullgraph=True)
    x, metadata = cohort.features.float(), cohort.metadata.float()
    for rows in torch.arange(100).split(50):
        got = step(compiled, model, x[rows], metadata[rows])
        torch.testing.assert_close(got, step(eager, eager, x[rows], metadata[rows]), rtol=1e-4, atol=1e-5)
    for path, layer in model.layers.items():
        torch.testing.assert_close(layer.beta, eager.layers[path].beta, rtol=1e-4, atol=1e-5)


def test_layers_that_wait_for_their_first_forward_are_refused_with_the_way_out(cohort):
    model = dc.normalize(nn.Sequential(nn.Linear(5, 8)), cohort.design, at="0")
    x, metadata = cohort.features.float(), cohort.metadata.float()
    with pytest.raises(Exception, match="must exist before the model is compiled or exported"):
        torch.compile(model, fullgraph=True, backend="aot_eager")(x, metadata=metadata)
    with pytest.raises(DeconfoundError, match="Pass example= to normalize, or call the model once before"):
        torch.export.export(model, (x,), {"metadata": metadata})
    model(x, metadata=metadata)
    torch._dynamo.reset()
    assert torch.compile(model, fullgraph=True, backend="aot_eager")(x, metadata=metadata).shape == (400, 8)
