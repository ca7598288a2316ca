"""What every layer promises, whatever its rule: one contract for the whole family."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load, save
from torch import nn

import deconfound as dc
from deconfound.errors import DeconfoundWarning, ShapeError
from deconfound.layers import AlternatingPMDN, frozen_statistics
from tests import oracles
from tests.helpers import (
    CONFOUNDS,
    LAYERS,
    assert_same_state,
    encode,
    fit_design,
    learn,
    make_people,
    state_of,
)

N = 120
SHAPES = {
    "flat": ((3,), (3,)),
    "per pixel": ((3, 4, 2), (3, 4, 2)),
    "per channel": ((3, 1, 1), (3, 4, 2)),
    "tokens": ((1, 3), (5, 3)),
}


@pytest.fixture(params=LAYERS)
def make(request):
    """Return what makes each kind of layer in turn."""
    return LAYERS[request.param]


@pytest.fixture(scope="module")
def people():
    """Return features, table, design and metadata, all in float32 as users have them."""
    x, table = make_people(N, sites=3)
    design = fit_design(table)
    return x.float(), table, design, torch.from_numpy(design.encode(table))


@pytest.fixture
def layer(people, make):
    """Return a layer of each kind that has learned from all people."""
    x, _, design, metadata = people
    trained = make(design, 3)
    for _ in range(3):
        learn(trained, x, metadata)
    return trained


def spread(x: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
    """Return features of another shape, each a mixture of the three columns of x."""
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(3, *sizes, generator=generator, dtype=torch.float64).to(x.dtype)
    return torch.einsum("nk,k...->n...", x, mix)


# Shapes


@pytest.mark.parametrize(("shape", "sizes"), SHAPES.values(), ids=SHAPES)
def test_the_residual_has_the_shape_and_type_of_the_features(people, make, shape, sizes):
    """In training and evaluation; a gradient of the same shape comes back."""
    x, _, design, metadata = people
    layer = make(design, shape)
    f = spread(x, sizes).requires_grad_()
    for mode in (True, False):
        residual = layer.train(mode)(f, metadata)
        assert (residual.shape, residual.dtype) == (f.shape, f.dtype)
        (gradient,) = torch.autograd.grad(residual.square().mean(), f)
        assert gradient.shape == f.shape
        assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("shape", "sizes"), [((3, 1, 1), (3, 4, 2)), ((1, 3), (5, 3)), ((1, 1), (4, 2))], ids=str
)
def test_a_shared_coefficient_is_that_of_the_mean_over_positions(people, make, shape, sizes):
    """And the same amount is removed at each position."""
    x, table, design, _ = people
    metadata = encode(design, table)
    f = spread(x.double(), sizes)
    axes = [axis for axis, size in enumerate(shape, start=1) if size == 1]
    pooled = f.mean(axes, keepdim=True)
    shared, flat = make(design, shape).double(), make(design, pooled[0].numel()).double()
    for _ in range(3):
        residual = learn(shared, f, metadata)
        expected = f - pooled + learn(flat, pooled.flatten(1), metadata).view_as(pooled)
        torch.testing.assert_close(residual, expected, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(shared.beta, flat.beta, rtol=1e-7, atol=1e-7)


def test_channels_last_images_and_an_in_place_relu(people, make):
    """Neither the memory format nor a following in-place operation changes a number."""
    x, _, design, metadata = people
    images = spread(x, (3, 4, 2))
    plain, other = make(design, (3, 4, 2)), make(design, (3, 4, 2))
    f = images.clone().requires_grad_()
    expected = plain(f, metadata).relu()
    expected.square().mean().backward()
    g = images.clone().contiguous(memory_format=torch.channels_last).requires_grad_()
    actual = nn.ReLU(inplace=True)(other(g, metadata))
    actual.square().mean().backward()
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(g.grad, f.grad, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(other.beta, plain.beta, rtol=1e-5, atol=1e-5)


def test_metadata_may_be_an_array_or_a_tensor(people, make):
    """`design.encode(rows)` can be passed as it is, also as a view with another stride."""
    x, table, design, metadata = people
    layers = [make(design, 3) for _ in range(3)]
    array = np.asfortranarray(design.encode(table))
    for layer, kind in zip(layers, (metadata, array, metadata.double()), strict=True):
        learn(layer, x, kind)
        torch.testing.assert_close(layer.beta, layers[0].beta)


def test_a_design_without_labels(people, make):
    """With an empty `keep`, everything that confounds explain goes."""
    x, table, _, _ = people
    design = fit_design(table, keep=())
    layer = make(design, 3).double()
    for _ in range(100):
        learn(layer, x.double(), encode(design, table))
    residual = layer.eval()(x.double(), encode(design, table)).detach()
    expected = torch.from_numpy(oracles.residual(x, table, CONFOUNDS, ()))
    torch.testing.assert_close(residual, expected, rtol=0, atol=1e-3)


# Evaluation


def test_in_evaluation_one_row_alone_is_the_row_in_its_batch(people, layer):
    """β is constant, and no state changes. The tolerance is rounding of products of other sizes."""
    x, _, _, metadata = people
    layer.eval()
    before = state_of(layer)
    together = layer(x, metadata)
    for row in (0, 7, N - 1):
        alone = layer(x[row : row + 1], metadata[row : row + 1])
        torch.testing.assert_close(alone, together[row : row + 1], rtol=1e-5, atol=1e-5)
    assert_same_state(layer, before)


def test_in_evaluation_labels_change_no_bit(people, layer):
    """Labels enter the fit only: present, absent or changed, the residual is the same.

    Kills: evaluation that reads the label columns.
    """
    x, table, design, metadata = people
    layer.eval()
    expected = layer(x, metadata)
    absent = torch.from_numpy(design.encode(table.drop(columns="label")))
    assert absent.isnan().any()
    changed = metadata.clone()
    changed[:, -1] = 1e30
    for other in (absent, changed):
        torch.testing.assert_close(layer(x, other), expected, rtol=0, atol=0)


def test_vmap_in_evaluation(people, layer):
    """`torch.func.vmap` over several copies of a batch gives what a loop gives."""
    x, _, _, metadata = people
    layer.eval()
    stack = torch.stack([x, 2 * x])
    mapped = torch.func.vmap(lambda f: layer(f, metadata))(stack)
    for actual, f in zip(mapped, stack, strict=True):
        torch.testing.assert_close(actual, layer(f, metadata), rtol=1e-5, atol=1e-5)


def test_frozen_statistics_change_no_state(people, layer):
    """Also nested, and also after an error inside the block."""
    x, _, _, metadata = people
    before = state_of(layer)
    f = x.clone().requires_grad_()
    with frozen_statistics(layer):
        with frozen_statistics(layer):
            layer(x, metadata)
        layer(f, metadata).square().mean().backward()
    with pytest.raises(ShapeError), frozen_statistics(layer):
        layer(x[:2], metadata)
    layer.zero_grad(set_to_none=True)
    assert_same_state(layer, before)
    assert layer.is_updating


def test_rows_and_their_metadata_may_be_mapped(people, layer):
    """`torch.func.vmap` over rows. Kills a check that branches on values."""
    x, _, _, metadata = people
    layer.eval()
    mapped = torch.func.vmap(lambda f, m: layer(f[None], m[None])[0])(x, metadata)
    torch.testing.assert_close(mapped, layer(x, metadata), rtol=1e-5, atol=1e-5)


def test_a_design_that_is_fitted_again_does_not_change_the_layer(people, layer):
    """Kills a layer that shares the user's design: its β belongs to the old columns."""
    x, table, _, metadata = people
    design = copy.copy(layer.design)
    other = type(layer)(design, 3)
    other.load_state_dict(layer.state_dict())
    before = other.eval()(x, metadata)
    design.fit(table.assign(age=table["age"] * 12))
    torch.testing.assert_close(other.float()(x, metadata), before, rtol=0, atol=0)
    assert other.coefficients()["age"].equal(layer.coefficients()["age"])


