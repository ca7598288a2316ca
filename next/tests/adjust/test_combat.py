"""ComBat is the classical one: neuroCombat's figures, its limits, and rows that it never saw."""

from __future__ import annotations

import json
import pathlib
import warnings

import numpy as np
import pandas as pd
import pytest

import deconfound as dc
from deconfound.adjust import ComBat, Residualizer, SiteEffects
from deconfound.errors import DeconfoundWarning, OptionError, ShapeError, StateError, TableError
from tests.oracles import explained_share

FIGURES = json.loads(pathlib.Path(__file__).with_name("neurocombat_figures.json").read_text())


def encode(design, table):
    return design.encode(table, dtype=np.float64)


def fit(features, table, confounds=("site",), keep=(), **options):
    """Return the adjusted features and the ComBat fitted to them."""
    design = dc.Design(confounds, keep=keep, **options).fit(table)
    combat = ComBat(design, "site").fit(features, encode(design, table))
    return combat.transform(features, encode(design, table)), combat


def make_sites(counts, d=30, seed=0, location=1.0, scale=1.0):
    """Return features with a location and scale for each site and feature, and the table."""
    rng = np.random.default_rng(seed)
    site = np.repeat(np.arange(len(counts)), counts)
    shifts = location * rng.normal(size=(len(counts), d))
    scales = np.exp(scale * rng.normal(size=(len(counts), d)) / 2)
    age = rng.normal(60, 8, size=len(site))
    features = 100 + np.outer(age - 60, rng.normal(size=d)) / 8
    features += shifts[site] + scales[site] * rng.normal(size=(len(site), d))
    return features, pd.DataFrame({"site": np.array(list("ABCDEF"))[site], "age": age})


@pytest.mark.parametrize("kind", ["site", "site, sex, dx, age"])
def test_figures_are_those_of_neurocombat(kind):
    """Kills priors pooled over sites, n − 1 for n, and an iteration that stops early."""
    features, table = np.array(FIGURES["features"]), pd.DataFrame(FIGURES["table"])
    adjusted, combat = fit(features, table, kind.split(", "))
    expected = FIGURES[kind]
    sigma = features.std(axis=0)
    found = combat.effects
    np.testing.assert_allclose(found.location / sigma, expected["location"] / sigma, atol=1e-8)
    np.testing.assert_allclose(found.scale, expected["scale"], rtol=1e-8)
    np.testing.assert_allclose(adjusted / sigma, expected["adjusted"] / sigma, atol=1e-7)
    assert np.abs(adjusted / sigma - features / sigma).max() > 0.5


def test_unknown_labels_stand_at_their_mean():
    """The sites' estimates are those with labels. Kills labels that are read, or left out.

    neuroCombat knows the labels and does not scale their effect L β; here it is scaled as noise is.
    """
    features, table = np.array(FIGURES["features"]), pd.DataFrame(FIGURES["table"])
    adjusted, combat = fit(features, table, ["site", "sex", "age"], keep=["dx"])
    expected = FIGURES["site, sex, dx, age"]
    np.testing.assert_allclose(combat.effects.scale, expected["scale"], rtol=1e-8)
    columns = pd.get_dummies(table["site"]).to_numpy(float)
    is_case, is_male = table["dx"].eq("AD").to_numpy(float), table["sex"].eq("M").to_numpy(float)
    regressors = np.column_stack([columns, table["age"], is_male, is_case])
    effect = np.linalg.lstsq(regressors, features, rcond=None)[0][-1]
    labels = np.outer(is_case - is_case.mean(), effect)
    scale = np.array(expected["scale"])[pd.factorize(table["site"])[0]]
    sigma = features.std(axis=0)
    found = adjusted - (np.array(expected["adjusted"]) + labels / scale - labels)
    assert np.abs(found / sigma).max() < 1e-7
    design = combat.design
    unlabelled = encode(design, table.drop(columns="dx"))
    np.testing.assert_array_equal(combat.transform(features, unlabelled), adjusted)


def test_labels_that_follow_the_site_keep_their_effect():
    """Without `keep`, ComBat credits a part of it to the sites (control)."""
    features, table = make_sites([400, 400], location=0, scale=0)
    rng = np.random.default_rng(1)
    is_case = rng.random(800) < np.where(table["site"] == "A", 0.2, 0.8)
    table["dx"] = np.where(is_case, "AD", "CN")
    features = features + 2.0 * is_case[:, None]

    def gap(keep):
        adjusted, _ = fit(features, table, ["site"], keep=keep)
        return float((adjusted[is_case].mean(0) - adjusted[~is_case].mean(0)).mean())

    assert gap(["dx"]) == pytest.approx(2.0, abs=0.1)
    assert gap([]) < 1.6


