"""Probes read what is there, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold, cross_val_predict

from deconfound.errors import OptionError, ShapeError
from deconfound.metrics import probe


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_both_probes_read_a_planted_age_and_none_of_noise(rng):
    """Kills a probe that is scored on its training rows."""
    age = 60 + 10 * rng.normal(size=300)
    noise = rng.normal(size=(300, 60))
    planted = probe(noise[:, :5] + 0.2 * age[:, None], age, categorical=False)
    assert planted.linear > 0.9
    assert planted.nonlinear > 0.9
    nothing = probe(noise, age, categorical=False)
    assert nothing.linear < 0.05
    assert nothing.nonlinear < 0.05


def test_only_the_nonlinear_probe_reads_a_spread(rng):
    """Kills a nonlinear probe that is linear."""
    sex = rng.choice(["F", "M"], 600)
    outputs = rng.normal(size=(600, 2)) * np.where(sex == "M", 3.0, 1.0)[:, None]
    score = probe(outputs, sex, categorical=True)
    assert score.linear < 0.6
    assert score.nonlinear > 0.8


def test_a_linear_probe_of_sites_is_as_sharp_as_logistic_regression(rng):
    """Kills a penalty that shrinks what can be read, and columns that are not standardised."""
    site = rng.integers(0, 6, 400)
    outputs = rng.normal(size=(400, 8)) + 0.5 * rng.normal(size=(6, 8))[site]
    folds = GroupKFold(5, shuffle=True, random_state=0)
    logistic = cross_val_predict(
        LogisticRegression(max_iter=500), outputs, site, groups=np.arange(400), cv=folds,
        method="decision_function",
    )  # fmt: skip
    expected = roc_auc_score(np.eye(6)[site], logistic)
    score = probe(outputs * 10.0 ** np.arange(8), site, categorical=True)
    assert expected > 0.7
    assert score.linear == pytest.approx(expected, abs=0.015)


def test_chance_is_a_half_also_for_many_small_sites(rng):
    """Kills scores of different folds in one order, which press chance below a half."""
    scores = []
    for _ in range(20):
        site = rng.integers(0, 12, 200)
        scores.append(probe(rng.normal(size=(200, 2)), site, categorical=True).linear)
    assert np.mean(scores) == pytest.approx(0.5, abs=4 * np.std(scores) / 20**0.5)
    assert np.std(scores) < 0.05


def test_a_person_s_rows_do_not_predict_each_other(rng):
    """Each person has a fingerprint in all rows. Kills folds of rows."""
    person = np.repeat(np.arange(60), 5)
    fingerprint = rng.normal(size=(60, 40))[person]
    age = rng.normal(size=60)[person]
    by_person = probe(fingerprint, age, categorical=False, person=person)
    by_row = probe(fingerprint, age, categorical=False)
    assert by_row.linear > 0.3
    assert by_row.nonlinear > 0.9
    assert by_person.linear < 0.2
    assert by_person.nonlinear < 0.2


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"folds": 1}, OptionError, "`folds` cannot be 1 for 6 people. Pass a whole number from 2"),
        ({"folds": 7}, OptionError, "`folds` cannot be 7 for 6 people"),
        ({"person": [1, 1, 1, 2, 2, 2], "folds": 3}, OptionError, "cannot be 3 for 2 people"),
        ({"person": [1, 2]}, ShapeError, "`person` has 2"),
    ],
)
def test_what_cannot_be_split_is_refused(options, error, message):
    """Kills folds without people."""
    with pytest.raises(error, match=message):
        probe(np.arange(6.0), np.arange(6) % 2, categorical=True, **options)
