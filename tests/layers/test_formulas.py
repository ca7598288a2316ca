"""The central formulas, recomputed naively: loops and numpy instead of the library's sums."""

import math

import numpy as np
import pytest
import torch

import deconfound as dc
from deconfound.layers.functional import eigenvalue_bound
from deconfound.layers.pmdn import gain, gradient
from deconfound.layers.pmdn.gain import Numbers, Sums, adaptive_gain
from tests.conftest import make_cohort


def regressors_of(cohort, rows=slice(None)):
    white = cohort.metadata.numpy()[rows] @ cohort.design.whitening
    return np.column_stack([white, np.ones(len(white))])


def confounds_of(cohort, rows=slice(None)):
    q = cohort.design.confound_directions
    return cohort.metadata.numpy()[rows, : cohort.confounds] @ cohort.design.whitening[: cohort.confounds, :q]


def test_mdn_centres_features_by_their_running_mean(cohort):
    """Eq. 4 on features less the bias-corrected running mean of the batch means, written out over three batches."""
    layer = dc.MDN(cohort.design, 5, gram="training", momentum=0.3).double()
    means, weights = [], []
    for rows in torch.arange(150).split(50):
        x = cohort.features[rows] + 7.0
        layer(x, cohort.metadata[rows])
        means.append(x.numpy().mean(0))
        weights = [weight * 0.7 for weight in weights] + [0.3]
        centre = sum(weight * mean for weight, mean in zip(weights, means, strict=True)) / sum(weights)
        np.testing.assert_allclose(layer.mean.numpy(), centre, rtol=1e-10)
    regressors = regressors_of(cohort, rows.numpy())
    beta = regressors.T @ (x.numpy() - centre) / 50
    alone = x.numpy() - confounds_of(cohort, rows.numpy()) @ beta[: cohort.design.confound_directions]
    frozen = layer
    with dc.frozen_statistics(frozen):
        np.testing.assert_allclose(frozen(x, cohort.metadata[rows]).numpy(), alone, atol=1e-10)


def test_mdn_with_the_running_gram_matrix(cohort):
    """`β = G⁻¹ Rᵀ(f − f̄)/b`, G the mean of all rows so far with the identity counting for ten."""
    layer = dc.MDN(cohort.design, 5).double()
    total, count = 10.0 * np.eye(layer._directions), 10.0
    for rows in torch.arange(120).split(40):
        residual = layer(cohort.features[rows], cohort.metadata[rows])
        regressors = regressors_of(cohort, rows.numpy())
        total, count = total + regressors.T @ regressors, count + len(rows)
    centred = cohort.features[rows].numpy() - layer.mean.numpy()
    beta = np.linalg.solve(total / count, regressors.T @ centred / 40)
    wanted = (
        cohort.features[rows].numpy() - confounds_of(cohort, rows.numpy()) @ beta[: cohort.design.confound_directions]
    )
    np.testing.assert_allclose(residual.numpy(), wanted, atol=1e-10)


def test_rmdn_is_exponentially_weighted_ridge_least_squares(cohort):
    """Σ λ^age ‖f − Rβ‖² with the ridge's own weight decaying as its rows do, for batches of one."""
    forgetting, ridge, n = 0.98, 0.5, 80
    layer = dc.RMDN(cohort.design, 5, forgetting=forgetting, ridge=ridge).double()
    for row in range(n):
        layer(cohort.features[row : row + 1], cohort.metadata[row : row + 1])
    regressors, features = regressors_of(cohort, slice(0, n)), cohort.features.numpy()[:n]
    weights = forgetting ** np.arange(n - 1, -1, -1)
    prior = ridge * forgetting**n * np.diag([*[1.0] * (regressors.shape[1] - 1), 1e-10])
    wanted = np.linalg.solve(
        regressors.T @ (weights[:, None] * regressors) + prior, regressors.T @ (weights[:, None] * features)
    )
    np.testing.assert_allclose(layer.beta.numpy(), wanted, atol=1e-6)


