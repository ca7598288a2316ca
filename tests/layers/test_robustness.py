"""Rows that are not drawn like the table, extreme features, and what else broke estimators before."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

import deconfound as dc
from deconfound.errors import DeconfoundError
from tests.conftest import least_squares_residual, make_cohort


def sites(n, shares, seed=0):
    rng = np.random.default_rng(seed)
    site = rng.choice(len(shares), n, p=np.array(shares) / sum(shares))
    table = {"site": np.array([f"s{number}" for number in site])}
    design = dc.Design(confounds=["site"]).fit(table)
    return site, design, torch.from_numpy(design.encode(table))


@pytest.mark.parametrize("seed", range(5))
def test_rmdn_on_controls_alone_with_the_label_in_keep_stays_finite_and_right(seed):
    cohort = make_cohort(n=3000, seed=seed)
    controls = torch.from_numpy(cohort.table["dx"] == 0)
    layer = dc.RMDN(cohort.design, 5)
    x, metadata = cohort.features.float(), cohort.metadata.float()
    for _ in range(6):
        for rows in torch.arange(cohort.n).split(64):
            layer(x[rows], metadata[rows], fit_on=controls[rows])
    known = np.column_stack([np.ones(int(controls.sum())), cohort.metadata.numpy()[controls, : cohort.confounds]])
    wanted = np.linalg.lstsq(known, cohort.features.numpy()[controls], rcond=None)[0][1]
    found = (layer.coefficients()["age"] * cohort.table["age"].std()).numpy()
    assert layer.skipped == 0
    np.testing.assert_allclose(found, wanted, atol=0.15)


def test_a_long_run_of_one_site_leaves_the_other_sites_coefficients_alone_in_rmdn():
    site, design, metadata = sites(4000, [0.5, 0.3, 0.2])
    x = 2.0 * torch.from_numpy(np.array([0.0, 1.0, -1.0])[site]).float()[:, None] + 0.1 * torch.randn(4000, 3)
    layer = dc.RMDN(design, 3)
    for rows in torch.arange(4000).split(50):
        layer(x[rows], metadata[rows])
    before = {name: value.clone() for name, value in layer.coefficients().items()}
    one = torch.from_numpy(np.flatnonzero(site == 0))
    for _ in range(18):  # 36,000 rows
        for rows in one.split(50):
            layer(x[rows], metadata[rows])
    for name, value in layer.coefficients().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0.1)


@pytest.mark.parametrize("gram", ["running", "training"])
def test_mdn_removes_the_whole_slope_where_the_rows_that_fit_have_a_narrower_age_range(gram):
    """The paper's Gram matrix is that of the table, whose spread is more than twice that of the controls."""
    rng = np.random.default_rng(0)
    control = np.arange(4000) % 2 == 0
    age = np.where(control, rng.normal(60, 5, 4000), rng.normal(60, 15, 4000))
    design = dc.Design(confounds=["age"]).fit({"age": age})
    metadata = torch.from_numpy(design.encode({"age": age}))
    x = 3.0 * metadata + torch.randn(4000, 2)
    layer = dc.MDN(design, 2, gram=gram)
    for rows in torch.randperm(4000).split(100):
        layer(x[rows], metadata[rows], fit_on=torch.from_numpy(control)[rows])
    removed = layer.coefficients()["age"] * age.std() / 3.0
    if gram == "running":
        assert (removed - 1).abs().max() < 0.1
    else:
        assert removed.max() < 0.5  # the control


def test_mdn_leaves_nothing_between_sites_under_a_balanced_sampler():
    site, design, metadata = sites(4000, [0.9, 0.1])
    x = 10.0 * torch.from_numpy(site == 1).float()[:, None] + torch.randn(4000, 1)
    left = {}
    for gram in ("running", "training"):
        layer, draw = dc.MDN(design, 1, gram=gram), np.random.default_rng(0)
        for _ in range(150):
            rows = np.concatenate([draw.choice(np.flatnonzero(site == level), 50) for level in (0, 1)])
            layer(x[rows], metadata[rows])
        out = layer.eval()(x, metadata)
        left[gram] = abs(out[site == 1].mean() - out[site == 0].mean()).item()
    assert left["running"] < 0.5
    assert left["training"] > 3  # the control