def test_many_rows_per_site_need_no_prior():
    """Then ComBat is the plain standardisation within sites."""
    features, table = make_sites([20_000, 20_000], d=4)
    adjusted, combat = fit(features, table)
    site = table["site"].to_numpy()
    means = {level: features[site == level].mean(axis=0) for level in "AB"}
    centred = features - np.where((site == "A")[:, None], means["A"], means["B"])
    sigma = centred.std(axis=0)
    for code, level in enumerate("AB"):
        rows = centred[site == level]
        expected = features.mean(axis=0) + rows / rows.std(axis=0) * sigma
        np.testing.assert_allclose(adjusted[site == level], expected, atol=0.01 * sigma.max())
        assert np.abs(combat.effects.location[code]).max() > 0.2


def test_few_rows_are_drawn_towards_the_mean_over_features():
    """The shrunken locations are closer to the truth than the plain means are."""
    errors = {"shrunken": [], "plain": []}
    for seed in range(20):
        features, table = make_sites([6, 60], seed=seed, location=0.3, scale=0)
        truth = 0.3 * np.random.default_rng(seed).normal(size=(2, 30))
        truth = truth - (6 * truth[0] + 60 * truth[1]) / 66
        _, combat = fit(features, table, ["site", "age"])
        plain = pd.DataFrame(features).groupby(table["site"].to_numpy()).mean() - features.mean(0)
        errors["shrunken"].append(np.square(combat.effects.location[0] - truth[0]).mean())
        errors["plain"].append(np.square(plain.loc["A"] - truth[0]).mean())
    assert np.mean(errors["shrunken"]) < 0.7 * np.mean(errors["plain"])


def test_without_a_site_effect_features_hardly_change():
    """With one they do (control)."""
    change = {}
    for size in (0.0, 1.0):
        features, table = make_sites([60, 60, 60], d=200, location=size, scale=size)
        adjusted, _ = fit(features, table, ["site", "age"])
        change[size] = np.sqrt(np.square(adjusted - features).mean())
    assert change[0.0] < 0.1
    assert change[1.0] > 0.6


def test_the_site_goes_and_the_other_confounds_stay_until_a_residualizer_removes_them():
    features, table = make_sites([200, 200, 200])
    adjusted, combat = fit(features, table, ["site", "age"])
    metadata = encode(combat.design, table)
    assert explained_share(features, table, ["site"]) > 0.2
    assert explained_share(adjusted, table, ["site"]) < 0.01
    assert explained_share(adjusted, table, ["age"]) > 0.1
    residual = Residualizer(combat.design).fit(adjusted, metadata).transform(adjusted, metadata)
    assert explained_share(residual, table, ["site", "age"]) < 1e-12


def test_the_rows_of_the_fit_need_not_be_those_of_the_design():
    """There, the metadata have other means. Kills an intercept that forgets them."""
    features, table = make_sites([60, 60])
    old = (table["age"] > 58).to_numpy()
    expected, _ = fit(features[old], table[old], ["site", "age"])
    design = dc.Design(["site", "age"]).fit(table)
    metadata = encode(design, table)[old]
    combat = ComBat(design, "site").fit(features[old], metadata)
    np.testing.assert_allclose(combat.transform(features[old], metadata), expected, atol=1e-9)


def test_new_rows_are_treated_one_at_a_time_by_what_was_fitted():
    """Kills statistics of the new rows."""
    features, table = make_sites([40, 40])
    _, combat = fit(features, table, ["site", "age"])
    new, people = make_sites([10, 10], seed=1)
    metadata = encode(combat.design, people)
    together = combat.transform(new, metadata)
    alone = [combat.transform(new[[row]], metadata[[row]]) for row in range(20)]
    np.testing.assert_allclose(np.concatenate(alone), together, atol=1e-9)
    single = combat.transform(new.astype(np.float32), metadata.astype(np.float32))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, together, atol=1e-3)


def test_an_unseen_site_is_an_error_or_left_as_it_is():
    features, table = make_sites([40, 40])
    new = pd.DataFrame({"site": ["Z", None, "A"], "age": [50.0, 70.0, 61.0]})
    _, strict = fit(features, table, ["site", "age"])
    with pytest.raises(TableError, match=r"'Z'.*unseen in training"):
        encode(strict.design, new)
    _, lenient = fit(features, table, ["site", "age"], unseen="mean")
    adjusted = lenient.transform(features[:3], encode(lenient.design, new))
    np.testing.assert_allclose(adjusted[:2], features[:2], atol=1e-10)
    assert np.abs(adjusted[2] - features[2]).max() > 0.1


def test_rows_without_a_site_take_no_part_in_the_fit():
    features, table = make_sites([40, 40])
    design = dc.Design(["site", "age"], unseen="mean").fit(table)
    metadata = encode(design, table)
    expected = ComBat(design, "site").fit(features, metadata).effects
    stray = encode(design, pd.DataFrame({"site": [None] * 5, "age": [90.0] * 5}))
    rows = np.concatenate([features, np.full((5, 30), 1e3)]), np.concatenate([metadata, stray])
    found = ComBat(design, "site").fit(*rows).effects
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_features_without_noise_survive():
    """A constant stays; what site alone explains becomes constant; neither bends the priors."""
    features, table = make_sites([30, 40, 50])
    expected, _ = fit(features, table)
    by_site = table["site"].map({"A": 1.0, "B": 2.0, "C": 6.0}).to_numpy()
    wide = np.column_stack([features, np.full(120, 0.1), by_site])
    adjusted, _ = fit(wide, table)
    np.testing.assert_allclose(adjusted[:, :30], expected, atol=1e-9)
    np.testing.assert_allclose(adjusted[:, 30], 0.1, rtol=1e-12)
    np.testing.assert_allclose(adjusted[:, 31], by_site.mean(), rtol=1e-9)


