"""The residualiser is least squares on the user's own columns, and reads no labels later."""

from __future__ import annotations

import numpy as np
import pytest

import deconfound as dc
from deconfound.adjust import Residualizer
from deconfound.errors import ShapeError, StateError
from tests.helpers import CONFOUNDS, encode, fit_design, make_people
from tests.oracles import explained_share, residual


def fitted(keep=("label",), weight=None, **options):
    """Return features, table, metadata and a fitted residualiser of some people."""
    features, table = make_people(**options)
    design = dc.Design(CONFOUNDS, keep=keep).fit(table, weight=weight)
    metadata = encode(design, table).numpy()
    residualizer = Residualizer(design).fit(features.numpy(), metadata, weight)
    return features, table, metadata, residualizer


@pytest.mark.parametrize("keep", [(), ("label",)])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_it_is_least_squares_on_the_user_s_columns(keep, offset):
    """Kills labels that are left out of the fit, or removed, and an intercept without centring."""
    features, table, metadata, residualizer = fitted(keep, offset=offset, sites=4)
    expected = residual(features, table, CONFOUNDS, keep)
    found = residualizer.transform(features.numpy(), metadata)
    np.testing.assert_allclose(found, expected, atol=1e-9 * max(1, offset), rtol=0)


def test_no_confound_is_left_and_each_was_there_before():
    """Kills a removal that ignores the mean or the scale of one of five confounds."""
    features, table, metadata, residualizer = fitted(())
    left = residualizer.transform(features.numpy(), metadata)
    for name in CONFOUNDS:
        assert explained_share(features.numpy(), table, [name]) > 0.02
        assert explained_share(left, table, [name]) < 1e-12


def test_the_label_s_effect_stays_where_it_is_kept():
    """Kills keep that has no effect; without it the label's effect shrinks (control)."""
    features, table = make_people(20_000, noise=0.1)
    is_case = (table["label"] == "case").to_numpy()

    def gap(keep):
        design = fit_design(table, keep=keep)
        metadata = encode(design, table).numpy()
        left = Residualizer(design).fit(features.numpy(), metadata).transform(features, metadata)
        return np.abs(left[is_case].mean(0) - left[~is_case].mean(0))

    shared = residual(features, table, CONFOUNDS, ["label"])
    expected = np.abs(shared[is_case].mean(0) - shared[~is_case].mean(0))
    np.testing.assert_allclose(gap(["label"]), expected, rtol=1e-6)
    assert (gap([]) < 0.8 * expected).all()


def test_new_rows_need_no_labels_and_are_treated_one_at_a_time():
    """Kills β that is fitted again, batch means, and label columns that are read."""
    _, _, _, residualizer = fitted()
    features, table = make_people(30, seed=1)
    design = residualizer.design
    unlabelled = design.encode(table.drop(columns="label"), dtype=np.float64)
    assert np.isnan(unlabelled[:, -1]).all()
    together = residualizer.transform(features, unlabelled)
    alone = [residualizer.transform(features[[i]], unlabelled[[i]]) for i in range(30)]
    np.testing.assert_allclose(np.concatenate(alone), together, atol=1e-12)
    with_labels = residualizer.transform(features, encode(design, table))
    np.testing.assert_allclose(with_labels, together, atol=1e-12)


def test_a_weight_of_two_is_the_row_twice_and_zero_is_no_row():
    """Kills weights that miss the means, and rows of weight 0 that must be complete."""
    features, table = make_people(200)
    values = features.numpy()
    weight = np.random.default_rng(0).integers(0, 3, 200)
    repeated = np.repeat(np.arange(200), weight)
    design = fit_design(table)
    metadata = encode(design, table).numpy()
    plain = Residualizer(design).fit(values[repeated], metadata[repeated])
    values_with_gaps, metadata_with_gaps = values.copy(), metadata.copy()
    values_with_gaps[weight == 0] = np.nan
    metadata_with_gaps[weight == 0] = np.nan
    weighted = Residualizer(design).fit(values_with_gaps, metadata_with_gaps, weight)
    np.testing.assert_allclose(
        weighted.transform(values, metadata), plain.transform(values, metadata), atol=1e-9
    )
    unweighted = Residualizer(design).fit(values, metadata)
    assert np.abs(weighted.beta - unweighted.beta).max() > 1e-3


