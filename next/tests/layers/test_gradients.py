"""What the network's gradient sees: β as a function of the features, or as a constant."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import deconfound as dc
from deconfound.layers import AlternatingPMDN, frozen_statistics
from tests import oracles
from tests.helpers import (
    Mlp,
    assert_same_state,
    encode,
    fit_design,
    make_people,
    random_weights,
    state_of,
)

N = 120
# A memory of one sample makes both averages follow the last full batch, and converge quickly.
CONVERGED = 110


@pytest.fixture(scope="module")
def people():
    """Return features, row weights of mean 1, and a design fitted under these weights."""
    x, table = make_people(N)
    weight = np.random.default_rng(0).uniform(0.2, 2.0, N)
    weight /= weight.mean()
    return x, table, torch.from_numpy(weight)


def white_columns(design: dc.Design, metadata: Tensor) -> tuple[Tensor, Tensor]:
    """Return C `(n, q_C)` and R `(n, q)` of encoded metadata."""
    columns, directions = len(design.confound_columns), design.confound_directions
    c = oracles.white_confounds(metadata, design.whitening, columns, directions)
    return c, oracles.white_regressors(metadata, design.whitening)


def curved_loss(output: Tensor) -> Tensor:
    """Return a loss whose gradient differs between rows and is associated with the confounds."""
    target = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)
    return (output - target).sin().square().mean()


def converged_gradients(
    parameters: list[Tensor], compute_loss: Callable[[], Tensor], scale: float = 1.0
) -> list[Tensor]:
    """Return gradients after many passes over the same batch with constant weights."""
    for _ in range(CONVERGED):
        gradients = torch.autograd.grad(scale * compute_loss(), parameters)
    return list(gradients)


@pytest.mark.parametrize("mean_weight", [None, 1.0, 3.0, 0.7])
def test_bilevel_gradient_is_autograd_through_the_closed_form_in_all_layers(people, mean_weight):
    """With β and S converged on a white batch, both gradients agree to 1e-8.

    Kills: a missing 1/Σw, or 1/n in its place; rows of another order in backward; a weight ignored
    in the fit or in backward; S from the part of the confounds that labels leave. Control: with
    frozen β the gradient is another one.
    """
    x, table, weight = people
    is_weighted = mean_weight is not None
    weight = weight * (mean_weight or 1.0)
    design = dc.Design(["age", "dose", "sex"], keep=["label"])
    design.fit(table, weight.numpy() if is_weighted else None)
    metadata = encode(design, table)
    weight = weight if is_weighted else None
    weights = random_weights(3, 4, 5, 2)

    c, r = white_columns(design, metadata)
    plain = [matrix.clone().requires_grad_() for matrix in weights]
    h = x
    for matrix in plain[:-1]:
        h = oracles.closed_form(h @ matrix, c, r, weight).tanh()
    expected = torch.autograd.grad(curved_loss(h @ plain[-1]), plain)

    for gradient, agrees in (("bilevel", True), ("frozen", False)):
        model = Mlp(weights, lambda d, g=gradient: dc.PMDN(design, d, gradient=g, memory=1.0))
        model = model.double()
        parameters = list(model.maps)
        actual = converged_gradients(
            parameters, lambda m=model: curved_loss(m(x, metadata, weight))
        )
        for ours, oracle in zip(actual[:-1], expected[:-1], strict=True):
            error = float((ours - oracle).norm() / oracle.norm())
            assert error < 1e-8 if agrees else error > 1e-2


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [((4, 3, 2), (4, 1, 1)), ((5, 3), (1, 3)), ((4, 3), (4, 3)), ((6, 2), (1, 1))],
    ids=["per channel", "tokens", "per feature", "one for all"],
)
def test_bilevel_gradient_of_shared_coefficients(people, sizes, shape):
    """A shared coefficient is that of the mean over its positions.

    Kills: not dividing by the number of positions.
    """
    x, table, _ = people
    design = fit_design(table)
    metadata = encode(design, table)
    mix = torch.randn(3, *sizes, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    images = torch.einsum("nk,k...->n...", x, mix).requires_grad_()
    c, r = white_columns(design, metadata)
    axes = [axis for axis, size in enumerate(shape, start=1) if size == 1]
    pooled = images.mean(axes, keepdim=True) if axes else images
    removed = pooled - oracles.closed_form(pooled.flatten(1), c, r).view(N, *shape)
    (expected,) = torch.autograd.grad(curved_loss(images - removed), images)

    layer = dc.PMDN(design, shape, memory=1.0).double()
    (actual,) = converged_gradients([images], lambda: curved_loss(layer(images, metadata)))
    torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-10)


def test_mdn_differentiates_through_its_fit(people):
    """Control for the oracle: MDN needs no convergence."""
    x, table, _ = people
    design = fit_design(table)
    metadata = encode(design, table)
    c, r = white_columns(design, metadata)
    f = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(curved_loss(oracles.closed_form(f, c, r)), f)
    for gram in ("training", "batch"):
        layer = dc.MDN(design, 3, gram=gram).double()
        (actual,) = torch.autograd.grad(curved_loss(layer(f, metadata)), f)
        torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("layer_type", [dc.RMDN, AlternatingPMDN], ids=lambda kind: kind.__name__)
def test_the_gradient_of_layers_with_constant_coefficients_passes_unchanged(people, layer_type):
    """The residual is f plus a constant. Neither β nor the fit has a part in it.

    Kills: β that is not detached from the task loss.
    """
    x, table, _ = people
    design = fit_design(table)
    layer = layer_type(design, 3).double()
    f = x.clone().requires_grad_()
    metadata = encode(design, table)
    layer(f, metadata)
    upstream = torch.randn(N, 3, dtype=torch.float64)
    layer(f, metadata).backward(upstream)
    torch.testing.assert_close(f.grad, upstream, rtol=0, atol=0)
    assert layer.beta.grad is None


def test_the_penalty_of_algorithm_1_reaches_the_coefficients_alone(people):
    """Kills: features that are not detached in the penalty."""
    x, table, _ = people
    design = fit_design(table)
    model = Mlp(random_weights(3, 4, 1), lambda d: AlternatingPMDN(design, d)).double()
    model(x, encode(design, table))
    model.norms[0].penalty.backward()
    assert float(model.norms[0].beta.grad.abs().max()) > 0
    assert all(matrix.grad is None for matrix in model.maps)


# The scale of the loss


@pytest.mark.parametrize("factor", [1000.0, 1e-3, -1000.0])
def test_a_loss_times_1000_gives_gradients_times_1000_at_once(people, factor):
    """A new weight of the loss changes nothing but the size of the gradient.

    Kills: S that is not rescaled when the scale of the loss jumps. For a negative factor only the
    size can be followed at once, so that one more average is allowed.
    """
    x, table, _ = people
    design = fit_design(table)
    metadata = encode(design, table)
    layer = dc.PMDN(design, 3, memory=1.0).double()
    f = x.clone().requires_grad_()
    (before,) = converged_gradients([f], lambda: curved_loss(layer(f, metadata)))
    passes = 1 if factor > 0 else CONVERGED
    for _ in range(passes):
        (after,) = torch.autograd.grad(factor * curved_loss(layer(f, metadata)), f)
    torch.testing.assert_close(after, factor * before, rtol=1e-6, atol=1e-9 * abs(factor))


def test_a_gradient_of_zero_does_not_change_the_scale(people):
    """Behind a ReLU that is off the gradient is zero, and the loss is as before.

    Kills: an average of squares that forgets the scale, so that the next gradient is one of 300.
    """
    x, table, _ = people
    metadata = encode(fit_design(table), table)
    layers = [dc.PMDN(fit_design(table), 3).double() for _ in range(2)]
    for layer in layers:
        for _ in range(5):
            layer(x.clone().requires_grad_(), metadata).square().mean().backward()
    squares = layers[0].mean_square.clone()
    (0 * layers[0](x.clone().requires_grad_(), metadata)).sum().backward()
    torch.testing.assert_close(layers[0].mean_square, squares, rtol=0, atol=0)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_gradient_that_is_not_finite_leaves_no_trace(people, value):
    """A step that GradScaler skips leaves S of that feature as it was; the others go on."""
    x, table, _ = people
    design = fit_design(table)
    metadata = encode(design, table)
    layer = dc.PMDN(design, 3).double()
    f = x.clone().requires_grad_()
    curved_loss(layer(f, metadata)).backward()
    before = state_of(layer)
    upstream = torch.ones_like(f) / N
    upstream[0, 0] = value
    layer(f, metadata).backward(upstream)
    for name in ("cross_moment", "mean_square"):
        moved = (layer.state_dict()[name] - before[name]).abs().view(-1, 3).amax(0)
        assert (moved > 0).tolist() == [False, True, True]
    f.grad = None
    curved_loss(layer(f, metadata)).backward()
    assert f.grad.isfinite().all()


def test_a_short_last_batch_hardly_moves_what_is_removed(people):
    """Two rows count for two samples of the memory, in β and in S.

    Kills: averages that count batches instead of samples; a mean gradient that is not brought to
    the scale of one row.
    """
    x, table, _ = people
    design = fit_design(table)
    metadata = encode(design, table)
    layer = dc.PMDN(design, 3, memory=250.0).double()
    upstream = torch.randn(N, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    f = x.clone().requires_grad_()
    for _ in range(20):
        layer(f, metadata).backward(upstream / N)
    residual, cross_moment = layer.eval()(x, metadata), layer.cross_moment.clone()

    layer.train()(f[:2], metadata[:2]).backward(upstream[:2] / 2)
    c, _ = white_columns(design, metadata[:2])
    newest = c.T @ upstream[:2] / 2  # the mean over rows of c times the row's own gradient
    share = 2 / (250 + 2 + 300)  # of what is in memory, these rows, and 300 rows of zeros
    expected = cross_moment + share * (newest - cross_moment)
    torch.testing.assert_close(layer.cross_moment, expected, rtol=1e-9, atol=1e-12)
    moved = (layer.eval()(x, metadata) - residual).norm() / (x - residual).norm()
    assert float(moved) < 0.05


def test_frozen_statistics_give_the_gradient_of_a_constant(people):
    """Neither forward nor backward changes the state, and learning is switched on again."""
    x, table, _ = people
    design = fit_design(table)
    metadata = encode(design, table)
    layer = dc.PMDN(design, 3).double()
    layer(x, metadata)
    before = state_of(layer)
    f = x.clone().requires_grad_()
    upstream = torch.randn(N, 3, dtype=torch.float64)
    with frozen_statistics(nn.ModuleList([layer])):
        layer(f, metadata).backward(upstream)
    assert_same_state(layer, before)
    torch.testing.assert_close(f.grad, upstream, rtol=0, atol=0)
    assert layer.is_updating


def weight_norm_after_training(gradient: str, seed: int) -> float:
    """Return ‖W‖ after 250 steps where 95 % of people have the site that their label suggests.

    One input carries the site almost without noise, one the label with much noise.
    """
    n, rng = 400, np.random.default_rng(seed)
    is_case = np.arange(n) % 2
    site = np.where(rng.random(n) < 0.95, is_case, 1 - is_case)
    table = {"site": np.array(["A", "B"])[site], "label": np.array(["CN", "AD"])[is_case]}
    design = dc.Design(["site"], keep=["label"]).fit(table)
    metadata = encode(design, table)
    noise = rng.normal(size=(n, 3)) * [0.05, 2.0, 1.0]
    x = torch.from_numpy(noise + np.column_stack([site, is_case, np.zeros(n)]) - [0.5, 0.5, 0])
    y = torch.from_numpy(is_case.astype(float))
    weight = torch.zeros(3, 1, dtype=torch.float64, requires_grad=True)
    layer = dc.PMDN(design, 1, gradient=gradient).double()
    optimizer = torch.optim.Adam([weight], lr=0.05)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(250):
        rows = torch.randint(n, (50,), generator=generator)
        score = layer(x[rows] @ weight, metadata[rows]).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(score, y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(weight.detach().norm())


def test_features_run_away_under_the_frozen_gradient_but_not_by_default():
    """Kills: the wrong sign of S; not using S."""
    for seed in range(2):
        assert weight_norm_after_training("frozen", seed) > 8
        assert weight_norm_after_training("bilevel", seed) < 4