# What is saved


def test_state_dict_loads_strictly_and_safely_and_learning_goes_on(people, make, layer):
    """Through `torch.load(weights_only=True)` and safetensors; tensors alone are saved."""
    x, _, design, metadata = people
    buffer = io.BytesIO()
    torch.save(layer.state_dict(), buffer)
    buffer.seek(0)
    states = [torch.load(buffer, weights_only=True), load(save(layer.state_dict()))]
    copies = [make(design, 3) for _ in states]
    for other, state in zip(copies, states, strict=True):
        other.load_state_dict(state, strict=True)
        assert_same_state(other, layer.state_dict())
    # The batch size of the first three steps does not matter to the next one.
    expected = learn(layer, x[:5], metadata[:5])
    for other in copies:
        torch.testing.assert_close(learn(other, x[:5], metadata[:5]), expected, rtol=0, atol=0)


def test_a_checkpoint_brings_its_design_and_says_so(people, make, layer):
    """Another table's means and whitening would remove something else without a word.

    Kills: a design that is not replaced, or whose whitening is not.
    """
    x, table, design, _ = people
    other_people = table.assign(age=table["age"] * 1.3 + 2)
    other = make(fit_design(other_people.iloc[:80]), 3)
    with pytest.warns(DeconfoundWarning, match="design of the checkpoint differs"):
        other.load_state_dict(layer.state_dict())
    assert other.design.to_dict() == design.to_dict()
    residual = other.eval()(x, other.design.encode(table))
    torch.testing.assert_close(residual, layer.eval()(x, design.encode(table)), rtol=0, atol=0)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_are_equal_and_independent(people, layer, duplicate):
    """A deep copy or pickle has every number, and what one learns the other does not."""
    x, _, _, metadata = people
    twin = duplicate(layer)
    assert_same_state(twin, layer.state_dict())
    before = state_of(layer)
    learn(twin, 2 * x, metadata)
    assert_same_state(layer, before)
    assert not torch.equal(twin.beta, layer.beta)


