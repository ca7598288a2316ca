"""Distance correlation against the `dcor` package, against its definition, and at its edges."""

import numpy as np
import pytest
import torch

from deconfound import metrics
from deconfound.errors import ShapeError
from deconfound.metrics.pairs import pair_sums
from deconfound.metrics.sorted_pairs import sorted_pair_sums

ESTIMATORS = [
    "distance_correlation_sqr",
    "distance_covariance_sqr",
    "u_distance_correlation_sqr",
    "u_distance_covariance_sqr",
]
SHAPES = [(40, 1, 1), (157, 3, 2), (200, 64, 3), (2500, 1, 1), (150, 1, 20)]


def dependent(n, d, q, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) * rng.uniform(0.1, 20, size=d) + 50
    y = np.sin(x[:, :1]) + rng.normal(size=(n, q))
    return x, y


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(("n", "d", "q"), SHAPES)
def test_every_estimator_agrees_with_the_dcor_package_to_1e_8(estimator, n, d, q):
    dcor = pytest.importorskip("dcor", reason="the dcor package, the oracle of this test, is not installed")
    x, y = dependent(n, d, q)
    expected = getattr(dcor, estimator)(x, y)
    found = float(getattr(metrics, estimator)(x, y, block=64))
    assert found == pytest.approx(expected, abs=1e-8, rel=1e-8)


def test_squared_distance_correlation_is_what_statsmodels_computes():
    stats = pytest.importorskip("statsmodels.stats.dist_dependence_measures", reason="statsmodels is absent")
    x, y = dependent(200, 5, 3)
    expected = stats.distance_correlation(x, y) ** 2
    assert float(metrics.distance_correlation_sqr(x, y)) == pytest.approx(expected, abs=1e-10)


def test_bias_corrected_form_is_the_inner_product_of_u_centred_matrices():
    x, y = (torch.from_numpy(side) for side in dependent(30, 4, 2))

    def centred(side):
        n = len(side)
        a = torch.stack([(side - row).norm(dim=1) for row in side])
        out = torch.zeros_like(a)
        for i in range(n):
            for j in range(n):
                if i != j:
                    rows = a[i].sum() / (n - 2) + a[:, j].sum() / (n - 2)
                    out[i, j] = a[i, j] - rows + a.sum() / ((n - 1) * (n - 2))
        return out

    a, b = centred(x), centred(y)
    expected = (a * b).sum() / ((a * a).sum() * (b * b).sum()).sqrt()
    torch.testing.assert_close(metrics.u_distance_correlation_sqr(x, y), expected)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n", [1, 2, 5, 64, 1000, 1025])
def test_sorting_gives_the_sums_that_visiting_every_pair_gives(n, ties):
    rng = torch.Generator().manual_seed(n)
    x, y = torch.randn(2, n, generator=rng, dtype=torch.float64)
    x, y = (x.round(decimals=1), (y + x).round(decimals=0)) if ties else (x, y + x)
    sorted_sums, every_pair = sorted_pair_sums(x, y), pair_sums(x[:, None], y[:, None])
    for name in ("ab", "aa", "bb", "a_rows", "b_rows"):
        torch.testing.assert_close(getattr(sorted_sums, name), getattr(every_pair, name), rtol=1e-11, atol=1e-9)


@pytest.mark.parametrize("block", [19, 50, 1000])
def test_the_block_size_does_not_change_the_value(block):
    x, y = dependent(211, 20, 2)
    whole, in_blocks = (metrics.u_distance_correlation_sqr(x, y, block=side) for side in (None, block))
    torch.testing.assert_close(whole, in_blocks, rtol=0, atol=1e-12)


def test_float32_agrees_with_float64_also_far_from_the_origin():
    x, y = (torch.from_numpy(side) for side in dependent(500, 40, 3))
    exact = metrics.u_distance_correlation_sqr(x, y)
    single = metrics.u_distance_correlation_sqr(x.float(), y.float())
    assert single.dtype == torch.float32
    assert float(single) == pytest.approx(float(exact), abs=1e-5)


