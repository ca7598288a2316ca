"""Each layer removes what its formula says: least squares, Eq. 4, ridge, Algorithm 1."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import deconfound as dc
from deconfound.layers import AlternatingPMDN, alternating_step, split_parameters
from tests import oracles
from tests.helpers import (
    CONFOUNDS,
    Mlp,
    encode,
    fit_design,
    make_people,
    random_weights,
)

N = 400
KEEP = ("label",)


@pytest.fixture(scope="module", params=[0.0, 50.0], ids=["centred", "large mean"])
def people(request):
    """Return features, table, design, metadata, and the least-squares residual."""
    x, table = make_people(N, offset=request.param)
    design = fit_design(table)
    residual = torch.from_numpy(oracles.residual(x, table, CONFOUNDS, KEEP))
    return x, table, design, encode(design, table), residual


def relative_error(actual: Tensor, expected: Tensor, x: Tensor) -> float:
    """Return the largest error of a feature's residual, as a share of what is to be removed."""
    return float(((actual - expected).norm(dim=0) / (x - expected).norm(dim=0)).max())


def white_columns(design: dc.Design, metadata: Tensor) -> tuple[Tensor, Tensor]:
    """Return C `(n, q_C)` and R `(n, q)` of encoded metadata."""
    columns, directions = len(design.confound_columns), design.confound_directions
    c = oracles.white_confounds(metadata, design.whitening, columns, directions)
    return c, oracles.white_regressors(metadata, design.whitening)


# MDN


@pytest.mark.parametrize("gram", ["training", "batch"])
def test_mdn_on_all_rows_is_the_least_squares_residual(people, gram):
    """Kills: subtracting the keep columns; whitening the confounds before the labels."""
    x, _, design, metadata, residual = people
    layer = dc.MDN(design, 3, gram=gram).double()
    torch.testing.assert_close(layer(x, metadata), residual, rtol=0, atol=1e-10 * x.abs().max())


