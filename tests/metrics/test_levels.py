"""Level and power by simulation, over designs that break simpler tests: people with several rows, numeric labels."""

import numpy as np
import pytest
import torch

from deconfound import metrics

FEW = metrics.Resampling(permutations=39, bootstraps=40)
N = 90


# People with several rows: score, confound, label, person


def travelling(rng, effect):
    """Every person is scanned at the same three sites in the same order."""
    person, site = np.repeat(np.arange(20), 3), np.tile(np.arange(3), 20)
    score = rng.normal(size=20)[person] + 0.5 * rng.normal(size=60) + effect * (site == 2)
    return score, np.eye(3)[site], np.zeros(60), person


def unequal_rows(rng, effect):
    """People have one to six rows; sex is theirs."""
    person = np.repeat(np.arange(30), rng.integers(1, 7, 30))
    sex = rng.integers(0, 2, 30)[person]
    score = rng.normal(size=30)[person] + 0.3 * rng.normal(size=len(person)) + 1.5 * effect * sex
    return score, sex[:, None], np.zeros(len(person)), person


def changing_label(rng, effect):
    """The label changes between the visits of a person; sex does not."""
    person, label = np.repeat(np.arange(30), 4), np.tile([0, 0, 1, 1], 30)
    sex = rng.integers(0, 2, 30)[person]
    score = 2 * label + rng.normal(size=30)[person] + 0.3 * rng.normal(size=120) + 1.5 * effect * sex
    return score, sex[:, None], label, person


def visits(rng, effect):
    """Age grows from visit to visit, and differs between people."""
    person = np.repeat(np.arange(25), 3)
    age = rng.normal(size=25)[person] + np.tile([0.0, 0.3, 0.6], 25)
    score = rng.normal(size=25)[person] + 0.3 * rng.normal(size=75) + 1.2 * effect * age
    return score, age[:, None], np.zeros(75), person


# A numeric label: outputs, confound, label


def one_hot(codes):
    return np.eye(3)[codes]


def drawn(rng, shares):
    """One of three sites for each row, by its shares."""
    shares = shares / shares.sum(1, keepdims=True)
    return (rng.random(len(shares))[:, None] > shares.cumsum(1)[:, :-1]).sum(1)


def log_normal(rng, direct):
    """A confound with a long tail makes the label; the model knows the label."""
    age = np.exp(rng.normal(size=N))
    label = age + rng.normal(size=N)
    return label + rng.normal(size=N) + direct * age, age, label


def log_normal_curved(rng, direct):
    age = np.exp(1.5 * rng.normal(size=N))
    label = np.log(age) + rng.normal(size=N)
    return np.exp(0.5 * label) + 0.3 * rng.standard_t(3, N) + direct * np.log(age), age, label


def heavy_noise(rng, direct):
    age = rng.standard_t(2, N)
    label = age + rng.standard_t(2, N)
    return label + rng.standard_t(2, N) + direct * age, age, label


def unequal_variances(rng, direct):
    label = rng.normal(size=N)
    age = label + np.exp(label / 1.5) * rng.normal(size=N)
    return label + np.exp(label / 1.5) * rng.normal(size=N) + direct * age, age, label


def sine(rng, direct):
    label = rng.normal(size=N)
    age = np.sin(2 * label) + 0.5 * rng.normal(size=N)
    return np.sin(2 * label) + 0.5 * rng.normal(size=N) + direct * age, age, label


def sites(rng, direct):
    label = 60 + 10 * rng.normal(size=N)
    lean = np.exp((label[:, None] - 60) / 10 * [1.5, 0, -1.5])
    site = drawn(rng, lean)
    return label + 5 * rng.normal(size=N) + 12 * direct * (site == 0), one_hot(site), label


PEOPLE = [travelling, unequal_rows, changing_label, visits]
LABELS = [log_normal, log_normal_curved, heavy_noise, unequal_variances, sine, sites]


def found_in(score, confound, label, person=None, resampling=FEW):
    """The test that an audit takes: within the groups of a label for people, beyond a numeric label."""
    x, y = torch.from_numpy(score)[:, None], torch.from_numpy(np.asarray(confound, dtype=float).reshape(len(score), -1))
    if person is None:
        return metrics.residual_dcor_test(x, y, [metrics.column("label", label)], None, resampling)
    return metrics.dcor_test(x, y, label, person, resampling)


def rate(design, effect, trials, seed=0):
    rng = np.random.default_rng(seed)
    return np.mean([found_in(*design(rng, effect)).p <= 0.05 for _ in range(trials)])


@pytest.mark.parametrize(
    ("design", "trials", "power"), [*((d, 100, 0.6) for d in PEOPLE), *((d, 60, 0.7) for d in LABELS)]
)
def test_independent_data_are_rejected_at_five_per_cent_and_dependent_data_often(design, trials, power):
    assert rate(design, 0.0, trials) <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / trials)
    assert rate(design, 1.0, trials // 4) >= power


@pytest.mark.slow
@pytest.mark.parametrize("design", [*PEOPLE, *LABELS])
def test_false_positives_stay_below_seven_and_a_half_per_cent_in_two_thousand_simulations(design):
    assert rate(design, 0.0, trials=2000, seed=1) <= 0.075


def test_travelling_subjects_show_their_site():
    score, site, label, person = travelling(np.random.default_rng(0), 2.0)
    found = found_in(score, site, label, person, metrics.Resampling(permutations=199, bootstraps=40))
    assert (found.p, found.movable) == (0.005, 60)


def test_probes_and_confounder_tests_permute_people_as_well():
    score, _, _, person = travelling(np.random.default_rng(0), 2.0)
    site = metrics.column("site", np.tile(["a", "b", "c"], 20))
    units, x = torch.from_numpy(person), torch.from_numpy(score)[:, None]
    none = metrics.column("all", ["x"] * 60)
    assert metrics.probe(x, site, units=units, resampling=FEW).p == 1 / 40
    assert metrics.partial_confounder_test(x, site, [none], FEW, units).p == 1 / 40
