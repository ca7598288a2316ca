"""Numeric labels: innocent outputs that follow the label, and outputs that follow the confound."""

import numpy as np
import pytest

from deconfound.metrics import LeakRows, Resampling, leak
from tests.metrics.test_leak_levels import assert_level, assert_power

FEW = Resampling(permutations=99, bootstraps=0)


def sine(random, leak):
    """Outputs and confound are the same sine of the label, plus noise."""
    label, noise = random.normal(size=(2, 150))
    wave = np.sin(2 * label)
    outputs = wave + 0.3 * leak * noise + 0.7 * random.normal(size=150)
    return outputs, wave + noise, False, {"numeric_labels": label}


def steep_sine_of_few(random, leak):
    """40 people, whose curves take a sixth of the degrees of freedom."""
    label, noise = random.normal(size=(2, 40))
    wave = np.sin(3 * label)
    outputs = wave + 0.5 * leak * noise + 0.5 * random.normal(size=40)
    return outputs, wave + 0.5 * noise, False, {"numeric_labels": label}


def unequal_variance(random, leak):
    """Both sides scatter more where the label is high."""
    label, noise = random.normal(size=(2, 150))
    spread = np.exp(0.5 * label)
    outputs = label + spread * (0.3 * leak * noise + 0.7 * random.normal(size=150))
    return outputs, label + spread * noise, False, {"numeric_labels": label}


def sites_by_label(random, leak):
    """The site of a person depends on the label."""
    label = random.normal(size=150)
    site = np.clip(np.floor(label + random.normal(size=150)) + 2, 0, 3).astype(int)
    outputs = label + leak * np.array([0, 0.6, -0.4, 0.4])[site] + 0.7 * random.normal(size=150)
    return outputs, site, True, {"numeric_labels": label}


def folds_that_differ(random, leak):
    """Means of label and confound differ by fold, as when one site at a time is left out."""
    fold = np.arange(150) % 5
    label, confound = random.normal(size=(2, 150)) + 0.7 * random.normal(size=(2, 5))[:, fold]
    outputs = label + 0.3 * leak * confound + 0.5 * random.normal(size=150)
    return outputs, confound, False, {"numeric_labels": label, "fold": fold}


def people_with_two_rows(random, leak):
    """The label changes little between a person's rows, and the site not at all."""
    person = np.repeat(np.arange(75), 2)
    label = random.normal(size=75)[person] + 0.3 * random.normal(size=150)
    site = (label[::2] + random.normal(size=75) > 0).astype(int)[person]
    noise = 0.6 * random.normal(size=75)[person] + 0.4 * random.normal(size=150)
    outputs = np.sin(label) + 0.8 * leak * site + noise
    return outputs, site, True, {"numeric_labels": label, "person": person}


def label_group_beside_label(random, leak):
    """A diagnosis with its own slope beside a numeric label."""
    label, group = random.normal(size=200), random.integers(0, 2, 200)
    confound = label * (2 * group - 1) + random.normal(size=200)
    outputs = label * (2 * group - 1) + random.normal(size=200) + 0.3 * leak * confound
    return outputs, confound, False, {"numeric_labels": label, "group": group}


DESIGNS = [
    sine,
    unequal_variance,
    sites_by_label,
    folds_that_differ,
    people_with_two_rows,
    label_group_beside_label,
]
NAMES = {"ids": lambda design: design.__name__}


@pytest.mark.parametrize("design", [sine, folds_that_differ], **NAMES)
def test_innocent_outputs_are_not_accused(design):
    """Kills cells of label group and fold alone, without curves."""
    assert_level(design, 50)


@pytest.mark.parametrize("design", [sine, sites_by_label], **NAMES)
def test_leaks_are_found_beside_the_label(design):
    """Kills curves so flexible that they follow the confound."""
    assert_power(design, 20, power=0.8)


@pytest.mark.slow
@pytest.mark.parametrize("design", DESIGNS, **NAMES)
def test_level_in_many_tables(design):
    """Kills the loss of both curves and neighbourhoods; each of them alone keeps this level."""
    assert_level(design, 300)


@pytest.mark.slow
def test_level_of_few_people_with_a_steep_curve():
    """Kills permuted statistics that are not widened for the size of the curves (level .084)."""
    assert_level(steep_sine_of_few, 1000)


@pytest.mark.slow
@pytest.mark.parametrize("design", DESIGNS, **NAMES)
def test_power_in_many_tables(design):
    assert_power(design, 60, power=0.8)


def test_without_the_label_the_same_outputs_are_accused():
    """The positive control of the level: label groups by thirds are not enough."""
    random = np.random.default_rng(0)
    outputs, confound, _, columns = sine(random, 0.0)
    label = columns["numeric_labels"]
    thirds = np.digitize(label, np.quantile(label, [1 / 3, 2 / 3]))
    rows = LeakRows.from_columns(150, group=thirds)
    assert leak(outputs, confound, rows, categorical=False, resampling=FEW).p <= 0.05


def test_outputs_that_are_the_label_leave_nothing():
    """Kills residuals of rounding that are blown up to unit scale."""
    random = np.random.default_rng(0)
    label, site = random.normal(size=150), random.integers(0, 2, 150)
    rows = LeakRows.from_columns(150, numeric_labels=label)
    for outputs in (label, np.exp(label)):
        result = leak(outputs, site, rows, categorical=True, resampling=FEW)
        assert np.isnan([result.p, result.effect]).all()


def test_confound_that_is_the_label_has_no_answer():
    """Kills an answer from the residuals of a confound that the label determines."""
    random = np.random.default_rng(0)
    label = random.normal(size=150)
    rows = LeakRows.from_columns(150, numeric_labels=label)
    outputs = label + random.normal(size=150)
    assert np.isnan(leak(outputs, label, rows, categorical=False, resampling=FEW).p)
