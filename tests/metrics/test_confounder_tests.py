"""Partial and full confounder tests: level and power by simulation, and what their permutations keep."""

import numpy as np
import pytest
import torch

from deconfound.metrics import (
    Resampling,
    column,
    conditional_permutations,
    full_confounder_test,
    partial_confounder_test,
)

TRIALS = 150
FEW = Resampling(permutations=39)


def rate(test, make, trials=TRIALS):
    rng = np.random.default_rng(0)
    return np.mean([test(*make(rng), FEW).p <= 0.05 for _ in range(trials)])


def within_binomial_error(found):
    return abs(found - 0.05) <= 4 * np.sqrt(0.05 * 0.95 / TRIALS)


def numeric_label(rng, direct=0.0, signal=1.0, n=80):
    """Confound → label (curved) → predictions with a heavy tail, and by `direct` from the confound itself."""
    c = rng.normal(size=n)
    y = c + 0.3 * c**2 + rng.normal(size=n)
    prediction = np.exp(0.5 * (signal * y + direct * c)) + 0.3 * rng.standard_t(3, size=n)
    return prediction, column("age", c), [column("score", y)]


def classes(rng, direct=0.0, signal=1.0, n=80):
    """A site that goes with the diagnosis, and predictions that follow the diagnosis and perhaps the site."""
    site = rng.integers(0, 3, n)
    dx = (rng.uniform(size=n) < np.array([0.3, 0.5, 0.7])[site]).astype(int)
    prediction = signal * dx + direct * site + rng.standard_t(3, size=n)
    return prediction, column("site", np.array(["a", "b", "c"])[site]), [column("dx", dx)]


def age_and_dx(rng, direct=0.0, signal=1.0, n=80):
    age = 60 + 10 * rng.normal(size=n)
    dx = (rng.uniform(size=n) < 1 / (1 + np.exp(-(age - 60) / 8))).astype(int)
    prediction = signal * dx + direct * (age - 60) / 10 + rng.normal(size=n)
    return prediction, column("age", age), [column("dx", dx)]


def linear(rng, direct=0.0, signal=1.0, n=80):
    c = rng.normal(size=n)
    y = 0.7 * c + rng.normal(size=n)
    prediction = (signal * y + direct * c + rng.normal(size=n)) ** 3
    return prediction, column("age", c), [column("score", y)]


# These take a minute; `make test-all` runs them.
AGE_AND_DX = pytest.param(age_and_dx, marks=pytest.mark.slow)
SLOW_NUMBER = pytest.param(numeric_label, marks=pytest.mark.slow)


@pytest.mark.parametrize("make", [classes, age_and_dx, linear])
def test_partial_test_rejects_an_unconfounded_model_at_five_per_cent(make):
    assert within_binomial_error(rate(partial_confounder_test, make))


@pytest.mark.parametrize("make", [classes, age_and_dx, linear])
def test_partial_test_finds_a_confounded_model(make):
    assert rate(partial_confounder_test, lambda rng: make(rng, direct=1.0), trials=50) > 0.8


@pytest.mark.parametrize("make", [classes, AGE_AND_DX, linear, SLOW_NUMBER])
def test_full_test_rejects_a_fully_confounded_model_at_five_per_cent(make):
    assert within_binomial_error(rate(full_confounder_test, lambda rng: make(rng, direct=1.0, signal=0.0)))


@pytest.mark.parametrize("make", [classes, AGE_AND_DX, linear])
def test_full_test_finds_a_model_that_knows_the_label(make):
    assert rate(full_confounder_test, lambda rng: make(rng, signal=1.5), trials=50) > 0.8


def test_a_plain_permutation_would_call_the_unconfounded_model_confounded():
    def plain(prediction, confound, labels, resampling):
        return partial_confounder_test(prediction, confound, [column("none", ["x"] * len(prediction))], resampling)

    assert rate(plain, linear, trials=50) > 0.5


def test_orders_given_a_number_stay_among_neighbours():
    age = np.random.default_rng(0).normal(size=80)
    generator = torch.Generator().manual_seed(0)
    drawn = conditional_permutations(column("x", np.arange(80.0)), [column("age", age)], 50, generator)
    rank = np.argsort(np.argsort(age))
    assert np.abs(rank[drawn.numpy()] - rank).max() < 8
    assert (drawn.sort(1).values == torch.arange(80)).all()


def test_orders_given_a_category_stay_within_its_levels():
    site = column("site", np.repeat(["a", "b"], 10))
    drawn = conditional_permutations(column("age", np.arange(20.0)), [site], 50, torch.Generator().manual_seed(0))
    assert (site.values[drawn] == site.values).all()
    assert (drawn != torch.arange(20)).any()


def test_rows_without_a_value_are_left_out_and_counted():
    rng = np.random.default_rng(0)
    prediction, confound, labels = linear(rng)
    gaps = column("age", np.where(np.arange(80) < 10, np.nan, confound.values.numpy()))
    assert partial_confounder_test(prediction, gaps, labels, FEW).n == 70


def test_people_with_several_rows_are_permuted_as_a_whole():
    rng = np.random.default_rng(0)
    person = np.arange(120) // 4
    units = torch.from_numpy(person)
    rejected = {"whole": 0, "ignored": 0}
    for _ in range(60):
        dx, site = rng.integers(0, 2, 30)[person], rng.integers(0, 2, 30)[person]
        score = rng.normal(size=30)[person] + 0.2 * rng.normal(size=120)
        given = score, column("site", site), [column("dx", dx)], FEW
        rejected["whole"] += partial_confounder_test(*given, units).p <= 0.05
        rejected["ignored"] += partial_confounder_test(*given).p <= 0.05
    assert rejected["whole"] <= 8
    assert rejected["ignored"] > 12
