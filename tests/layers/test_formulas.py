"""The central formulas, recomputed naively: loops and numpy instead of the library's sums."""

import math

import numpy as np
import pytest
import torch

import deconfound as dc
from deconfound.layers.functional import eigenvalue_bound
from deconfound.layers.pmdn import gradient
from deconfound.layers.pmdn.update import PRIOR, UpdateRule, constants, rates
from deconfound.layers.whitened import WhitenedBatch
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


def row_weights(n, weighted):
    return np.random.default_rng(0).uniform(0.2, 2.5, n) if weighted else np.ones(n)


@pytest.mark.parametrize("weighted", [False, True], ids=["rows alike", "weights"])
@pytest.mark.parametrize("batch", [1, 7, 60])
def test_pmdn_moves_beta_by_the_share_of_the_batch_in_its_memory(batch, weighted):
    """Rates, priors, the cap, a memory that is full after some batches, and the intercept first: all written out."""
    cohort, memory = make_cohort(n=180, mean=2.0), 50.0
    layer = dc.PMDN(cohort.design, 5, memory=memory).double()
    q, samples, capped = layer._directions, 0.0, 0
    beta, weights = np.zeros((q, 5)), row_weights(180, weighted)
    for rows in np.split(np.arange(180), range(batch, 180, batch)):
        given = {"weight": torch.from_numpy(weights[rows])} if weighted else {}
        layer(cohort.features[rows], cohort.metadata[rows], **given)
        regressors, features, w = regressors_of(cohort, rows), cohort.features.numpy()[rows], weights[rows]
        n = w.sum()
        mean = sum(w[i] * (features[i] - regressors[i] @ beta) for i in range(len(rows))) / n
        beta[-1] += n / (min(samples, memory) + n) * mean
        gram = sum(w[i] * np.outer(regressors[i], regressors[i]) for i in range(len(rows))) / n
        bound = min(np.linalg.norm(gram), 1 + np.linalg.norm(gram - np.eye(q)))
        assert bound >= np.linalg.eigvalsh(gram)[-1] - 1e-9
        rate = n / (min(samples, memory) + n + 30)
        capped += rate > 1 / bound
        left = features - regressors @ beta
        move = sum(w[i] * np.outer(regressors[i, :-1], left[i]) for i in range(len(rows))) / n
        beta[:-1] += min(rate, 1 / bound) * move
        samples += n
        np.testing.assert_allclose(layer.beta.numpy(), beta, rtol=1e-7, atol=1e-9)
    assert layer.samples.item() == pytest.approx(samples)
    assert np.abs(beta[: cohort.design.confound_directions]).max() > 0.1
    assert capped or batch < 60


def test_a_rate_above_the_cap_is_cut_to_it():
    """One row of a rare site, in whose direction the batch's Gram matrix has an eigenvalue of some hundred."""
    cohort = make_cohort(n=5000, rare=True)
    row = int(np.flatnonzero(cohort.table["site"] == "C")[0])
    regressors = regressors_of(cohort, [row])
    largest = (regressors**2).sum()
    assert largest > 100 > 31
    layer = dc.PMDN(cohort.design, 5).double()
    layer(cohort.features[[row]], cohort.metadata[[row]])
    left = cohort.features[row].numpy() - layer.beta.numpy()[-1]
    np.testing.assert_allclose(layer.beta.numpy()[:-1], np.outer(regressors[0, :-1], left) / largest, atol=1e-12)


def test_memory_is_counted_in_samples():
    """Ten batches of two take the share of one batch of twenty: what is left of an old β is the same."""
    left = {}
    for batch in (1, 2, 20):
        cohort = make_cohort(n=2000)
        layer = dc.PMDN(cohort.design, 5).double()
        layer.samples.fill_(1000.0)
        layer.set_beta(torch.ones_like(layer.beta))
        for rows in torch.arange(200).split(batch):
            layer(torch.zeros(len(rows), 5).double(), cohort.metadata[rows])
        left[batch] = layer.beta[:-1].mean().item()
    assert left[1] == pytest.approx(left[20], abs=0.05)
    assert left[2] == pytest.approx(left[20], abs=0.05)
    assert left[20] == pytest.approx((280 / 300) ** 10, abs=0.1)


