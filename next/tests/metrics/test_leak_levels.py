"""Level and power of the leak test, with least squares as the positive control.

A test keeps its level if p ≤ .05 in at most 5 % of tables without a leak. Bounds are the quantiles
of the binomial distribution that one such simulation in a thousand exceeds.
"""

import numpy as np
import pytest
from scipy import stats

from deconfound.metrics import LeakRows, LeakTest, OutputSimilarity, Resampling

# The smallest p-value of two label groups is near 6 in 200, that of all pairs near 1.5 in 200.
FEW = Resampling(permutations=199, bootstraps=0)


def count_rejections(design, tables, *, leak, seed=0):
    rejections = 0
    for table in range(tables):
        random = np.random.default_rng([seed, table])
        outputs, confound, categorical, columns = design(random, leak)
        rows = LeakRows.from_columns(len(outputs), **columns)
        similarity = OutputSimilarity.from_outputs(outputs, rows)
        test = LeakTest.from_confound(similarity, confound, categorical=categorical, resampling=FEW)
        rejections += test.result().p <= 0.05
    return rejections


def assert_level(design, tables):
    most = stats.binom.isf(0.001, tables, 0.05)
    assert count_rejections(design, tables, leak=0.0) <= most


def assert_power(design, tables, *, power, leak=1.0):
    least = stats.binom.isf(0.999, tables, power)
    assert count_rejections(design, tables, leak=leak, seed=1) >= least


def rare_class(random, leak):
    """400 people, 3 % patients, two sites, a shift of .3 sd: least squares finds 89 %."""
    group = (random.random(400) < 0.03).astype(int)
    site = random.integers(0, 2, 400)
    return group + 0.3 * leak * site + random.normal(size=400), site, True, {"group": group}


def rare_class_in_folds(random, leak):
    """300 people, 6 % patients, five folds, .35 sd."""
    group, fold = (random.random(300) < 0.06).astype(int), random.permutation(300) % 5
    site = random.integers(0, 2, 300)
    outputs = group + 0.35 * leak * site + random.normal(size=300) + fold
    return outputs, site, True, {"group": group, "fold": fold}


def rare_site(random, leak):
    """Sites of 180, 180, 25 and 15 people, 1 sd in the 15."""
    site, group = np.repeat([0, 1, 2, 3], [180, 180, 25, 15]), random.integers(0, 2, 400)
    return group + leak * (site == 3) + random.normal(size=400), site, True, {"group": group}


def leak_in_rare_class(random, leak):
    """A leak of 1.5 sd in 6 % of 400 people, which all pairs hide."""
    group = (random.random(400) < 0.06).astype(int)
    site = random.integers(0, 2, 400)
    return 1.5 * leak * site * group + random.normal(size=400), site, True, {"group": group}


def opposite_signs(random, leak):
    """Two groups of 200 people with shifts of opposite sign."""
    group, site = random.integers(0, 2, 400), random.integers(0, 2, 400)
    outputs = 0.4 * leak * site * (2 * group - 1) + random.normal(size=400)
    return outputs, site, True, {"group": group}


def people_with_several_rows(random, leak):
    """60 people with one to six rows each; the site is constant within people."""
    person = np.repeat(np.arange(60), random.integers(1, 7, 60))
    site = random.integers(0, 2, 60)[person]
    noise = 0.8 * random.normal(size=60)[person] + 0.6 * random.normal(size=len(person))
    return 0.8 * leak * site + noise, site, True, {"person": person}


def site_within_people(random, leak):
    """60 people with one to four rows; a rare site varies within them, the noise by their rows."""
    rows = random.integers(1, 5, 60)
    person = np.repeat(np.arange(60), rows)
    site = (random.random(len(person)) < 0.2).astype(int)
    noise = (np.where(rows > 2, 2, 0.5) * random.normal(size=60))[person]
    outputs = 0.7 * leak * site + noise + 0.6 * random.normal(size=len(person))
    return outputs, site, True, {"person": person}


def weights_by_site_and_label(random, leak):
    """Weights of 1 to 4.5 that depend on site and label."""
    group, site = (random.random(400) < 0.3).astype(int), random.integers(0, 2, 400)
    weight = 1 + 3.5 * np.maximum(site, group)
    outputs = group + 0.35 * leak * site + random.normal(size=400)
    return outputs, site, True, {"group": group, "weight": weight}


def age_in_three_classes(random, leak):
    """400 people in classes of 50, 45 and 5 %; a slope of .15 sd."""
    group, age = random.choice(3, 400, p=[0.5, 0.45, 0.05]), random.normal(size=400)
    return group + 0.15 * leak * age + random.normal(size=400), age, False, {"group": group}


def nonlinear_age(random, leak):
    """A U-shaped effect of age, which a straight line does not see."""
    age = random.normal(size=200)
    return 0.5 * leak * age**2 + random.normal(size=200), age, False, {}


def wide_features(random, leak):
    """171 people and 512 features, of which 20 are shifted by 1 sd."""
    site, group = random.integers(0, 3, 171), random.integers(0, 2, 171)
    features = random.normal(size=(171, 512))
    features[:, :20] += leak * (site == 1)[:, None]
    return features, site, True, {"group": group}


POWER = {
    rare_class: 0.86,
    rare_class_in_folds: 0.80,
    rare_site: 0.84,
    leak_in_rare_class: 0.72,
    opposite_signs: 0.72,
    people_with_several_rows: 0.85,
    site_within_people: 0.55,
    weights_by_site_and_label: 0.80,
    age_in_three_classes: 0.74,
    nonlinear_age: 0.90,
    wide_features: 0.99,
}
NAMES = {"ids": lambda design: design.__name__}


@pytest.mark.parametrize("design", [rare_class, rare_site, people_with_several_rows], **NAMES)
def test_level_and_power_in_few_tables(design):
    """Kills equal weights for cells (rare class) and levels that are not whitened (rare site)."""
    assert_level(design, 80)
    assert_power(design, 40, power=POWER[design])


@pytest.mark.parametrize("design", [leak_in_rare_class, opposite_signs], **NAMES)
def test_label_groups_find_what_all_pairs_hide(design):
    """Kills a test of all pairs alone, which has a power of .06 here."""
    assert_power(design, 40, power=POWER[design])


@pytest.mark.parametrize("design", [site_within_people, nonlinear_age, wide_features], **NAMES)
def test_power_where_one_part_of_the_statistic_is_needed(design):
    """Kills, in this order: person means; waves and distances; the ridge regression."""
    assert_power(design, 40, power=POWER[design])


def test_power_is_close_to_that_of_least_squares():
    """The positive control: an F test of the same tables."""
    tables, found = 60, 0
    for table in range(tables):
        random = np.random.default_rng([1, table])
        outputs, site, _, columns = rare_class(random, 1.0)
        regressors = np.column_stack([np.ones(400), columns["group"], site])
        fit = np.linalg.lstsq(regressors, outputs)
        sd = np.sqrt(fit[1][0] / 397 * np.linalg.inv(regressors.T @ regressors)[2, 2])
        found += 2 * stats.t.sf(abs(fit[0][2]) / sd, 397) <= 0.05
    assert count_rejections(rare_class, tables, leak=1.0, seed=1) >= found - 8


@pytest.mark.slow
@pytest.mark.parametrize("design", POWER, **NAMES)
def test_level_in_many_tables(design):
    """Kills each step that breaks exchangeability; at 600 tables a level of .09 is noticed."""
    assert_level(design, 600)


@pytest.mark.slow
@pytest.mark.parametrize("design", POWER, **NAMES)
def test_power_in_many_tables(design):
    assert_power(design, 150, power=POWER[design])
