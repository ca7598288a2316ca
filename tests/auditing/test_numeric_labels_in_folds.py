"""A numeric label and folds that differ, as when one site at a time is left out: innocent models stay innocent."""

import numpy as np
import pytest
import torch

import deconfound as dc
from deconfound.auditing.measures import variance_ratio


def rejected(simulations, folds, of_label, of_confound, leak=0.0, n=150):
    """In how many of so many audits the confound is found, where means of label and confound vary so far by fold."""
    found = 0
    for seed in range(simulations):
        rng = np.random.default_rng(seed)
        fold = np.arange(n) % folds
        y = rng.normal(size=n) + of_label * rng.normal(size=folds)[fold]
        confound = rng.normal(size=n) + of_confound * rng.normal(size=folds)[fold]
        outputs = y + leak * confound + 0.5 * rng.normal(size=n)
        table = {"y": y, "confound": confound, "fold": fold}
        audit = dc.audit(
            outputs, table, confounds=["confound"], labels=["y"], fold="fold",
            permutations=99, bootstraps=40, embedding=False,
        )  # fmt: skip
        found += audit.verdicts[0].p <= 0.05
    return found


@pytest.mark.parametrize(("folds", "of_label", "of_confound"), [(5, 1.0, 1.0), (5, 0.0, 0.7), (10, 1.5, 1.5)])
def test_an_innocent_model_is_not_accused_where_folds_differ(folds, of_label, of_confound):
    assert rejected(20, folds, of_label, of_confound) <= 4  # at 5 %, more in one of 390 such tests


@pytest.mark.parametrize(("of_label", "of_confound"), [(0.0, 0.0), (0.7, 0.7)], ids=["by chance", "folds differ"])
def test_a_model_that_uses_the_confound_is_found_in_either_kind_of_folds(of_label, of_confound):
    assert rejected(8, 5, of_label, of_confound, leak=0.4) >= 7


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folds", "of_label", "of_confound"), [(5, 0.7, 0.7), (5, 0.0, 0.7), (5, 0.0, 0.0), (10, 0.7, 0.7), (10, 0.0, 0.0)]
)
def test_the_level_holds_in_many_simulations(folds, of_label, of_confound):
    assert rejected(300, folds, of_label, of_confound) <= 300 * 0.085


def test_the_ratio_of_variances_is_that_of_an_analysis_of_variance():
    from scipy.stats import f_oneway

    rng = np.random.default_rng(0)
    values, folds = rng.normal(size=(60, 2)), np.repeat([3, 5, 9], [10, 20, 30])
    values[folds == 5, 1] += 2
    found = variance_ratio(torch.from_numpy(values), torch.from_numpy(folds))
    for column in range(2):
        parts = [values[folds == fold, column] for fold in (3, 5, 9)]
        assert found[column].item() == pytest.approx(f_oneway(*parts).statistic)


@pytest.mark.filterwarnings("ignore::deconfound.errors.DeconfoundWarning")  # so few people are warned of
@pytest.mark.parametrize("filled", [1, 2])
def test_a_confound_with_hardly_a_value_gets_no_answer_and_leaves_the_others_theirs(filled):
    rng = np.random.default_rng(0)
    dx, age = rng.integers(0, 2, 80), rng.normal(60, 8, 80)
    rare = np.where(np.arange(80) < filled, 1.0 + np.arange(80), np.nan)
    audit = dc.audit(
        dx + 0.2 * (age - 60) + rng.normal(size=80), {"dx": dx, "age": age, "rare": rare}, confounds=["age", "rare"],
        labels=["dx"], permutations=99, bootstraps=40,
    )  # fmt: skip
    found = {verdict.confound: verdict for verdict in audit.verdicts}
    assert found["age"].p <= 0.05
    assert not found["rare"].p <= 0.05
