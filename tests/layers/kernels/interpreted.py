"""The kernels' arithmetic on a CPU, through Triton's interpreter; `test_interpreted.py` runs this file.

`TRITON_INTERPRET=1` must stand in the environment before Triton is imported.
"""

import copy
import itertools

import pytest
import torch

import deconfound as dc
from deconfound.layers import torch_private
from deconfound.layers.pmdn import kernels
from deconfound.layers.pmdn.gradient import ImplicitGradient, average, largest_change
from deconfound.layers.pmdn.kernels import launch, ops
from deconfound.layers.pmdn.kernels.tiles import Tile
from deconfound.layers.pmdn.update import constants, descend, moves
from deconfound.layers.whitened import WhitenedBatch

# The interpreter multiplies with NumPy, which warns of what is not finite.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")


@pytest.fixture(autouse=True)
def _interpreted():
    assert kernels.INTERPRETED


TILES = {
    "one block": Tile(64, 16, 4),
    "some blocks": Tile(8, 32, 1),
    "some blocks, the last held": Tile(8, 32, 1, 128, True),
    "whole rows": Tile(4, 64, 1),
}
# The interpreter cuts bfloat16 off where a GPU rounds.
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 6e-3, torch.float16: 1e-3}
# Tiles and types do not act together: each tile with one type, each type with one tile.
TILED = pytest.mark.parametrize(
    ("tile", "dtype"),
    [
        *(pytest.param(tile, torch.float32, id=name) for name, tile in TILES.items()),
        *(pytest.param(TILES["some blocks"], dtype, id=str(dtype)) for dtype in (torch.bfloat16, torch.float16)),
    ],
)


def matrices(n, d, q, confounds, dtype=torch.float32, seed=0):
    rng = torch.Generator().manual_seed(seed)
    features = torch.randn(n, d, generator=rng).to(dtype) + 1
    return features, *(torch.randn(*shape, generator=rng) for shape in ((n, q), (n, confounds), (q, d)))


def error(got, expected):
    return ((got.double() - expected).norm() / expected.norm().clamp(min=1e-30)).item()


def counters():
    return torch.zeros((), dtype=torch.int32), torch.zeros((), dtype=torch.int64)


@TILED
@pytest.mark.parametrize(("n", "d", "q", "confounds"), [(41, 33, 8, 6), (1, 1, 2, 1), (17, 20, 15, 13)])
def test_one_pass_moves_beta_as_torch_does_and_subtracts(tile, dtype, n, d, q, confounds):
    features, regressors, removed, beta = matrices(n, d, q, confounds, dtype)
    wide = [tensor.double() for tensor in (features, regressors, removed, beta)]
    rates = torch.rand(4) / n
    gram = regressors.T @ regressors
    expected, (flag, skipped) = wide[3].clone(), counters()
    batch = WhitenedBatch(wide[2], wide[1])
    needed = (constants(q, expected)[name] for name in ("unit", "own_entry", "entries_above"))
    descend(expected, counters()[1], wide[0], moves(rates.double(), batch, *needed), batch)
    got = launch.move(features, beta, regressors, removed, rates, launch.Descent(gram, flag, skipped), tile=tile)
    assert error(beta, expected) < 1e-6
    assert got.dtype == dtype
    assert error(got, wide[0] - wide[2] @ expected[:confounds]) < ROUNDING[dtype]
    assert skipped == 0