def test_tf32_products_do_not_reach_the_distances():
    x, y = (torch.from_numpy(side).float() for side in dependent(100, 40, 3))
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        lowered = metrics.u_distance_correlation_sqr(x, y)
    finally:
        torch.set_float32_matmul_precision(before)
    torch.testing.assert_close(lowered, metrics.u_distance_correlation_sqr(x, y), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("d", [1, 3, 20])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_gradient_is_the_derivative(estimator, d):
    rng = torch.Generator().manual_seed(d)
    x = torch.randn(9, d, generator=rng, dtype=torch.float64, requires_grad=True)
    y = torch.randn(9, 2, generator=rng, dtype=torch.float64, requires_grad=True)
    function = getattr(metrics, estimator)
    assert torch.autograd.gradcheck(lambda a, b: function(a, b, block=4), (x, y), fast_mode=True)


@pytest.mark.parametrize("d", [1, 20])
def test_gradient_is_finite_at_ties_and_equal_rows_get_equal_gradients(d):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(30, d, generator=rng).repeat(2, 1).requires_grad_()
    y = torch.randn(30, generator=rng).repeat(2)
    metrics.u_distance_correlation_sqr(x, y).backward()
    assert x.grad.isfinite().all()
    torch.testing.assert_close(x.grad[:30], x.grad[30:], atol=1e-5, rtol=1e-3)
    assert x.grad.abs().max() > 0


def test_minimising_it_removes_the_confound():
    rng = torch.Generator().manual_seed(0)
    confound = torch.randn(200, generator=rng)
    features = torch.stack([confound, torch.randn(200, generator=rng)], dim=1)
    shift = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.Adam([shift], lr=0.05)
    before = float(metrics.u_distance_correlation_sqr(features, confound))
    for _ in range(100):
        loss = metrics.u_distance_correlation_sqr(features - confound[:, None] * shift, confound)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert before > 0.4
    assert loss.item() < 0.02


def test_it_sees_dependence_that_no_linear_correlation_sees():
    x = torch.linspace(-1, 1, 401, dtype=torch.float64)
    assert abs(float(metrics.pearson(x, x**2))) < 1e-12
    assert float(metrics.u_distance_correlation_sqr(x, x**2)) > 0.2


def test_bias_corrected_form_has_mean_zero_for_independent_rows_in_high_dimension_and_the_biased_has_not():
    rng = torch.Generator().manual_seed(0)
    corrected, biased = [], []
    for _ in range(200):
        x, y = torch.randn(30, 50, generator=rng), torch.randn(30, 2, generator=rng)
        corrected.append(metrics.u_distance_correlation_sqr(x, y))
        biased.append(metrics.distance_correlation_sqr(x, y))
    corrected, biased = torch.stack(corrected), torch.stack(biased)
    assert abs(corrected.mean()) < 3 * corrected.std() / 200**0.5
    assert biased.mean() > 0.2


@pytest.mark.parametrize("constant", [torch.full((50,), 1e6), torch.eye(50)])
def test_a_side_whose_distances_do_not_vary_gives_zero_and_no_gradient(constant):
    x = constant.clone().requires_grad_()
    value = metrics.u_distance_correlation_sqr(x, torch.arange(50.0))
    value.backward()
    assert value.item() == 0
    assert float(x.grad.abs().max()) == 0


def test_errors_name_what_is_wrong():
    with pytest.raises(ShapeError, match="one row per sample each; got 5 and 6 rows"):
        metrics.u_distance_correlation_sqr(torch.zeros(5), torch.zeros(6))
    with pytest.raises(ShapeError, match="at least 4 rows; got 3"):
        metrics.u_distance_correlation_sqr(torch.zeros(3), torch.zeros(3))
    with pytest.raises(ShapeError, match=r"got shape \(5, 2, 2\)"):
        metrics.distance_correlation_sqr(torch.zeros(5, 2, 2), torch.zeros(5))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("d", [1, 3, 64])
def test_cuda_agrees_with_the_cpu(d):
    x, y = (torch.from_numpy(side) for side in dependent(3000, d, 1))
    on_cpu = metrics.u_distance_correlation_sqr(x, y)
    on_gpu = metrics.u_distance_correlation_sqr(x.cuda(), y.cuda())
    torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=1e-9, atol=1e-11)