@pytest.mark.parametrize(("step", "allowed"), [("average", 0.02), (None, 0.15)])
def test_means_of_a_hundred_sd_are_no_harder_than_others(step, allowed):
    cohort = make_cohort(n=2000, mean=100.0)
    layer = dc.PMDN(cohort.design, 5, step=step).double()
    order = torch.Generator().manual_seed(0)
    for _ in range(5):
        for rows in torch.randperm(cohort.n, generator=order).split(50):
            layer(cohort.features[rows], cohort.metadata[rows])
    expected = least_squares_residual(cohort)
    found = layer.eval()(cohort.features, cohort.metadata).numpy()
    assert np.linalg.norm(found - expected) / np.linalg.norm(expected - expected.mean(0)) < allowed


@pytest.mark.parametrize("batch", [20, 50, 200])
def test_skewed_still_features_stay_below_a_fifth_of_the_noise_and_the_refit_takes_that_away(batch):
    """84 still features after a ReLU, ten sites, one with 73 % of the rows."""
    site, design, metadata = sites(5000, [0.73] + [0.03] * 9)
    rng = torch.Generator().manual_seed(0)
    x = (torch.randn(5000, 84, generator=rng) + 0.5 * torch.randn(10, 84, generator=rng)[site] - 1).relu()
    model = dc.normalize(torch.nn.Sequential(torch.nn.Identity()), design, at="0", layer="pmdn", example=x[:2])
    for _ in range(5):
        for rows in torch.randperm(5000, generator=rng).split(batch):
            model(x[rows], metadata=metadata[rows])
    regressors = torch.cat([metadata @ torch.from_numpy(design.whitening).float(), torch.ones(5000, 1)], 1).double()
    beta = torch.linalg.lstsq(regressors, x.double()).solution
    exact = x.double() - regressors[:, :-1] @ beta[:-1]
    noise = (x.double() - regressors @ beta).std(0)

    def error():
        return ((model.eval()(x, metadata=metadata).double() - exact) / noise).square().mean().sqrt()

    assert 0.05 < error() < 0.2
    model.refit([(x, metadata)])
    assert error() < 0.025


def drift_error(large=False, memory=250.0):
    """How far β is behind slopes that grow, without the first feature, which may be a thousand times as large."""
    rng = torch.Generator().manual_seed(0)
    age = np.random.default_rng(0).normal(60, 10, 1000)
    design = dc.Design(confounds=["age"]).fit({"age": age})
    metadata = torch.from_numpy(design.encode({"age": age}))
    layer, errors = dc.PMDN(design, 8, memory=memory), []
    for step in range(300):
        rows = torch.randint(0, 1000, (20,), generator=rng)
        slope = torch.full((8,), 0.05 * step)
        slope[0] = 0.0
        x = torch.randn(20, 8, generator=rng) + slope * metadata[rows, :1]
        x[:, 0] *= 1000.0 if large else 1.0
        layer(x, metadata[rows])
        if step >= 200:
            errors.append((layer.coefficients()["age"][1:] * age.std() - slope[1:]).square().mean().sqrt().item())
    return np.mean(errors)


def test_drift_is_followed_by_a_short_memory_and_not_by_a_long_one():
    """Slopes that grow by .05 in a step of 20 rows: 250 rows later they have grown by .6."""
    assert drift_error() < 0.7
    assert drift_error(memory=2500.0) > 4  # the control


def test_one_large_feature_changes_nothing_for_the_others():
    assert drift_error(large=True) == drift_error()


@pytest.mark.parametrize("size", [1e30, torch.inf, torch.nan])
@pytest.mark.parametrize("kind", [dc.PMDN, dc.RMDN, dc.MDN])
def test_a_batch_with_extreme_features_is_skipped_and_counted_or_forgotten(cohort, kind, size):
    layer, metadata = kind(cohort.design, 5), cohort.metadata.float()
    layer(cohort.features.float(), metadata)
    before = layer._beta().clone()
    spoilt = cohort.features.float().clone()
    spoilt[3, 2] = size
    layer(spoilt, metadata)
    if not np.isfinite(size):
        assert layer.skipped == 1
        kept = (layer._beta() == before).all(0).tolist()
        assert kept == [kind is not dc.PMDN, kind is not dc.PMDN, True, kind is not dc.PMDN, kind is not dc.PMDN]
    for _ in range(30):
        layer(cohort.features.float(), metadata)
    assert torch.isfinite(layer._beta()).all()