# Precision


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_networks_keep_statistics_in_float32(people, make, dtype):
    """Small steps of β vanish in half precision. Features come and go in half precision."""
    x, _, design, metadata = people
    half, full = nn.ModuleList([make(design, 3)]).to(dtype)[0], make(design, 3)
    for _ in range(3):
        residual = learn(half, x.to(dtype), metadata)
        learn(full, x.to(dtype).float(), metadata)
    assert residual.dtype == dtype
    assert half.beta.dtype == torch.float32
    torch.testing.assert_close(half.beta, full.beta)
    assert half.skipped.dtype == torch.int64


def test_autocast_changes_no_statistic(people, make):
    """Products inside the layer stay in float32, in forward and backward."""
    x, _, design, metadata = people
    outside, inside = make(design, 3), make(design, 3)
    for layer, is_on in ((outside, False), (inside, True)):
        f = x.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_on):
            residual = layer(f, metadata)
        residual.square().mean().backward()
        learn(layer, f.grad, metadata)  # β then also shows whether the gradients were the same
    assert_same_state(inside, outside.state_dict())


def test_double_precision_takes_the_design_in_double(people, make):
    """After `.double()` and back the whitening is that of the design, not a rounded one."""
    _, _, design, _ = people
    layer = make(design, 3).half().double()
    assert layer.beta.dtype == torch.float64
    expected = torch.from_numpy(design.whitening)
    torch.testing.assert_close(layer.to_regressors, expected, rtol=0, atol=0)


# Coefficients


def test_coefficients_are_in_the_units_of_the_table(people, make):
    """One year, one mm³, one gram, or another level instead of the reference.

    Kills: coefficients per standard deviation.
    """
    _, table, design, _ = people
    dummies = pd.get_dummies(table[[*CONFOUNDS, "label"]], drop_first=True).astype(float)
    effects = np.array([0.5, 2e-6, 3e3, 1.5, -1.0, 2.0, 4.0])
    f = torch.from_numpy(dummies.to_numpy() @ effects)[:, None] + 3
    layer = make(design, 1).double()
    for _ in range(150):
        learn(layer, f, encode(design, table))
    actual = {name: value.item() for name, value in layer.coefficients().items()}
    names = ["age", "volume", "dose", "site[site B]", "site[site C]", "sex[M]"]
    assert list(actual) == names
    assert list(actual.values()) == pytest.approx(effects[:-1], rel=1e-3)


def test_coefficients_have_the_shape_of_the_layer(people, make):
    """Columns of the design that are constant have no coefficient."""
    _, table, _, _ = people
    table = table.assign(scanner=1.0)
    with pytest.warns(DeconfoundWarning, match="scanner"):
        design = dc.Design(["age", "scanner"], keep=["label"]).fit(table)
    layer = make(design, (3, 1, 1))
    effects = layer.coefficients()
    assert list(effects) == ["age"]
    assert effects["age"].shape == (3, 1, 1)


# The published arm


@pytest.mark.parametrize("kind", ["one pass", "literal"])
def test_the_published_arm_runs(people, kind):
    """LayerNorm before the layer, frozen gradient, no refit: kept beside ours."""
    x, table, design, metadata = people
    norm = AlternatingPMDN(design, 4)
    if kind == "one pass":
        norm = dc.PMDN(design, 4, gradient="frozen", step=0.25)
    model = nn.ModuleList([nn.Linear(3, 4), nn.LayerNorm(4), norm, nn.Linear(4, 1)])
    y = torch.tensor((table["label"] == "case").to_numpy(np.float32))

    def loss() -> torch.Tensor:
        hidden = model[2](model[1](model[0](x)), metadata).relu()
        return nn.functional.binary_cross_entropy_with_logits(model[3](hidden).squeeze(1), y)

    optimizer = torch.optim.SGD([*model[0].parameters(), *model[3].parameters()], lr=0.5)
    before = float(loss().detach())
    for _ in range(60):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        if kind == "literal":
            learn(norm, model[1](model[0](x)), metadata)
    assert float(loss().detach()) < before
