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


# People with several rows and a numeric label: score, confound, label, person


def same_label(rng, effect, people=100):
    """Neither the label nor the site of a person changes between three scans, and the score hardly does."""
    person, label, site = np.repeat(np.arange(people), 3), rng.normal(size=people), rng.integers(0, 2, people)
    score = label + rng.normal(size=people) + effect * site
    return score[person] + 0.1 * rng.normal(size=3 * people), site[person, None], label[person], person


def same_label_and_age(rng, effect):
    """Uneven numbers of scans; age is a number that goes with the label along a curve."""
    person, label = np.repeat(np.arange(80), rng.integers(1, 6, 80)), rng.normal(size=80)
    age = np.sin(2 * label) + rng.normal(size=80)
    score = np.sin(2 * label) + rng.normal(size=80) + 0.7 * effect * age
    return score[person] + 0.1 * rng.normal(size=len(person)), age[person], label[person], person


def label_and_age_by_row(rng, effect):
    """Label and age change from scan to scan, and age with the label."""
    person = np.repeat(np.arange(40), 4)
    label = rng.normal(size=40)[person] + 0.5 * rng.normal(size=160)
    age = np.sin(2 * label) + rng.normal(size=40)[person] + 0.5 * rng.normal(size=160)
    score = np.sin(2 * label) + rng.normal(size=40)[person] + 0.3 * rng.normal(size=160)
    return score + 0.6 * effect * age, age, label, person


def label_by_row(rng, effect):
    """The label changes from scan to scan; age is the person's."""
    person, age = np.repeat(np.arange(40), 4), rng.normal(size=40)
    label = rng.normal(size=40)[person] + 0.5 * rng.normal(size=160)
    score = label + (rng.normal(size=40) + effect * age)[person] + 0.3 * rng.normal(size=160)
    return score, age[person], label, person


def few_people(rng, effect):
    """Ten people with thirty rows each, in which label and age go together."""
    person, label = np.repeat(np.arange(10), 30), rng.normal(size=300)
    age = np.sin(2 * label) + rng.normal(size=300)
    score = np.sin(2 * label) + rng.normal(size=10)[person] + 0.3 * rng.normal(size=300)
    return score + effect * age, age, label, person


PEOPLE = [travelling, unequal_rows, changing_label, visits]
LABELS = [log_normal, log_normal_curved, heavy_noise, unequal_variances, sine, sites]
SCANS = [same_label, same_label_and_age, label_and_age_by_row, label_by_row, few_people]


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


def rates_with_several_rows(design, effect, trials, seed=0):
    """How often dependence beyond a numeric label is found, by distance correlation and by the partial test."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(trials):
        score, confound, label, person = design(rng, effect)
        x, y = torch.from_numpy(score)[:, None], torch.from_numpy(confound.reshape(len(score), -1)).double()
        given, units = [metrics.column("label", label)], torch.from_numpy(person)
        tests = (
            metrics.residual_dcor_test(x, y, given, units, FEW),
            metrics.partial_confounder_test(x, metrics.column("confound", confound.reshape(-1)), given, FEW, units),
        )
        found.append([test.p <= 0.05 for test in tests])
    return np.mean(found, axis=0)


@pytest.mark.parametrize("design", [same_label, label_and_age_by_row])
def test_a_numeric_label_and_several_rows_of_a_person_keep_level_and_power(design):
    assert (rates_with_several_rows(design, 0.0, 60) <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / 60)).all()
    assert (rates_with_several_rows(design, 1.0, 15) >= 0.7).all()


@pytest.mark.slow
@pytest.mark.parametrize("design", SCANS)
def test_a_numeric_label_and_several_rows_of_a_person_keep_the_level_in_a_thousand_simulations(design):
    assert (rates_with_several_rows(design, 0.0, 1000, seed=1) <= 0.075).all()
    assert (rates_with_several_rows(design, 1.0, 50, seed=1) >= 0.7).all()


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
