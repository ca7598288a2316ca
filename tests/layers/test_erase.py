"""Erase: no linear probe within any label finds the confounds, by the least change of the features."""

import warnings

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import deconfound as dc
from deconfound.errors import OptionError
from tests.conftest import make_cohort, make_table

WIDE = 14


def erased(cohort, **options):
    """A layer fitted to all rows at once, and what it makes of them."""
    layer = dc.Erase(cohort.design, cohort.features.shape[1], memory=float("inf"), **options).double()
    layer(cohort.features, cohort.metadata)
    return layer, layer.eval()(cohort.features, None)


def covariances(features, cohort, weights=None, groups=None):
    """Cross-covariances of features and confounds within each label, by numpy on the standardised columns."""
    groups = cohort.table["dx"] if groups is None else groups
    z = cohort.metadata.numpy()[:, : cohort.confounds]
    w = np.ones(len(z)) if weights is None else np.asarray(weights)
    f, found = np.asarray(features), []
    for level in np.unique(groups):
        rows = groups == level
        share = (w[rows] / w[rows].sum())[:, None]
        centred = f[rows] - (share * f[rows]).sum(0)
        found.append((share * centred).T @ (z[rows] - (share * z[rows]).sum(0)))
    return np.concatenate(found, 1)


def within_covariance(cohort):
    f = cohort.features.numpy()
    dx = cohort.table["dx"]
    centred = f - np.stack([f[dx == level].mean(0) for level in dx])
    return centred.T @ centred / len(f)


def test_no_linear_probe_within_any_label_finds_the_confound_on_the_fitted_rows():
    cohort = make_cohort(400, WIDE, mean=5.0)
    layer, out = erased(cohort)
    assert np.abs(covariances(cohort.features, cohort)).max() > 0.5  # the control
    assert np.abs(covariances(out, cohort)).max() < 1e-8
    assert layer.report().rank == layer.report().directions == 8
    torch.testing.assert_close(out.mean(0), cohort.features.mean(0))


def test_the_map_is_the_closed_form_and_no_other_that_erases_changes_features_less():
    cohort = make_cohort(400, WIDE)
    _, out = erased(cohort, shrinkage=0.0)
    f, sigma, cross = cohort.features.numpy(), within_covariance(cohort), covariances(cohort.features, cohort)
    # E = Σ^½ P Σ^-½, P the projector on the columns of Σ^-½ S, by numpy.
    values, vectors = np.linalg.eigh(sigma)
    root, inverse = ((vectors * values**power) @ vectors.T for power in (0.5, -0.5))
    basis = np.linalg.qr(inverse @ cross)[0]
    closed = root @ basis @ basis.T @ inverse
    np.testing.assert_allclose(out.numpy(), f - (f - f.mean(0)) @ closed.T, atol=1e-8)

    def change(removal):
        """E‖f − r‖² within labels, in the norm of Σ⁻¹."""
        return np.trace(np.linalg.solve(sigma, removal @ sigma @ removal.T))

    rng = np.random.default_rng(0)
    for scale in (1.0, 0.1, 0.01):
        other = scale * rng.normal(size=(WIDE, WIDE))
        alternative = closed + other - other @ closed  # any map with E S = S
        assert np.abs(cross - alternative @ cross).max() < 1e-9
        assert change(alternative) > change(closed)


def test_without_labels_it_equals_the_package_of_the_authors():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it scripts functions with torch.jit
        package = pytest.importorskip("concept_erasure")
    table = make_table(500)
    design = dc.Design(confounds=["age", "sex", "site"]).fit(table)
    cohort = make_cohort(500, WIDE)
    layer = dc.Erase(design, WIDE, memory=float("inf"), shrinkage=0.0).double()
    layer(cohort.features, design.encode(table, np.float64))
    z = torch.from_numpy(design.encode(table, np.float64))
    fitter = package.LeaceFitter.fit(cohort.features, z, shrinkage=False, constrain_cov_trace=False, svd_tol=1e-9)
    theirs = fitter.eraser(cohort.features)
    torch.testing.assert_close(layer.eval()(cohort.features, None), theirs, atol=1e-7, rtol=0)
    assert layer.report().rank == 4


@pytest.mark.parametrize("unit", ["confound", "feature"])
def test_units_of_confounds_and_features_change_nothing(unit):
    cohort = make_cohort(300, WIDE)
    _, usual = erased(cohort)
    table = dict(cohort.table)
    if unit == "confound":
        table["age"] = 0.01 * table["age"]
    design = dc.Design(confounds=["age", "sex", "site"], keep=["dx"]).fit(table)
    scale = torch.logspace(-4, 4, WIDE, dtype=torch.float64) if unit == "feature" else 1.0
    layer = dc.Erase(design, WIDE, memory=float("inf")).double()
    layer(scale * cohort.features, design.encode(table, np.float64))
    out = layer.eval()(scale * cohort.features, None) / scale
    torch.testing.assert_close(out, usual, atol=1e-6, rtol=0)