@TILED
@pytest.mark.parametrize(("n", "d", "q"), [(41, 33, 6), (1, 5, 1)])
def test_one_pass_averages_gradients_as_torch_does_and_adds_the_way_through_beta(tile, dtype, n, d, q):
    """Sizes that begin, stay, jump up and jump down, beside one another."""
    gradient, confounds, through, mean = matrices(n, d, q, q, dtype)
    wide = gradient.double()
    usual = wide.square().sum(0, keepdim=True) * n
    square = usual.float()
    square[0, ::4], mean[:, ::4] = 0.0, 0.0
    square[0, 1::4] /= 1e6
    square[0, 2::4] *= 1e5
    expected = ImplicitGradient(mean.double(), square.double())
    share, most = torch.tensor(0.3), largest_change(n)
    average(expected, confounds.double().T @ wide, usual, most, share.double())
    by = launch.Averaging(square, 1 / n, most)
    got = launch.move(gradient, mean, confounds, through, share, by, tile=tile)
    assert error(mean, expected.mean) < 1e-5
    assert error(square, expected.square) < 1e-5
    assert error(got, wide - through.double() @ expected.mean / n) < ROUNDING[dtype]


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize(("n", "d", "q"), [(70, 35, 8), (1, 3, 2), (5, 1, 21)])
def test_the_two_halves_alone(dtype, n, d, q):
    features, regressors, _, beta = matrices(n, d, q, q, dtype)
    wide = features.double()
    assert error(launch.cross(features, regressors), regressors.double().T @ wide) < 1e-6
    got = launch.subtract(features, regressors, beta)
    assert error(got, wide - regressors.double() @ beta.double()) < ROUNDING[dtype]


def test_rows_and_coefficients_may_be_apart_in_memory():
    features, regressors, removed, beta = matrices(12, 40, 4, 3)
    apart = features[::2, :33]
    assert not apart.is_contiguous()
    assert error(launch.cross(apart, regressors[::2]), regressors[::2].double().T @ apart.double()) < 1e-6
    got = launch.subtract(apart, removed[::2], beta[:3, :33])
    assert error(got, apart.double() - removed[::2].double() @ beta[:3, :33].double()) < 1e-6
    across = features.T[:33, :12]
    assert (
        error(
            launch.cross(across, regressors.repeat(3, 1)[:33]),
            regressors.repeat(3, 1)[:33].double().T @ across.double(),
        )
        < 1e-6
    )


def test_a_feature_that_is_not_finite_keeps_its_coefficients_and_counts_once():
    features, regressors, removed, beta = matrices(9, 70, 4, 3)
    features[2, 5] = torch.nan
    features[4, 60] = torch.inf
    before, (flag, skipped) = beta.clone(), counters()
    by = launch.Descent(regressors.T @ regressors, flag, skipped)
    launch.move(features, beta, regressors, removed, torch.full((4,), 0.01), by)
    kept = (beta == before).all(0)
    assert kept.nonzero().ravel().tolist() == [5, 60]
    assert skipped == 1


def test_a_gradient_that_is_not_finite_leaves_its_average_alone():
    gradient, confounds, through, mean = matrices(9, 70, 4, 4)
    gradient[2, 5] = torch.inf
    square = torch.ones(1, 70)
    before = torch.cat([mean, square]).clone()
    by = launch.Averaging(square, 1 / 9, largest_change(9))
    launch.move(gradient, mean, confounds, through, torch.tensor(0.5), by)
    kept = (torch.cat([mean, square]) == before).all(0)
    assert kept.nonzero().ravel().tolist() == [5]


DESIGN = dc.Design(confounds=["age", "site"], keep=["dx"])
TABLE = {
    "age": [61.0, 70.0, 78.0, 55.0, 66.0, 59.0, 73.0, 68.0],
    "site": ["a", "b", "c", "a", "b", "c", "a", "b"],
    "dx": [0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0],
}

LAYERS = {
    "memory": (7, {}),
    "short memory": (45, {"memory": 9.0}),
    "average": (7, {"step": "average"}),
    "fixed": (7, {"step": 0.1}),
    "frozen": (7, {"gradient": "frozen"}),
    "shared": ((3, 4, 2), {"share": "positions"}),
    "images": ((3, 5, 4), {}),
}