def naive_gain(state, errors, regressors, sizes, step_of):
    """The gain of each group by loops over pairs of rows; `state` is a dict that is changed."""
    n, groups, start = len(errors), [], 0
    for size in sizes:
        groups.append(range(start, start + size))
        start += size
    forget = max(n / (state["samples"] + n), min(n / gain.WINDOW, 1))
    scale = state["scale"] + ((errors**2).mean(0) - state["scale"]) * forget
    rates = []
    for number, group in enumerate(groups):
        v = [np.outer(regressors[i, group], errors[i] / np.sqrt(scale)) for i in range(n)]
        trend = state["trend"][group] / np.sqrt(scale)
        length = state["length"][number]
        length += (np.mean([(one**2).sum() for one in v]) - length) * forget
        pairs = [(v[i] * v[j]).sum() for i in range(n) for j in range(n) if i != j]
        within = np.mean(pairs) / length if pairs else 0.0
        step = state["step"][number]
        across = np.mean([(one * trend).sum() for one in v]) / length + step / (1 + step * gain.WINDOW)
        past, others = min(state["samples"], gain.WINDOW), n - 1
        measured = (others / 2 * within + past * across) / max(others / 2 + past, 1) if past + others else 1.0
        average = n / (state["samples"] + n + (30.0, 30.0, 0.0)[number])
        recent = max(average, min(n / gain.WINDOW, 1 / gain.BATCHES))
        state["agreement"][number] += (measured - state["agreement"][number]) * recent
        rho = min(max(state["agreement"][number], 0), 1)
        rates.append(max(n * rho / (1 + (n - 1) * rho), average))
        state["length"][number] = length
        state["step"][number] = step_of(rates[-1]) / n
    state["trend"] += (regressors.T @ errors / n - state["trend"]) * forget
    state["scale"] = scale
    state["samples"] = min(state["samples"] + n, gain.LONGEST)
    return rates


@pytest.mark.parametrize("batch", [1, 7, 60])
def test_pmdn_moves_beta_by_the_gain_times_the_penalty_gradient(batch):
    """Three groups with a gain, a prior and a trend each, the cap, and the first batch's mean: all written out."""
    cohort = make_cohort(n=180, mean=2.0)
    layer = dc.PMDN(cohort.design, 5).double()
    q, d = layer._directions, 5
    sizes = [cohort.design.confound_directions, q - 1 - cohort.design.confound_directions, 1]
    beta = np.zeros((q, d))
    state = {
        "samples": 0.0, "agreement": [0.0] * 3, "step": [0.0] * 3, "length": [0.0] * 3,
        "trend": np.zeros((q, d)), "scale": np.zeros(d),
    }  # fmt: skip
    for number, rows in enumerate(torch.arange(180).split(batch)):
        layer(cohort.features[rows], cohort.metadata[rows])
        regressors, features = regressors_of(cohort, rows.numpy()), cohort.features.numpy()[rows.numpy()]
        gram = regressors.T @ regressors / len(rows)
        bound = min(np.linalg.norm(gram), 1 + np.linalg.norm(gram - np.eye(q)))
        assert bound >= np.linalg.eigvalsh(gram)[-1] - 1e-9
        rates = naive_gain(state, features - regressors @ beta, regressors, sizes, lambda rate: min(rate, 1 / bound))  # noqa: B023
        steps = np.repeat([min(rate, 1 / bound) for rate in rates], sizes)[:, None]
        if number == 0:
            beta[-1] = features.mean(0)
            steps[-1] = 0.0
        beta = beta + steps * (regressors.T @ (features - regressors @ beta)) / len(rows)
        np.testing.assert_allclose(layer.beta.numpy(), beta, rtol=1e-7, atol=1e-9)
    assert np.abs(beta[: sizes[0]]).max() > 0.1
    assert len(set(np.round(rates, 6))) == 3 or batch == 60  # the groups do not share a gain