@pytest.mark.parametrize("gram", ["training", "batch"])
def test_mdn_keeps_the_effect_of_the_label_and_leaves_noise_alone(gram):
    """A feature without confounds comes out as it went in, up to the error of the fit.

    Positive control: without `keep`, part of the label's effect goes, because it is associated.
    """
    _, table = make_people(N)
    is_case = torch.from_numpy((table["label"] == "case").to_numpy(np.float64))
    noise = torch.randn(N, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = torch.stack([is_case, noise], dim=1)
    design = fit_design(table)
    residual = dc.MDN(design, 2, gram=gram).double()(x, encode(design, table))
    torch.testing.assert_close(residual[:, 0], is_case, rtol=0, atol=1e-10)
    # Five confounds explain 5 / N of noise on average; six times as much has p < 1e-6.
    assert float((residual[:, 1] - noise).square().sum() / noise.square().sum()) < 30 / N

    blind = fit_design(table, keep=())
    without_keep = dc.MDN(blind, 2, gram=gram).double()(x, encode(blind, table))
    assert float((without_keep[:, 0] - is_case).abs().mean()) > 0.1


def test_mdn_on_short_batches_is_equation_4(people):
    """β = (N/b) (MᵀM)⁻¹ Σ m (f − f̄) in the table's own columns, and evaluation averages the β.

    Kills: dividing by the nominal batch; a running mean that starts at zero or weighs the wrong
    batch; evaluation with the last batch's β; not subtracting the features' mean.
    """
    x, table, design, metadata, _ = people
    momentum = 0.3
    layer = dc.MDN(design, 3, momentum=momentum).double()
    m = torch.from_numpy(oracles.raw_columns(table, [*CONFOUNDS, *KEEP]))
    c = m[:, : len(design.confound_columns)]
    inverse = torch.linalg.inv(m.T @ m)
    beta_mean, feature_mean = 0.0, 0.0
    for batch, rows in enumerate([slice(0, 7), slice(7, 40), slice(40, 43)], start=1):
        # Weights of an exponential average that is corrected for its start: 1 for the first batch.
        share = momentum / (1 - (1 - momentum) ** batch)
        feature_mean = (1 - share) * feature_mean + share * x[rows].mean(0)
        b = rows.stop - rows.start
        beta = N / b * inverse @ m[rows].T @ (x[rows] - feature_mean)
        beta_mean = (1 - share) * beta_mean + share * beta
        expected = x[rows] - c[rows] @ beta[: c.shape[1]]
        torch.testing.assert_close(layer(x[rows], metadata[rows]), expected, rtol=1e-9, atol=1e-9)
    expected = x - c @ beta_mean[: c.shape[1]]
    torch.testing.assert_close(layer.eval()(x, metadata), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("prior", [0.0, 25.0])
def test_refit_is_least_squares_with_the_old_coefficients_as_prior_rows(people, prior):
    """On rows of old people alone, whose regressors have means, the intercept stays free.

    Kills: a refit whose regressors are not centred; one that forgets the old β.
    """
    x, table, design, metadata, _ = people
    old_people = (table["age"] > 70).to_numpy()
    rows = torch.tensor(old_people)
    layer = dc.PMDN(design, 3).double()
    layer(x[:50], metadata[:50])
    before = layer.beta.clone()
    batch = layer.whitening.whiten(metadata[rows], None)
    layer.refit(batch.exact_moments(x[rows]), prior=prior)

    r = oracles.white_regressors(metadata[rows], design.whitening)
    errors = x[rows] - r @ before
    change = oracles.least_squares(r.numpy(), errors.numpy(), ridge=prior)
    torch.testing.assert_close(layer.beta, before + torch.from_numpy(change), rtol=1e-8, atol=1e-8)
    if prior == 0:
        # Given the labels, the confounds explain nothing any more.
        removed = layer.eval()(x[rows], metadata[rows]).numpy()
        columns = oracles.least_squares(r.numpy(), removed)[: design.confound_directions]
        assert np.abs(columns).max() < 1e-6


# PMDN


@pytest.mark.parametrize("batch_size", [1, 2, 20, 200, N])
def test_pmdn_reaches_least_squares_at_any_batch_size(people, batch_size):
    """Kills: the wrong sign of line 6; counting steps instead of samples; the intercept last.

    The features do not change and the memory is infinite, so that β is a plain average.
    """
    x, _, design, metadata, residual = people
    layer = dc.PMDN(design, 3, memory=math.inf).double()
    generator = torch.Generator().manual_seed(1)
    for _ in range(6 if batch_size < 20 else 15):
        for rows in torch.randperm(N, generator=generator).split(batch_size):
            layer(x[rows], metadata[rows])
    assert relative_error(layer.eval()(x, metadata), residual, x) < 0.05


@pytest.mark.parametrize("step", [None, 0.2])
@pytest.mark.parametrize("batch_size", [1, 20])
def test_a_mean_of_the_features_changes_no_residual(people, batch_size, step):
    """f + 50 has the residual of f, plus 50, from the first batch on.

    Kills: the intercept moved together with the other coefficients.
    """
    x, _, design, metadata, _ = people
    layers = [dc.PMDN(design, 3, step=step).double() for _ in range(2)]
    for rows in torch.arange(200).split(batch_size):
        residuals = [
            layer(x[rows] + mean, metadata[rows])
            for layer, mean in zip(layers, (0.0, 50.0), strict=True)
        ]
    if step is None:
        torch.testing.assert_close(residuals[1] - 50, residuals[0], rtol=1e-9, atol=1e-9)
    else:
        # Control: with a fixed step, as in the paper, the mean passes for an effect at first.
        assert float((residuals[1] - 50 - residuals[0]).abs().max()) > 1e-3


def test_batches_that_are_not_finite_count_for_nothing(people):
    """PMDN goes on as if they had not been there; a single bad feature does not stop the others.

    Kills: samples that are counted although nothing was learned; a skip of all features.
    """
    x, _, design, metadata, _ = people
    clean, broken = (dc.PMDN(design, 3, memory=math.inf).double() for _ in range(2))
    one_bad = x[:50].clone()
    one_bad[3, 1] = torch.nan
    broken(x[:50] * torch.nan, metadata[:50])
    assert int(broken.skipped) == 1
    for rows in torch.arange(N).split(50):
        clean(x[rows], metadata[rows])
        broken(x[rows], metadata[rows])
    torch.testing.assert_close(broken.beta, clean.beta, rtol=0, atol=0)
    before = broken.beta.clone()
    broken(one_bad, metadata[:50])
    changed = (broken.beta != before).any(0).tolist()
    assert changed == [True, False, True]


def test_rmdn_keeps_the_effect_of_a_site_that_is_no_longer_seen(people):
    """Thousands of later rows without it do not let rounding decide its coefficient.

    Kills: no damping of directions without recent rows.
    """
    x, table, design, metadata, _ = people
    site = (table["site"] == table["site"].iloc[0]).to_numpy()
    layer = dc.RMDN(design, 3, forgetting=0.98)
    layer(x.float(), metadata.float())
    effect = layer.coefficients()
    others = torch.from_numpy(np.flatnonzero(~site))
    for _ in range(40):
        layer(x[others].float(), metadata[others].float())
    for name, value in layer.coefficients().items():
        if name.startswith("site"):
            assert torch.isfinite(value).all()
            assert float((value - effect[name]).abs().max()) < 10


def test_the_first_batch_is_shrunk_by_thirty_samples_but_its_mean_is_not(people):
    """On N white rows the first step is N / (N + 30) of the way to least squares.

    Kills: no prior; a prior that holds the intercept.
    """
    x, _, design, metadata, _ = people
    layer = dc.PMDN(design, 3).double()
    layer(x, metadata)
    r = oracles.white_regressors(metadata, design.whitening).numpy()
    full = torch.from_numpy(oracles.least_squares(r, x.numpy()))
    # In memory are these N rows, since nothing came before them.
    torch.testing.assert_close(layer.beta[:-1], full[:-1] * N / (N + 30), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(layer.beta[-1], full[-1], rtol=1e-8, atol=1e-8)


def test_several_layers_reach_least_squares_also_after_save_and_load(people):
    """Each layer's β is fitted to the features that the layers before it really make."""
    x, table, design, metadata, _ = people
    weights = random_weights(3, 6, 5, 4, 1)
    standard = (x - x.mean(0)) / x.std(0) + 5  # a mean of 5 sd, within reach of tanh's weights

    def make(d: int) -> dc.PMDN:
        return dc.PMDN(design, d, memory=math.inf).double()

    model, resumed = Mlp(weights, make), Mlp(weights, make)
    generator = torch.Generator().manual_seed(2)
    for epoch in range(30):
        for rows in torch.randperm(N, generator=generator).split(40):
            model(standard[rows], metadata[rows])
        if epoch == 15:
            resumed.load_state_dict(model.state_dict())
            model = resumed
    model.eval()
    f = standard
    for weight, norm in zip(weights, model.norms, strict=False):
        f = f @ weight
        expected = torch.from_numpy(oracles.residual(f, table, CONFOUNDS, KEEP))
        error = (norm(f, metadata) - expected).norm(dim=0) / (f - f.mean(0)).norm(dim=0)
        assert float(error.max()) < 0.05
        f = norm(f, metadata).tanh()


def test_a_rare_site_stays_bounded_one_sample_at_a_time():
    """Kills: no cap by the largest eigenvalue of the batch's Gram matrix.

    Control: the same averaging step without the cap diverges on the same rows.
    """
    n, memory = 500, 50.0
    x, table = make_people(n)
    table["site"] = np.where(np.arange(n) % 250 == 0, "rare", "common")  # 0.4 % of rows
    design = fit_design(table, ["site", "age"])
    metadata = encode(design, table)
    layer = dc.PMDN(design, 3, memory=memory).double()
    r = oracles.white_regressors(metadata, design.whitening)
    naive = torch.zeros(r.shape[1], 3, dtype=torch.float64)
    largest, samples = 0.0, 0.0
    for row in range(n):
        for _ in range(4):
            i = (row * 250) % n if row % 4 == 0 else row  # the rare people come often
            layer(x[i : i + 1], metadata[i : i + 1])
            largest = max(largest, float(layer.beta.abs().max()))
            samples = min(samples, memory) + 1
            error = x[i : i + 1] - r[i : i + 1] @ naive
            naive = naive + r[i : i + 1].T @ error / (samples + 30)
    assert largest < 100 * x.abs().max()
    assert not float(naive.abs().max()) < 1e6


# R-MDN


@pytest.mark.parametrize("sizes", [[1] * 60, [60], [7, 1, 30, 22], [2] * 30], ids=str)
@pytest.mark.parametrize("offset", [0.0, 50.0])
def test_rmdn_after_any_split_of_the_rows_is_ridge_on_all_of_them(sizes, offset):
    """Kills: a decay or a ridge that counts batches."""
    x, table = make_people(60, offset=offset)
    design = fit_design(table)
    metadata = encode(design, table)
    layer = dc.RMDN(design, 3, forgetting=1.0, ridge=0.5).double()
    for rows in torch.arange(60).split(sizes):
        layer(x[rows], metadata[rows])
    r = oracles.white_regressors(metadata, design.whitening).numpy()
    expected = torch.from_numpy(oracles.least_squares(r, x.numpy(), ridge=0.5))
    torch.testing.assert_close(layer.beta, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("batch_size", [1, 6])
def test_rmdn_forgets_exponentially_in_rows(batch_size):
    """A row weighs λ to the number of rows in later batches, and the ridge ages like a row.

    Kills: a decay per batch; a wrong power.
    """
    x, table = make_people(60)
    design = fit_design(table)
    metadata = encode(design, table)
    layer = dc.RMDN(design, 3, forgetting=0.97, ridge=0.5).double()
    for rows in torch.arange(60).split(batch_size):
        layer(x[rows], metadata[rows])
    later_rows = 60 - batch_size * (1 + np.arange(60) // batch_size)
    r = oracles.white_regressors(metadata, design.whitening).numpy()
    beta = oracles.least_squares(r, x.numpy(), 0.97**later_rows, ridge=0.5 * 0.97**60)
    torch.testing.assert_close(layer.beta, torch.from_numpy(beta), rtol=1e-7, atol=1e-7)


def test_the_authors_forgetting_per_batch_converts_as_the_docstring_says():
    """Their recursion, A ← λ A + RᵀR per batch, equals ours with λ^(1/b) per row."""
    x, table = make_people(60)
    design = fit_design(table)
    metadata = encode(design, table)
    b, per_batch = 10, 0.9
    layer = dc.RMDN(design, 3, forgetting=per_batch ** (1 / b), ridge=1e-6).double()
    r = oracles.white_regressors(metadata, design.whitening)
    gram, cross = 0.0, 0.0
    for rows in torch.arange(60).split(b):
        layer(x[rows], metadata[rows])
        gram = per_batch * gram + r[rows].T @ r[rows]
        cross = per_batch * cross + r[rows].T @ x[rows]
    torch.testing.assert_close(layer.beta, torch.linalg.solve(gram, cross), rtol=1e-4, atol=1e-4)


# Algorithm 1


@pytest.fixture(scope="module")
def batches():
    """Return a design, widths of an MLP, and 12 batches of `(x, metadata, y)` of unequal size."""
    x, table = make_people(120)
    design = fit_design(table)
    metadata = encode(design, table)
    y = torch.from_numpy((table["label"] == "case").to_numpy(np.float64))[:, None]
    order = torch.randperm(240, generator=torch.Generator().manual_seed(3)) % 120
    parts = order.split([20, 31, 7, 20, 20, 1, 20, 20, 40, 20, 21, 20])
    return design, [(x[rows], metadata[rows], y[rows]) for rows in parts]


def squared_error(model: Mlp, x: Tensor, metadata: Tensor, y: Tensor) -> Tensor:
    return (model(x, metadata) - y).square().mean()


def assert_same_numbers(model: Mlp, algorithm: oracles.AlgorithmOne) -> None:
    """Assert that β and W of the model equal those of Algorithm 1 to 1e-6."""
    for norm, beta in zip(model.norms, algorithm.beta, strict=True):
        torch.testing.assert_close(norm.beta.detach(), beta, rtol=1e-6, atol=1e-6)
    for ours, theirs in zip(model.maps, algorithm.w, strict=True):
        torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("sizes", [(3, 4, 1), (3, 4, 5, 1)], ids=["one layer", "two layers"])
@pytest.mark.parametrize(
    ("optimizer", "rates"), [(torch.optim.SGD, (0.25, 0.1)), (torch.optim.Adam, (0.05, 0.01))]
)
def test_alternating_pmdn_is_algorithm_1_to_the_letter(batches, sizes, optimizer, rates):
    """Kills: subtracting with the part of the confounds that labels leave; labels first in R."""
    design, parts = batches
    weights = random_weights(*sizes)
    model = Mlp(weights, lambda d: AlternatingPMDN(design, d)).double()
    network, coefficients = split_parameters(model)
    optimizers = [optimizer(network, lr=rates[1]), optimizer(coefficients, lr=rates[0])]
    c, r = white_columns(design, parts[0][1])
    algorithm = oracles.AlgorithmOne(weights, c.shape[1], r.shape[1], optimizer, rates)
    for x, metadata, y in parts:
        alternating_step(model, lambda b=(x, metadata, y): squared_error(model, *b), *optimizers)
        algorithm.step(x, *white_columns(design, metadata), y)
        assert_same_numbers(model, algorithm)


@pytest.mark.parametrize("sizes", [(3, 4, 1), (3, 4, 5, 1)], ids=["one layer", "two layers"])
def test_one_pass_with_a_frozen_gradient_is_algorithm_1(batches, sizes):
    """With two layers, line 6 is taken layer by layer; the literal order gives other numbers.

    Kills: the wrong sign of line 6; using the old β in line 8.
    """
    design, parts = batches
    weights, rates = random_weights(*sizes), (0.25, 0.1)
    model = Mlp(weights, lambda d: dc.PMDN(design, d, gradient="frozen", step=rates[0])).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=rates[1])
    c, r = white_columns(design, parts[0][1])
    ours, literal = (
        oracles.AlgorithmOne(weights, c.shape[1], r.shape[1], torch.optim.SGD, rates, by_layer)
        for by_layer in (True, False)
    )
    for x, metadata, y in parts:
        optimizer.zero_grad()
        squared_error(model, x, metadata, y).backward()
        optimizer.step()
        for algorithm in (ours, literal):
            algorithm.step(x, *white_columns(design, metadata), y)
        assert_same_numbers(model, ours)
    distance = float((ours.w[0] - literal.w[0]).detach().abs().max())
    assert distance > 1e-4 if len(sizes) == 4 else distance < 1e-12


# Eq. 8: one joint objective instead of the alternation


class JointPmdn(nn.Module):
    """Eq. 8 as one objective, L + λ/C Σ‖f − Mβ‖², whose gradient reaches β and the features."""

    def __init__(self, weights: list[Tensor], regressors: int) -> None:
        super().__init__()
        self.maps = nn.ParameterList([nn.Parameter(weight.clone()) for weight in weights])
        self.beta = nn.Parameter(torch.zeros(regressors, weights[0].shape[1]).to(weights[0]))

    def forward(self, x: Tensor, c: Tensor, r: Tensor, y: Tensor, lam: float) -> Tensor:
        f = x @ self.maps[0]
        output = (f - c @ self.beta[: c.shape[1]]).tanh() @ self.maps[1]
        penalty = (f - r @ self.beta).square().sum() / f.shape[1] / len(f)
        return (output - y).square().mean() + lam * penalty


def test_equation_8_adds_the_pull_on_features_that_the_alternation_avoids(batches):
    """The joint gradient of W is the alternation's plus 2λ/(Cn) xᵀ(f − Rβ)."""
    design, parts = batches
    weights, lam = random_weights(3, 4, 1), 0.7
    x, metadata, y = parts[0]
    c, r = white_columns(design, metadata)
    joint = JointPmdn(weights, r.shape[1])
    model = Mlp(weights, lambda d: AlternatingPMDN(design, d)).double()
    beta = torch.randn(r.shape[1], 4, generator=torch.Generator().manual_seed(0)).double()
    with torch.no_grad():
        joint.beta.copy_(beta)
        model.norms[0].beta.copy_(beta)
    joint(x, c, r, y, lam).backward()
    squared_error(model, x, metadata, y).backward()
    pull = 2 * lam / 4 / len(x) * x.T @ (x @ weights[0] - r @ beta)
    torch.testing.assert_close(joint.maps[0].grad, model.maps[0].grad + pull, rtol=1e-9, atol=1e-9)
    assert float(pull.abs().max()) > 0.01


def test_features_of_the_joint_form_shrink_with_lambda_and_those_of_the_alternation_do_not(batches):
    """A factor of 100 in λ (joint) or in the penalty's learning rate (alternation)."""
    design, parts = batches
    weights = random_weights(3, 4, 1)
    x, metadata, y = (torch.cat(columns) for columns in zip(*parts, strict=True))
    c, r = white_columns(design, metadata)
    joint_scale, alternating_scale = [], []
    for lam in (0.01, 1.0):
        joint = JointPmdn(weights, r.shape[1])
        optimizer = torch.optim.SGD(joint.parameters(), lr=0.1)
        for _ in range(150):
            optimizer.zero_grad()
            joint(x, c, r, y, lam).backward()
            optimizer.step()
        joint_scale.append(float((x @ joint.maps[0].detach()).std(0).mean()))

        model = Mlp(weights, lambda d: AlternatingPMDN(design, d)).double()
        network, coefficients = split_parameters(model)
        optimizers = [torch.optim.SGD(network, lr=0.1), torch.optim.SGD(coefficients, lr=lam)]
        for _ in range(150):
            alternating_step(model, lambda m=model: squared_error(m, x, metadata, y), *optimizers)
        alternating_scale.append(float((x @ model.maps[0].detach()).std(0).mean()))
    assert joint_scale[1] < 0.5 * joint_scale[0]
    assert alternating_scale[1] > 0.9 * alternating_scale[0]