def train(layer, shape, dtype, masked=False, last=False, steps=4, break_at=None):
    """Residuals and gradients of some training steps, and the layer's state after them."""
    design = layer.design
    rng = torch.Generator().manual_seed(1)
    seen = []
    for step in range(steps):
        rows = torch.arange(8)[: 8 if step % 2 == 0 else 5]
        metadata = torch.as_tensor(design.encode(TABLE))[rows]
        x = torch.randn(len(rows), *shape, generator=rng) + 2 * metadata[:, :1].reshape(-1, *[1] * len(shape))
        if break_at is not None and step == 2:
            x.view(len(rows), -1)[1, break_at] = torch.inf
        x = x.to(dtype)
        x = x.contiguous(memory_format=torch.channels_last) if last else x
        x.requires_grad_()
        weight = torch.tensor([1.0, 0.0, 2.0, 0.5, 1.5, 1.0, 0.0, 0.7])[rows] if masked else None
        residual = layer(x, metadata, weight=weight)
        weight = torch.randn(residual.shape, generator=rng).to(dtype)
        (residual * weight * metadata[:, :1].reshape(-1, *[1] * len(shape)).to(dtype)).mean().backward()
        seen += [residual.detach(), x.grad]
    return seen, {key: value.clone() for key, value in layer.state_dict().items() if "extra" not in key}


def both(monkeypatch, shape, options, *arguments, **named):
    """The same training by the kernels and by torch."""
    design = DESIGN.fit(TABLE)
    shape = (shape,) if isinstance(shape, int) else shape
    fused = dc.PMDN(design, shape, **options)
    plain = copy.deepcopy(fused)
    calls = []
    monkeypatch.setattr(ops, "call", lambda function, *args: (calls.append(function), function(*args))[1])
    got = train(fused, shape, *arguments, **named)
    assert ops.pmdn_forward in calls
    assert (ops.pmdn_backward in calls) == (options.get("gradient") != "frozen")
    monkeypatch.setattr(kernels, "AVAILABLE", False)
    return got, train(plain, shape, *arguments, **named)


def assert_close(got, expected, **tolerance):
    for one, two in zip(got[0], expected[0], strict=True):
        torch.testing.assert_close(one, two, equal_nan=True, **tolerance)
        assert one.stride() == two.stride() or one.ndim > 2
    for key, value in got[1].items():
        torch.testing.assert_close(value, expected[1][key], msg=lambda text, key=key: f"{key}: {text}", **tolerance)


@pytest.mark.parametrize(
    ("name", "masked"),
    [*((name, False) for name in LAYERS), *((name, True) for name in ("memory", "shared"))],
)
def test_the_layer_trains_as_in_torch(monkeypatch, name, masked):
    got, expected = both(monkeypatch, *LAYERS[name], torch.float32, masked)
    assert_close(got, expected, rtol=2e-4, atol=2e-5)
    assert got[1]["beta"].abs().max() > 0.1


@pytest.mark.parametrize("name", ["images", "shared"])
def test_channels_last_stay_last_and_change_no_number(monkeypatch, name):
    got, expected = both(monkeypatch, *LAYERS[name], torch.float32, last=True)
    assert_close(got, expected, rtol=2e-4, atol=2e-5)
    assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in got[0])


@pytest.mark.parametrize("shape", [(5,), (3, 4, 2)], ids=["rows", "images"])
def test_features_and_gradients_may_lie_in_memory_in_any_way(monkeypatch, shape):
    """A transposed matrix has its columns side by side, and the gradient of a sum one number for all features."""
    design = DESIGN.fit(TABLE)
    metadata = design.encode(TABLE)[:5]
    features = torch.randn(*reversed(shape), 5, generator=torch.Generator().manual_seed(0))
    features = features.permute(*reversed(range(features.ndim)))
    results = []
    for available in (True, False):
        monkeypatch.setattr(kernels, "AVAILABLE", available)
        layer, x = dc.PMDN(design, shape), features.detach().requires_grad_()
        for _ in range(3):
            residual = layer(x, metadata)
            residual.sum().backward()
        results.append([residual, x.grad, layer.beta, layer.gradient_mean])
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
    assert results[0][-1].abs().max() > 0.001


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["memory", "shared"])
def test_half_precision_features_keep_full_precision_statistics(monkeypatch, name, dtype):
    got, expected = both(monkeypatch, *LAYERS[name], dtype)
    assert got[0][0].dtype == dtype
    assert got[1]["beta"].dtype == torch.float32
    assert_close(got, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("name", "place"), [("memory", 3), ("short memory", 43)])
