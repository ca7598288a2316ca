"""Distance correlation against its definition, its gradient, and its edges."""

import numpy as np
import pytest
import torch

from deconfound.errors import ShapeError, TableError
from deconfound.metrics import (
    distance_correlation_sqr,
    u_distance_correlation_sqr,
    within_group_dcor_sqr,
)
from tests.metrics.oracles import distance_correlation

FORMS = [(distance_correlation_sqr, False), (u_distance_correlation_sqr, True)]


def dependent_sides(n, d, q, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, d)) * random.uniform(0.1, 20, size=d) + 50
    return x, np.sin(x[:, :1]) + random.normal(size=(n, q))


@pytest.mark.parametrize(("function", "corrected"), FORMS)
@pytest.mark.parametrize(("n", "d", "q"), [(4, 1, 1), (40, 1, 1), (157, 3, 2), (90, 64, 3)])
def test_values_follow_the_definition(function, corrected, n, d, q):
    """Kills mutants of n − 2, n − 3 and of the factor 2 in either form."""
    x, y = dependent_sides(n, d, q)
    expected = distance_correlation(x, y, corrected)
    assert function(x, y) == pytest.approx(expected, abs=1e-10)
    tensors = torch.from_numpy(x).requires_grad_(), torch.from_numpy(y)
    assert function(*tensors).item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("n", [4, 5, 64, 513])
def test_sorted_columns_with_ties_follow_the_definition(n):
    """Kills a merge that takes tied numbers of the left run for larger ones twice."""
    x, y = np.random.default_rng(n).normal(size=(2, n))
    x, y = x.round(1), (x + y).round(0)
    for function, corrected in FORMS:
        expected = distance_correlation(x, y, corrected)
        assert function(x, y) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("d", [1, 20])
def test_several_blocks_give_the_value_of_one(d):
    """Kills a mutant that counts pairs of different blocks once."""
    x, y = dependent_sides(1100, d, 2)
    expected = distance_correlation(x, y, True)
    assert u_distance_correlation_sqr(x, y) == pytest.approx(expected, abs=1e-10)


def test_two_long_columns_need_no_matrix_of_pairs():
    """Kills a mutant without the sort: 400,000² distances would take an hour."""
    x = np.linspace(-1, 1, 400_000)
    assert u_distance_correlation_sqr(x, x**2) == pytest.approx(0.2411, abs=1e-3)


@pytest.mark.parametrize("function", [form[0] for form in FORMS])
@pytest.mark.parametrize("d", [1, 3, 20])
def test_gradient_is_the_derivative(function, d):
    """Kills a mutant that detaches one side, or the variance of a side."""
    generator = torch.Generator().manual_seed(d)
    sides = [torch.randn(9, k, generator=generator, dtype=torch.float64) for k in (d, 2)]
    assert torch.autograd.gradcheck(function, [side.requires_grad_() for side in sides])


@pytest.mark.parametrize("d", [1, 20])
def test_gradient_is_finite_at_ties(d):
    """Kills the plain square root, whose gradient at 0 is infinite."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, d, generator=generator).repeat(2, 1).requires_grad_()
    u_distance_correlation_sqr(x, torch.randn(30, generator=generator).repeat(2)).backward()
    assert x.grad.isfinite().all()
    assert x.grad.abs().max() > 0
    torch.testing.assert_close(x.grad[:30], x.grad[30:], atol=1e-5, rtol=1e-3)


def test_one_far_row_leaves_float32_accurate():
    """Kills sums in float32, and centring at the mean."""
    x, y = dependent_sides(300, 20, 1)
    x[0] = 1e7
    single = torch.from_numpy(x).float(), torch.from_numpy(y).float()
    result = u_distance_correlation_sqr(*single)
    assert result.dtype == torch.float32
    expected = distance_correlation(*(side.double().numpy() for side in single), True)
    assert result.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_scale_changes_nothing(scale):
    """Kills products of raw distances, which underflow or overflow."""
    x, y = dependent_sides(50, 3, 1)
    expected = u_distance_correlation_sqr(x, y)
    assert u_distance_correlation_sqr(scale * x, y) == pytest.approx(expected, abs=1e-9)


def test_corrected_form_has_mean_zero_for_independent_rows():
    """Kills the biased form under the name of the corrected one; the biased form is the control."""
    random = np.random.default_rng(0)
    sides = [(random.normal(size=(20, 30)), random.normal(size=(20, 2))) for _ in range(300)]
    corrected = np.array([u_distance_correlation_sqr(x, y) for x, y in sides])
    assert abs(corrected.mean()) < 4 * corrected.std() / np.sqrt(len(sides))
    assert np.mean([distance_correlation_sqr(x, y) for x, y in sides]) > 0.2


@pytest.mark.parametrize("constant", [np.full(50, 1e6), np.eye(50)])
def test_sides_of_equal_distances_give_zero(constant):
    """Kills a division of rounding by rounding. Corners of a simplex are equally far apart."""
    y = np.arange(50.0)
    assert u_distance_correlation_sqr(constant, y) == 0.0
    x = torch.from_numpy(constant).requires_grad_()
    u_distance_correlation_sqr(x, torch.from_numpy(y)).backward()
    assert x.grad.abs().max() == 0


def test_groups_are_averaged_with_equal_weight():
    """Kills an average over rows, and the value over all rows, which follows the label."""
    groups = np.repeat(["a", "b"], [30, 90])
    x, y = dependent_sides(120, 2, 1)
    x[groups == "b"] += 40
    y[groups == "b"] += 9
    parts = [distance_correlation(x[groups == g], y[groups == g], True) for g in ("a", "b")]
    assert within_group_dcor_sqr(x, y, groups) == pytest.approx(np.mean(parts), abs=1e-10)
    tensor = within_group_dcor_sqr(
        torch.from_numpy(x).requires_grad_(), torch.from_numpy(y), groups
    )
    tensor.backward()
    assert tensor.item() == pytest.approx(np.mean(parts), abs=1e-10)


def test_errors_state_what_to_write():
    with pytest.raises(ShapeError, match="`x` has 5, `y` has 6"):
        u_distance_correlation_sqr(np.zeros(5), np.zeros(6))
    with pytest.raises(ShapeError, match="needs at least 4 rows"):
        u_distance_correlation_sqr(torch.zeros(3), torch.zeros(3))
    with pytest.raises(TableError, match="`y` is NaN or infinite in 1 of 5 rows"):
        distance_correlation_sqr(torch.zeros(5), torch.tensor([0, 1, float("nan"), 3, 4]))
    with pytest.raises(ShapeError, match="has 2 rows of the level 'b'"):
        within_group_dcor_sqr(np.arange(6.0), np.arange(6.0), list("aaaabb"))