@pytest.mark.parametrize("share", [None, 0.25])
def test_the_implicit_gradient_is_the_naive_running_average(share):
    """S by loops over rows, its prior, its memory, the mean squares with a jump, and the gradient that follows."""
    cohort, memory = make_cohort(n=240), 70.0
    layer = dc.PMDN(cohort.design, 5, memory=memory, step=share).double()
    q, n = cohort.design.confound_directions, 20
    mean, square, jumps = np.zeros((q, 5)), np.zeros(5), 0
    draw = torch.Generator().manual_seed(0)
    for number, rows in enumerate(torch.arange(240).split(n)):
        x = cohort.features[rows].clone().requires_grad_()
        direction = torch.randn(n, 5, generator=draw).double() + cohort.metadata[rows, :1]
        direction[:, 1] *= 300.0 if number >= 8 else 1.0
        direction[:, 2] *= number not in (0, 5)
        direction[:, 3] *= 0.0  # a unit that is dead
        (layer(x, cohort.metadata[rows]) * direction).mean().backward()
        g = direction.numpy() / (5 * n)
        c, z = confounds_of(cohort, rows.numpy()), regressors_of(cohort, rows.numpy())[:, :q]
        part = share or n / (min(number * n, memory) + n + 300)
        for j in range(5):
            found = np.mean([(n * g[i, j]) ** 2 for i in range(n)])
            change = 0.5 * math.log(found / square[j]) if square[j] > 0 and found > 0 else 0.0
            jumped = abs(change) > max(math.log(gradient.JUMP), gradient.NOISE / math.sqrt(n))
            mean[:, j] *= math.exp(change) if jumped else 1.0
            mean[:, j] += part * (sum(c[i] * n * g[i, j] for i in range(n)) / n - mean[:, j])
            if jumped or square[j] == 0:
                square[j] = found
            elif found > 0:
                square[j] += part * (found - square[j])
            jumps += jumped
        np.testing.assert_allclose(layer.gradient_mean.numpy(), mean, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(layer.gradient_square.numpy()[0], square, rtol=1e-7, atol=1e-12)
        np.testing.assert_allclose(x.grad.numpy(), g - z @ mean / n, rtol=1e-6, atol=1e-10)
    assert jumps == 1


@pytest.mark.parametrize("samples", [0.0, 20.0, 300.0])
@pytest.mark.parametrize("rows", [1, 3, 64])
@pytest.mark.parametrize("leverage", [0.1, 1.0, 3.0, 30.0])
def test_rates_that_are_plain_numbers_are_those_of_tensors_with_their_cap(samples, rows, leverage):
    torch.manual_seed(rows)
    regressors = torch.cat([leverage * torch.randn(rows, 3), torch.ones(rows, 1)], 1)
    batch, rule = WhitenedBatch(regressors[:, :2], regressors), UpdateRule(250.0, None)
    numbers = rates(samples, batch, rule, constants(4, regressors)["rate_constants"])
    tensors = rates(torch.tensor(samples), batch, rule, constants(4, regressors)["rate_constants"])
    assert numbers == pytest.approx(tensors.tolist(), rel=1e-6)
    uncapped = 1 / (min(samples, 250) + rows + PRIOR)
    assert numbers[0] <= min(uncapped, batch.largest_step() / rows) * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_the_eigenvalue_bound_is_an_upper_bound_and_exact_for_one_sample(seed):
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randn(1 + seed, 6, generator=rng).double() * (1 + seed % 3)
    gram = rows.T @ rows / len(rows)
    largest = torch.linalg.eigvalsh(gram)[-1]
    assert eigenvalue_bound(gram) >= largest * (1 - 1e-9)
    assert eigenvalue_bound(gram) <= gram.diagonal().sum() * (1 + 1e-9)
    if seed == 0:
        assert eigenvalue_bound(gram) == pytest.approx(largest.item())