def test_infinite_features_are_skipped_as_in_torch(monkeypatch, name, place):
    got, expected = both(monkeypatch, *LAYERS[name], torch.float32, break_at=place, steps=3)
    assert_close((got[0][:4], got[1]), (expected[0][:4], expected[1]), rtol=2e-4, atol=2e-5)
    assert got[1]["skipped"] == 1
    assert all(torch.isfinite(value).all() for value in got[1].values())
    until, _ = both(monkeypatch.undo() or monkeypatch, *LAYERS[name], torch.float32, steps=2)
    kept = (got[1]["beta"] == until[1]["beta"]).all(0)
    assert kept.nonzero().ravel().tolist() == [place]


def test_with_more_regressors_than_one_program_holds_torch_does_the_step_and_kernels_the_halves(monkeypatch):
    table = {"site": [f"s{number % 20}" for number in range(60)], "age": [float(number) for number in range(60)]}
    design = dc.Design(confounds=["age", "site"]).fit(table)
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    calls, found = [], []
    monkeypatch.setattr(ops, "call", lambda function, *args: (calls.append(function), function(*args))[1])
    for available in (True, False):
        monkeypatch.setattr(kernels, "AVAILABLE", available)
        layer, leaf = dc.PMDN(design, 5), x.clone().requires_grad_()
        layer(leaf, design.encode(table)).square().mean().backward()
        found.append((leaf.grad, layer.beta, layer.gradient_mean))
    assert set(calls) == {ops.cross, ops.subtract}
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", ["MDN", "RMDN", "AlternatingPMDN", "JointPMDN"])
def test_other_layers_use_the_halves(monkeypatch, layer):
    design = DESIGN.fit(TABLE)
    metadata = design.encode(TABLE)
    results = []
    for available in (True, False):
        monkeypatch.setattr(kernels, "AVAILABLE", available)
        torch.manual_seed(0)
        module = getattr(dc, layer)(design, 5)
        x = torch.randn(8, 5, requires_grad=True)
        residual = module(x, metadata)
        (residual**2).sum().backward()
        module.eval()
        results.append([residual, x.grad, module(x, metadata), *(value for value in module.state_dict().values())])
    for one, two in itertools.zip_longest(*results):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_an_exported_program_does_without_the_kernels(cohort, monkeypatch, strict):
    layer = dc.PMDN(cohort.design, 5).eval()
    example = (cohort.features[:8].float(), cohort.metadata[:8].float())

    def ours():
        nodes = torch.export.export(layer, example, strict=strict).graph.nodes
        return [node for node in nodes if "deconfound" in str(node.target)]

    assert not ours()
    monkeypatch.setattr(torch_private, "is_exporting", lambda: False)
    assert ours()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_code_calls_the_operators(cohort, monkeypatch):
    calls = []
    run = launch.move
    monkeypatch.setattr(launch, "move", lambda *args: (calls.append(type(args[5])), run(*args))[1])
    torch._dynamo.reset()
    eager = dc.PMDN(cohort.design, 5)
    layer = copy.deepcopy(eager)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for rows in torch.arange(100).split(50):
        results = []
        for call in (compiled, eager):
            calls.clear()
            x = cohort.features[rows].float().requires_grad_()
            call(x, cohort.metadata[rows].float()).square().mean().backward()
            results.append(x.grad)
            assert calls == [launch.Descent, launch.Averaging]
        torch.testing.assert_close(*results)
    torch.testing.assert_close(layer.beta, eager.beta)
    assert layer.beta.abs().max() > 0.01
