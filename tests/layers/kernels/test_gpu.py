"""The kernels on a GPU: exact, the same in a captured graph, and the same as torch in training."""

import copy

import pytest
import torch

import deconfound as dc
from deconfound.layers.pmdn import kernels
from deconfound_lab.benchmarks import layers as checked

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and kernels.AVAILABLE), reason="needs a GPU and Triton, with the kernels switched on"
)


def test_every_kernel_is_exact_against_float64():
    for row in checked.check("cuda"):
        assert row["beta"] < 1e-6, row
        assert max(row["residual"], row["eval"]) < row["allowed"], row


def train(model, cohort, replay=None):
    """Some steps on batches of one size; with `replay` from tensors that a graph reads."""
    x, metadata = torch.empty(50, 5, device="cuda"), torch.empty(50, cohort.metadata.shape[1], device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def step():
        optimizer.zero_grad(set_to_none=True)
        model(x, metadata=metadata).square().mean().backward()
        optimizer.step()

    batches = torch.arange(cohort.n).split(50)[:6]
    run = step
    for index, rows in enumerate(batches):
        x.copy_(cohort.features[rows])
        metadata.copy_(cohort.metadata[rows])
        if replay and index == 2:  # two steps have compiled every kernel
            graph = torch.cuda.CUDAGraph()
            before = copy.deepcopy(model.state_dict())
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                step()
            torch.cuda.current_stream().wait_stream(stream)
            with torch.cuda.graph(graph):
                step()
            model.load_state_dict(before)
            run = graph.replay
        run()
    return model.state_dict()


@pytest.mark.parametrize("layer", ["pmdn", "mdn", "rmdn"])
def test_a_captured_training_step_learns_what_an_eager_one_learns(cohort, layer):
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    model = dc.normalize(network, cohort.design, at=["0", "2"], layer=layer, example=torch.zeros(2, 5)).cuda().train()
    twin = copy.deepcopy(model)
    expected, got = train(model, cohort), train(twin, cohort, replay=True)
    assert expected["layers.0.beta"].abs().max() > 0.01
    for key, value in expected.items():
        torch.testing.assert_close(got[key], value, rtol=1e-4, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("features", [84, 5003])
def test_the_layer_trains_as_in_torch(cohort, monkeypatch, features, dtype):
    results = []
    for available in (True, False):
        monkeypatch.setattr(kernels, "AVAILABLE", available)
        torch.manual_seed(0)
        layer = dc.PMDN(cohort.design, features).cuda()
        for rows in torch.arange(cohort.n).split(130):
            x = torch.randn(len(rows), features, device="cuda").to(dtype).requires_grad_()
            residual = layer(x, cohort.metadata[rows].float().cuda())
            (residual * cohort.metadata[rows, :1].cuda().to(dtype)).mean().backward()
        results.append((residual, x.grad, layer.beta, layer.gradient_mean))
    tolerance = {"rtol": 1e-3, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 1e-2}
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, **tolerance)


def test_many_equal_steps_end_in_equal_states(cohort):
    """No program reads what another writes, and all sums have a fixed order: a race would show."""
    layer = dc.PMDN(cohort.design, 2047).cuda().train()
    metadata = cohort.metadata[:100].float().cuda()
    x = torch.randn(100, 2047, device="cuda", generator=torch.Generator("cuda").manual_seed(0)) + metadata[:, :1]
    start, first = copy.deepcopy(layer.state_dict()), None
    for _ in range(200):
        layer.load_state_dict(start)
        leaf = x.clone().requires_grad_()
        layer(leaf, metadata).square().mean().backward()
        state = {name: value.clone() for name, value in layer.state_dict().items()}
        first = first or state
        assert all(torch.equal(state[name], value) for name, value in first.items())
    assert first["samples"] == 100


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_images_train_as_in_torch(cohort, monkeypatch, last):
    """Features are written just before the layer reads them, in either order of memory."""
    layout = torch.channels_last if last else torch.contiguous_format
    metadata = cohort.metadata[:64].float().cuda()
    results = []
    for available in (True, False):
        monkeypatch.setattr(kernels, "AVAILABLE", available)
        layer, rng = dc.PMDN(cohort.design, (64, 60, 60)).cuda(), torch.Generator("cuda").manual_seed(0)
        for step in range(20):
            x = torch.randn(64, 64, 60, 60, device="cuda", generator=rng)
            x = (x + step / 10 * metadata[:, :1, None, None]).contiguous(memory_format=layout).requires_grad_()
            residual = layer(x, metadata)
            (residual * metadata[:, :1, None, None]).square().mean().backward()
        results.append([residual.detach(), x.grad, layer.beta, layer.samples])
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-5)
    assert layer.beta.abs().max() > 0.1


@pytest.mark.parametrize("weighted", [False, True])
def test_a_training_step_makes_no_host_wait(cohort, weighted):
    """Reading a number back would stall eager code, and break a graph's capture."""
    network = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    model = dc.normalize(network, cohort.design, at=["0", "2"], layer="pmdn", example=torch.zeros(2, 5)).cuda().train()
    x, metadata = cohort.features[:50].float().cuda(), cohort.metadata[:50].float().cuda()
    weight = torch.rand(50, device="cuda") if weighted else None
    for strict in (False, True):
        torch.cuda.set_sync_debug_mode("error" if strict else "default")
        try:
            model(x, metadata=metadata, weight=weight).square().mean().backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert model.layers["0"].samples > 0


def test_compiled_code_uses_the_kernels(cohort):
    layer = dc.PMDN(cohort.design, 5).cuda()
    x, metadata = cohort.features[:50].float().cuda().requires_grad_(), cohort.metadata[:50].float().cuda()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        torch.compile(layer, fullgraph=True)(x, metadata).square().mean().backward()
        torch.cuda.synchronize()
    assert sum(event.count for event in profile.key_averages() if "move_and_subtract" in event.key) == 2