def test_the_implicit_gradient_is_the_naive_running_average():
    """S by loops over rows, its units, its gain with a prior of WINDOW samples, and the gradient that follows."""
    cohort = make_cohort(n=120)
    layer = dc.PMDN(cohort.design, 5, gradient="bilevel").double()
    q = cohort.design.confound_directions
    mean, size, spread = np.zeros((q, 5)), 0.0, 0.0
    samples, agreement, step, length = 0.0, 0.0, 0.0, 0.0
    trend, scale = np.zeros((q, 5)), np.zeros(5)
    draw = torch.Generator().manual_seed(0)
    for number, rows in enumerate(torch.arange(120).split(20)):
        x = cohort.features[rows].clone().requires_grad_()
        direction = torch.randn(20, 5, generator=draw).double() + cohort.metadata[rows, :1]
        (layer(x, cohort.metadata[rows]) * direction).mean().backward()
        g, n = direction.numpy() / 100, 20
        c, z = confounds_of(cohort, rows.numpy()), regressors_of(cohort, rows.numpy())[:, :q]
        change = 0.5 * math.log(np.mean((n * g) ** 2)) - size
        weight = max(n / (samples + n), gradient.LEAST)
        jumped = abs(change) > max(gradient.SPREADS * spread / math.sqrt(n), math.log(gradient.JUMP))
        size += change if jumped or not number else weight * change
        spread += (min(abs(change), gradient.LARGEST_DEVIATION) * math.sqrt(n) - spread) * weight if number else 0.0
        hat = n * g * math.exp(-size)
        forget = max(n / (samples + n), min(n / gain.WINDOW, 1))
        scale = scale + ((hat**2).mean(0) - scale) * forget
        v = [(np.outer(c[i], hat[i]) - mean) / np.sqrt(scale) for i in range(n)]
        length += (np.mean([(one**2).sum() for one in v]) - length) * forget
        within = np.mean([(v[i] * v[j]).sum() for i in range(n) for j in range(n) if i != j]) / length
        across = np.mean([(one * trend / np.sqrt(scale)).sum() for one in v]) / length
        across += step / (1 + step * gain.WINDOW)
        past = min(samples, gain.WINDOW)
        measured = ((n - 1) / 2 * within + past * across) / ((n - 1) / 2 + past)
        average = n / (samples + n + gain.WINDOW)
        agreement += (measured - agreement) * max(average, min(n / gain.WINDOW, 1 / gain.BATCHES))
        rho = min(max(agreement, 0), 1)
        share = max(n * rho / (1 + (n - 1) * rho), average)
        trend += (np.mean([np.outer(c[i], hat[i]) - mean for i in range(n)], 0) - trend) * forget
        mean = mean + share * (c.T @ hat / n - mean)
        samples, step = samples + n, share / n
        np.testing.assert_allclose(layer.gradient_mean.numpy(), mean, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(x.grad.numpy(), g - z @ mean * math.exp(size) / n, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("seed", range(20))
def test_the_eigenvalue_bound_is_an_upper_bound_and_exact_for_one_sample(seed):
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randn(1 + seed, 6, generator=rng).double() * (1 + seed % 3)
    gram = rows.T @ rows / len(rows)
    largest = torch.linalg.eigvalsh(gram)[-1]
    assert eigenvalue_bound(gram) >= largest * (1 - 1e-9)
    assert eigenvalue_bound(gram) <= gram.diagonal().sum() * (1 + 1e-9)
    if seed == 0:
        torch.testing.assert_close(eigenvalue_bound(gram), largest)


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (2.0, 0.5, 1.0)])
def test_the_gain_is_the_same_for_numbers_and_for_tensors(weights):
    rows, squares = sum(weights), sum(weight**2 for weight in weights)
    past, seen = Numbers(40.0, 0.1, 0.002, 3.0), Sums(20.0, 1.5, 12.0)
    rate, numbers = adaptive_gain(past, seen, rows, squares, 30.0)
    one = torch.ones(1, dtype=torch.float64)
    tensors = Numbers(one[0] * past.samples, *(one * value for value in past[1:]))
    other, others = adaptive_gain(tensors, Sums(*(one * v for v in seen)), one[0] * rows, one[0] * squares, one * 30)
    assert other.item() == pytest.approx(rate)
    assert [value.item() for value in others] == pytest.approx(list(numbers))