def test_a_nan_label_that_nobody_refused_is_counted(cohort):
    """As on a GPU or in compiled code, where a look at the metadata would make every step wait."""
    layer, metadata = dc.PMDN(cohort.design, 5), cohort.metadata.float().clone()
    metadata[0, -1] = torch.nan
    out = layer.normalise(cohort.features.float(), layer.whiten(metadata))
    assert layer.skipped == 1
    assert torch.isfinite(out).all()


def test_second_derivatives_are_refused_while_learning_and_right_where_nothing_is_learned(cohort):
    layer = dc.PMDN(cohort.design, 5).double()
    x = cohort.features.clone().requires_grad_()
    layer(x, cohort.metadata).square().mean().backward()
    with pytest.raises(DeconfoundError, match=r"create_graph=True must not change what PMDN has learned"):
        torch.autograd.grad(layer(x, cohort.metadata).square().mean(), x, create_graph=True)
    with dc.frozen_statistics(layer):
        (first,) = torch.autograd.grad(layer(x, cohort.metadata).pow(3).mean(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.isfinite(second).all()
    assert second.abs().max() > 0


@pytest.fixture
def trained(cohort):
    """A small model in double precision whose implicit gradient has learned something."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    model = dc.normalize(network, cohort.design, at=["0", "2"], example=cohort.features[:2])
    for _ in range(5):
        model(cohort.features, metadata=cohort.metadata).square().mean().backward()
    assert model.layers["0"].gradient_mean.abs().max() > 0.01
    return model


def slopes(model, cohort, **options):
    x = cohort.features.clone().requires_grad_()
    return torch.autograd.grad(model(x, metadata=cohort.metadata).pow(2).sum(), x, **options)[0]


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen statistics", "training mode"])
def test_a_saliency_map_is_that_of_eval_with_the_same_coefficients(trained, cohort, frozen):
    with trained.frozen_statistics() if frozen else nullcontext():
        found = slopes(trained, cohort)
    torch.testing.assert_close(found, slopes(trained.eval(), cohort))


def test_a_saliency_map_through_inputs_inside_a_mapping_changes_nothing_that_was_learned(trained, cohort):
    class Named(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, parts):
            return self.inner(parts["image"])

    model = dc.normalize(Named(trained.remove()), cohort.design, at=["inner.0"], example=({"image": cohort.features},))
    model({"image": cohort.features}, metadata=cohort.metadata).square().mean().backward()
    before = model.layers["inner/0"].gradient_mean.clone()
    x = cohort.features.clone().requires_grad_()
    torch.autograd.grad(model({"image": x}, metadata=cohort.metadata).sum(), x)
    assert torch.equal(model.layers["inner/0"].gradient_mean, before)


def test_a_penalty_on_the_gradient_of_inputs_has_its_own_derivative_where_nothing_is_learned(trained, cohort):
    weight = trained.network[0].weight
    with trained.frozen_statistics():
        trained.zero_grad()
        slopes(trained, cohort, create_graph=True).square().mean().backward()
        for place in ((0, 0), (3, 4)):
            around = []
            for step in (1e-5, -1e-5):
                with torch.no_grad():
                    weight[place] += step
                around.append(slopes(trained, cohort).square().mean().item())
                with torch.no_grad():
                    weight[place] -= step
            expected = (around[0] - around[1]) / 2e-5
            assert weight.grad[place].item() == pytest.approx(expected, rel=1e-5)


def test_a_penalty_on_the_gradient_of_inputs_trains_a_network(trained, cohort):
    trained.zero_grad()
    slopes(trained, cohort, create_graph=True).square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in (trained.network[0].weight, trained.network[2].weight))


@pytest.mark.parametrize("kind", [dc.PMDN, dc.RMDN, dc.MDN])
def test_torch_func_is_refused_in_training_and_works_in_eval(cohort, kind):
    layer = kind(cohort.design, 5)
    x, metadata = torch.randn(3, 40, 5), cohort.metadata[:40].float()
    with pytest.raises(DeconfoundError, match=r"must run outside of torch\.func transforms"):
        torch.vmap(lambda x: layer(x, metadata))(x)
    with pytest.raises(DeconfoundError, match=r"must run outside of torch\.func transforms"):
        torch.func.grad(lambda x: layer(x, metadata).sum())(x[0])
    layer.eval()
    assert torch.vmap(lambda x: layer(x, metadata))(x).shape == x.shape
    by_row = torch.vmap(lambda row, about: layer(row[None], about[None])[0])(x[0], metadata)
    torch.testing.assert_close(by_row, layer(x[0], metadata))