def test_equal_features_have_a_prior_without_spread():
    """Then γ* and δ*² are the plain estimates. Kills a division by the spread."""
    features, table = make_sites([30, 50], d=1)
    _, combat = fit(np.repeat(features, 3, axis=1), table)
    expected = features[:30].mean() - features.mean()
    np.testing.assert_allclose(combat.effects.location[0], expected, rtol=1e-9)


def test_sites_are_read_beside_other_levels_splines_and_interactions():
    """Kills columns of another confound that are taken for those of the site."""
    features, table = make_sites([30, 40, 50])
    rng = np.random.default_rng(0)
    table["sex"], table["scanner"] = rng.choice(["M", "F"], 120), rng.choice(list("ABC"), 120)
    terms = ["sex", dc.Spline("age", 3), dc.Interaction("sex", "age"), "scanner", "site"]
    adjusted, combat = fit(features, table, terms)
    assert combat.effects.coefficients.shape == (1 + 7, 30)
    assert explained_share(adjusted, table, ["site"]) < 0.02
    shuffled = table.sample(frac=1, random_state=0)
    again = combat.transform(features[shuffled.index], encode(combat.design, shuffled))
    np.testing.assert_allclose(again, adjusted[shuffled.index], atol=1e-9)


def test_it_is_restored_from_json():
    """Also without other confounds, where no coefficient but the intercept exists."""
    features, table = make_sites([30, 40])
    for confounds in (["site"], ["site", "age"]):
        adjusted, combat = fit(features, table, confounds)
        copy = ComBat.from_dict(json.loads(json.dumps(combat.to_dict())))
        metadata = encode(copy.design, table)
        np.testing.assert_array_equal(copy.transform(features, metadata), adjusted)
        blank = ComBat(combat.design, "site")
        blank.effects = SiteEffects(*map(np.array, combat.effects))
        np.testing.assert_array_equal(blank.transform(features, metadata), adjusted)


def test_what_cannot_be_harmonised_is_refused():
    features, table = make_sites([30, 30])
    design = dc.Design(["site", "age"], keep=[]).fit(table)
    metadata = encode(design, table)
    combat = ComBat(design, "site").fit(features, metadata)
    lonely = table["site"].where(table.index > 0, "L")
    twin = table["site"].where(table.index > 1, "T")
    twins = features.copy()
    twins[1] = twins[0]
    gaps = metadata.copy()
    gaps[3, 1] = np.nan
    labelled = dc.Design(["site"], keep=["age"]).fit(table)
    unlabelled = encode(labelled, table[["site"]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconfoundWarning)
        one_site = dc.Design(["site"]).fit({"site": ["A", "A"]})
    faults = [
        (lambda: ComBat(dc.Design(["site"]), "site"), StateError, "not fitted"),
        (lambda: ComBat(design, "sit"), OptionError, "got 'sit'. Did you mean 'site'?"),
        (lambda: ComBat(design, "age"), OptionError, "categorical confound"),
        (lambda: ComBat(one_site, "site"), OptionError, "two or more levels"),
        (lambda: ComBat(dc.Design(["age"]).fit(table), "site"), OptionError, "The design has none"),
        (lambda: ComBat(design, "site").transform(features, metadata), StateError, "Call fit"),
        (lambda: ComBat(design, "site").to_dict(), StateError, "Call fit"),
        (lambda: fit(features, table.assign(site=lonely)), TableError, "no scale: 'L'"),
        (lambda: fit(twins, table.assign(site=twin)), TableError, "no scale: 'T'"),
        (lambda: combat.fit(features[:30], metadata[:30]), TableError, "no scale: 'B'"),
        (lambda: combat.fit(features[:, :1], metadata), ShapeError, "two or more that vary; got 1"),
        (lambda: ComBat(labelled, "site").fit(features, unlabelled), ShapeError, "in 60 rows"),
        (lambda: combat.fit(features, gaps), ShapeError, "metadata must be finite"),
        (lambda: combat.transform(features, gaps), ShapeError, "the first is row 3"),
        (lambda: combat.fit(features * np.inf, metadata), ShapeError, "features must be finite"),
        (lambda: combat.transform(features[:, :4], metadata), ShapeError, "must have 30 columns"),
        (lambda: combat.transform(features[0], metadata), ShapeError, r"\(n, d\); got \(30,\)"),
    ]
    for call, error, message in faults:
        with pytest.raises(error, match=message):
            call()