def test_a_numeric_label_is_regressed_out_first():
    cohort = make_cohort(400, WIDE)
    table = {**cohort.table, "score": cohort.table["age"] / 10 + np.random.default_rng(1).normal(size=400)}
    design = dc.Design(confounds=["age", "sex", "site"], keep=["score"]).fit(table)
    features = cohort.features + torch.from_numpy(table["score"])[:, None]
    layer = dc.Erase(design, WIDE, memory=float("inf")).double()
    layer(features, design.encode(table, np.float64))
    assert layer.report().directions == 4
    columns = np.column_stack([np.ones(400), table["score"]])

    def left(values):
        return values - columns @ np.linalg.lstsq(columns, values, rcond=None)[0]

    z = left(cohort.metadata.numpy()[:, : cohort.confounds])
    assert np.abs(left(features.numpy()).T @ z / 400).max() > 0.1  # the control
    assert np.abs(left(layer.eval()(features, None).numpy()).T @ z / 400).max() < 1e-8


def test_several_labels_make_a_group_of_each_combination():
    cohort = make_cohort(600, 24)
    rng = np.random.default_rng(2)
    table = {**cohort.table, "dx": np.where(cohort.table["dx"], "case", "control"), "hiv": rng.integers(0, 2, 600) > 0}
    design = dc.Design(confounds=["age", "sex", "site"], keep=["dx", "hiv"]).fit(table)
    layer = dc.Erase(design, 24, memory=float("inf")).double()
    layer(cohort.features, design.encode(table, np.float64))
    assert layer.report().directions == layer.report().rank == 16
    groups = 2 * cohort.table["dx"] + table["hiv"]
    assert np.abs(covariances(layer.eval()(cohort.features, None), cohort, groups=groups)).max() < 1e-8


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_more_features_than_rows_are_erased_all_the_same(covariance):
    cohort = make_cohort(90, 200)
    _, out = erased(cohort, covariance=covariance)
    assert np.abs(covariances(out, cohort)).max() < 1e-8
    assert (out - cohort.features).norm() < 0.9 * cohort.features.norm()  # and something is left