def test_the_rows_of_the_fit_need_not_be_those_of_the_design():
    """There, the metadata have other means. Kills a fit without an intercept."""
    features, table, metadata, residualizer = fitted(offset=50.0)
    old = (table["age"] > 70).to_numpy()
    ones = np.ones((len(table), 1))
    regressors = np.column_stack([metadata @ residualizer.design.whitening, ones])
    expected = np.linalg.lstsq(regressors[old], features.numpy()[old], rcond=None)[0]
    refitted = Residualizer(residualizer.design).fit(features.numpy()[old], metadata[old])
    directions = residualizer.design.confound_directions
    np.testing.assert_allclose(refitted.beta, expected[:directions], atol=1e-9)
    assert np.abs(refitted.beta - residualizer.beta).max() > 0.05


def test_coefficients_are_in_the_user_s_units():
    """Kills coefficients per sd. Each year of age costs a tenth."""
    _, table = make_people(400)
    features = np.column_stack([5 - 0.1 * table["age"], 3e-6 * table["volume"]])
    design = fit_design(table)
    metadata = encode(design, table).numpy()
    found = Residualizer(design).fit(features, metadata).coefficients()
    assert list(found) == ["age", "volume", "dose", "site[site B]", "sex[M]"]
    np.testing.assert_allclose(found["age"], [-0.1, 0], atol=1e-10)
    np.testing.assert_allclose(found["volume"] * 1e6, [0, 3], atol=1e-6)


def test_metadata_in_single_precision_remove_no_rounding():
    """A direction without variance in the fitted rows is not fitted. Kills rtol = machine eps."""
    _, table, metadata, residualizer = fitted(sites=3)
    one_site = (table["site"] == "site A").to_numpy()
    values = np.random.default_rng(0).normal(size=(one_site.sum(), 3))
    single = metadata[one_site].astype(np.float32)
    refitted = Residualizer(residualizer.design).fit(values, single)
    assert np.abs(refitted.beta).max() < 1
    left = refitted.transform(values.astype(np.float32), single)
    assert left.dtype == np.float32
    double = Residualizer(residualizer.design).fit(values, metadata[one_site])
    np.testing.assert_allclose(left, double.transform(values, metadata[one_site]), atol=1e-4)


def test_beta_restores_a_fitted_residualiser():
    """Kills state that is hidden elsewhere."""
    features, _, metadata, residualizer = fitted()
    copy = Residualizer(dc.Design.from_dict(residualizer.design.to_dict()))
    copy.beta = residualizer.beta
    expected = residualizer.transform(features, metadata)
    np.testing.assert_allclose(copy.transform(features, metadata), expected, atol=1e-12)


def test_what_does_not_fit_is_refused_with_the_way_out():
    """Kills broadcasting, and NaN that spreads to every row."""
    features, _, metadata, residualizer = fitted(n=50)
    values, design = features.numpy(), residualizer.design
    gaps = metadata.copy()
    gaps[3, 0] = np.nan
    faults = [
        (lambda: Residualizer(dc.Design(["age"])), StateError, "design is not fitted"),
        (lambda: Residualizer(design).transform(values, metadata), StateError, "Call fit"),
        (lambda: residualizer.fit(values[:, 0], metadata), ShapeError, r"\(n, d\); got \(50,\)"),
        (lambda: residualizer.fit(values, metadata[:9]), ShapeError, r"\(50, 6\).*got \(9, 6\)"),
        (lambda: residualizer.fit(values, gaps), ShapeError, "metadata must be finite; got NaN"),
        (lambda: residualizer.transform(values, gaps), ShapeError, "in 1 rows, the first is row 3"),
        (lambda: residualizer.transform(values[:, :2], metadata), ShapeError, "3 columns, as in"),
        (lambda: residualizer.fit(values, metadata, -np.ones(50)), ShapeError, "of 0 or more"),
        (lambda: residualizer.fit(values, metadata, [1.0]), ShapeError, r"got shape \(1,\)"),
    ]
    for call, error, message in faults:
        with pytest.raises(error, match=message):
            call()
