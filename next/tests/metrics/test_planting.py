"""Planted leaks: what the test would have found in the user's own data."""

import numpy as np
import pytest
from scipy import stats

from deconfound.errors import OptionError, StateError
from deconfound.metrics import LeakRows, LeakTest, OutputSimilarity, Resampling, plant_leaks
from tests.metrics.test_leak_levels import (
    age_in_three_classes,
    people_with_several_rows,
    rare_class,
    rare_class_in_folds,
    wide_features,
)

MANY = Resampling(permutations=199, bootstraps=0)
NAMES = {"ids": lambda design: design.__name__}


def make_test(design, leak=0.0, seed=0):
    outputs, confound, categorical, columns = design(np.random.default_rng(seed), leak)
    rows = LeakRows.from_columns(len(outputs), **columns)
    similarity = OutputSimilarity.from_outputs(outputs, rows)
    return LeakTest.from_confound(similarity, confound, categorical=categorical, resampling=MANY)


@pytest.mark.parametrize(
    ("design", "shift", "power"),
    [
        (rare_class, 0.3, 0.86),
        (people_with_several_rows, 0.8, 0.85),
        (age_in_three_classes, 0.15, 0.76),
    ],
)
def test_planted_leaks_are_found_as_often_as_leaks_in_new_tables(design, shift, power):
    """Kills plants that shift outputs along the confound as it was, not as it was permuted."""
    planted = plant_leaks(make_test(design), shift=shift)[0]
    assert planted.trials == 100
    # Tables differ from one another by more than their trials do.
    assert planted.found / 100 == pytest.approx(power, abs=0.17)


@pytest.mark.parametrize("design", [rare_class_in_folds, wide_features], **NAMES)
@pytest.mark.parametrize("leak", [0.0, 1.0])
def test_without_a_shift_plants_are_found_at_the_level(design, leak):
    """Kills plants that leave the table's own leak in place."""
    for planted in plant_leaks(make_test(design, leak), shift=0.0):
        assert planted.found <= stats.binom.isf(0.0005, 100, 0.05)


def test_larger_shifts_are_found_more_often():
    """Kills a shift in other units than standard deviations within cells."""
    test = make_test(wide_features)
    found = [plant_leaks(test, shift=shift, trials=30)[0].found for shift in (0.0, 1.0, 4.0)]
    assert found[0] < found[1] <= found[2] == 30


def test_label_groups_have_their_own_plants():
    """Kills plants in all rows under the name of a group: 12 patients show less than 388 others."""
    everyone, controls, patients = plant_leaks(make_test(rare_class), shift=0.5, trials=40)
    assert [everyone.group, controls.group, patients.group] == [None, 0, 1]
    assert patients.found < controls.found
    assert everyone.found >= 38


def test_equal_seeds_plant_equal_leaks():
    test = make_test(people_with_several_rows)
    assert plant_leaks(test, trials=20, seed=3) == plant_leaks(test, trials=20, seed=3)


def test_errors_state_what_to_write():
    test = make_test(people_with_several_rows)
    with pytest.raises(OptionError, match="`shift` cannot be -1"):
        plant_leaks(test, shift=-1)
    with pytest.raises(OptionError, match="`trials` cannot be 0"):
        plant_leaks(test, trials=0)
    similarity = OutputSimilarity.from_outputs(np.arange(9.0), LeakRows.from_columns(9))
    silent = LeakTest.from_confound(similarity, np.zeros(9), categorical=True, resampling=MANY)
    with pytest.raises(StateError, match="no answer"):
        plant_leaks(silent)