def test_moments_of_small_batches_are_those_of_all_rows_and_weights_count(cohort):
    weights = torch.rand(cohort.n, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    design, x = cohort.design, torch.cat([cohort.features, cohort.features.square(), cohort.features.sin()], 1)
    small = dc.Erase(design, 15, memory=float("inf")).double()
    for rows in torch.arange(cohort.n).split(7):
        small(x[rows], cohort.metadata[rows], weight=weights[rows])
    out = small.eval()(x, None)
    assert np.abs(covariances(out, cohort, weights)).max() < 1e-8
    assert np.abs(covariances(out, cohort)).max() > 1e-4  # the control: other weights, other moments
    masked, fewer = (dc.Erase(design, 15).double() for _ in range(2))
    chosen = torch.arange(cohort.n) % 3 > 0
    masked(x, cohort.metadata, fit_on=chosen)
    fewer(x[chosen], cohort.metadata[chosen])
    torch.testing.assert_close(masked._beta(), fewer._beta())


def test_memory_forgets_what_features_were_before():
    cohort = make_cohort(400, WIDE)
    layer = dc.Erase(cohort.design, WIDE, memory=100.0, shrinkage=0.0).double()
    for _ in range(4):
        layer(cohort.features.flip(1) * 3 + 10, cohort.metadata)
    for _ in range(6):
        layer(cohort.features, cohort.metadata)
    fresh, out = erased(cohort, shrinkage=0.0)
    torch.testing.assert_close(layer.eval()(cohort.features, None), out, atol=1e-6, rtol=0)
    assert layer.report().rows == pytest.approx(400 / (1 - np.exp(-4)), rel=0.01)
    assert fresh.report().rows == 400


def test_the_report_tells_how_much_of_the_label_goes():
    cohort = make_cohort(2000, WIDE)
    label = torch.from_numpy(cohort.table["dx"])[:, None].double()
    noise = torch.randn(2000, WIDE, dtype=torch.float64)
    age = cohort.metadata[:, :1]
    apart, same = noise.clone(), noise.clone()
    apart[:, :1] += 2 * age
    apart[:, 1:2] += 2 * label
    same[:, :1] += 2 * age + 2 * label  # the label lies along the confound
    design = dc.Design(confounds=["age"], keep=["dx"]).fit(cohort.table)
    shares = []
    for features in (apart, same):
        layer = dc.Erase(design, WIDE).double()
        layer(features, design.encode(cohort.table, np.float64))
        shares.append(layer.report().removed_label_signal)
    assert shares[0] < 0.05
    assert shares[1] > 0.8
    assert np.isnan(dc.Erase(design, WIDE).report().removed_label_signal)


def test_a_shift_of_a_new_site_goes_as_far_as_it_lies_in_the_span_of_known_ones():
    cohort = make_cohort(400, WIDE)
    layer, _ = erased(cohort)
    in_span = torch.from_numpy(covariances(cohort.features, cohort)[:, 0])
    rows = cohort.features[:20]
    torch.testing.assert_close(layer(rows + 3 * in_span, None), layer(rows, None), atol=1e-9, rtol=0)
    outside = torch.linalg.qr(torch.cat([layer._beta()[1:], torch.randn(1, WIDE).double()]).T)[0][:, -1]
    assert (layer(rows + 3 * outside, None) - layer(rows, None)).norm() > 1


def test_a_confound_that_is_constant_in_a_group_takes_no_direction_of_it_away():
    rng = np.random.default_rng(0)
    dx = np.arange(300) % 2
    table = {"sex": np.where((rng.random(300) < 0.5) & (dx == 0), "M", "F"), "dx": dx}  # no man is a case
    design = dc.Design(confounds=["sex"], keep=["dx"]).fit(table)
    features = torch.from_numpy(rng.normal(size=(300, 6)) + 3.0 * (table["sex"] == "M")[:, None] + 1000.0).float()
    layer = dc.Erase(design, 6)
    for rows in torch.arange(300).split(10):
        layer(features[rows], design.encode({name: values[rows] for name, values in table.items()}))
    assert layer.report().directions == 2
    assert layer.report().rank == 1


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_confounds_that_are_collinear_in_one_group_take_one_direction_of_it_away(kind):
    rng = np.random.default_rng(0)
    dx, age = np.arange(400) % 2, rng.normal(size=400)
    dose = np.where(dx == 0, 2 * age, rng.normal(size=400))
    table = {"age": age, "dose": dose, "score": age + rng.normal(size=400), "dx": np.where(dx, "case", "control")}
    # Within a label, what whitening made of the score and of the label is collinear too.
    design = dc.Design(confounds=["age", "dose"], keep=["score", "dx"]).fit(table)
    features = rng.normal(size=(400, 8)) + np.column_stack([age, dose, table["score"]]) @ rng.normal(size=(3, 8))
    layer = dc.Erase(design, 8, memory=float("inf")).to(kind)
    encoded = torch.from_numpy(design.encode(table, np.float64)).to(kind)
    for rows in torch.arange(400).split(10):
        layer(torch.from_numpy(features).to(kind)[rows], encoded[rows])
    assert layer.report().directions == 4
    assert layer.report().rank == 3
    out = layer.eval()(torch.from_numpy(features).to(kind), None).double().numpy()

    def strongest(values):
        found = []
        for rows in (dx == 0, dx == 1):
            columns = np.column_stack([np.ones(200), table["score"][rows]])
            both = np.column_stack([values[rows], age[rows], dose[rows]])
            left = both - columns @ np.linalg.lstsq(columns, both, rcond=None)[0]
            found.append(np.abs(np.corrcoef(left.T)[:8, 8:]).max())
        return max(found)

    assert strongest(features) > 0.5  # the control
    assert strongest(out) < (1e-7 if kind == torch.float64 else 1e-4)


class Operations(TorchDispatchMode):
    """Notes the name of every operation."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("options", [{}, {"shrinkage": 0.1}, {"covariance": "diagonal"}])
def test_a_training_step_has_no_operation_that_a_cuda_graph_cannot_hold(options):
    waits = {"_linalg_svd", "_linalg_eigh", "linalg_lstsq", "nonzero", "lift_fresh"}
    cohort = make_cohort(60, WIDE)
    layer = dc.Erase(cohort.design, WIDE, **options)
    batch = layer.train().whiten(cohort.metadata.float())
    with Operations() as step:
        layer.normalise(cohort.features.float(), batch)
    assert "linalg_cholesky_ex" in step.names
    assert not step.names & waits
    with Operations() as told:
        layer.report()
    assert told.names & waits  # the control


def test_a_batch_that_is_not_finite_teaches_nothing_and_is_counted(cohort):
    layer = dc.Erase(cohort.design, 5).double()
    layer(cohort.features, cohort.metadata)
    before = layer._beta().clone()
    bad = cohort.features.clone()
    bad[3, 2] = torch.inf
    layer(bad, cohort.metadata)
    assert torch.equal(layer._beta(), before)
    assert layer.skipped == 1


def test_the_kernels_that_subtract_a_beta_are_not_used(cohort, monkeypatch):
    layer = dc.Erase(cohort.design, 5).double()
    layer(cohort.features, cohort.metadata)
    expected = layer.eval()(cohort.features, cohort.metadata)
    monkeypatch.setattr("deconfound.layers.pmdn.kernels.usable", lambda *tensors: True)
    assert torch.equal(layer(cohort.features, cohort.metadata), expected)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"memory": 0}, "memory must be a number of rows, 1 or more; got 0"),
        ({"shrinkage": 1.5}, r"shrinkage must lie in \[0, 1\], or be None; got 1.5"),
        ({"covariance": "low"}, "covariance must be 'auto', 'full' or 'diagonal'; got 'low'"),
    ],
)
def test_options_that_cannot_be_are_refused(cohort, options, text):
    with pytest.raises(OptionError, match=text):
        dc.Erase(cohort.design, 5, **options)
