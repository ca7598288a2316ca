"""Planted leaks: what the test would have found in the user's own data."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy import stats

from deconfound.errors import OptionError, StateError
from deconfound.metrics import LeakRows, LeakTest, OutputSimilarity, Resampling, plant_leaks
from tests.metrics.oracles import cell_projection, planted_kernel
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
    assert planted.detections / 100 == pytest.approx(power, abs=0.17)


@pytest.mark.parametrize("design", [rare_class_in_folds, wide_features], **NAMES)
@pytest.mark.parametrize("leak", [0.0, 1.0])
def test_without_a_shift_plants_are_found_at_the_level(design, leak):
    """Kills plants that leave the table's own leak in place."""
    for planted in plant_leaks(make_test(design, leak), shift=0.0):
        assert planted.detections <= stats.binom.isf(0.0005, 100, 0.05)


def test_larger_shifts_are_found_more_often():
    """Kills a shift in other units than standard deviations within cells."""
    test = make_test(wide_features)
    found = [plant_leaks(test, shift=shift, trials=30)[0].detections for shift in (0.0, 1.0, 4.0)]
    assert found[0] < found[1] <= found[2] == 30


def test_label_groups_have_their_own_plants():
    """Kills plants in all rows under the name of a group: 12 patients show less than 388 others."""
    everyone, controls, patients = plant_leaks(make_test(rare_class), shift=0.5, trials=40)
    assert [everyone.group, controls.group, patients.group] == [None, 0, 1]
    assert patients.detections < controls.detections
    assert everyone.detections >= 38


def measure_planted(test, part, seed):
    """Return T of one part in one planted leak: the plant is found if T exceeds all permuted T."""
    low, high = -3.0, 3.0
    while high - low > 2e-9:
        middle = (low + high) / 2
        statistics = np.full((len(test.parts), 100), 100.0)
        statistics[part, 1:] = middle
        bracketed = replace(test, statistics=statistics)
        if plant_leaks(bracketed, shift=0.7, trials=1, seed=seed)[0].detections:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def people_to_whom_site_can_move(site, cell, person):
    """Return for each person of site 1 everyone with rows in the same cells."""
    cells_of = {one: set(cell[person == one]) for one in person}
    return [
        [one for one, cells in cells_of.items() if cells == cells_of[source]]
        for source in np.unique(person[site == 1])
    ]


@pytest.mark.parametrize(
    "design",
    ["one output", "outputs", "folds", "people", "people in all folds", "label", "weights"],
)
def test_planted_statistic_follows_the_definition(design):
    """Kills wrong norms, pairs within people, or centring of K of the shifted outputs.

    One person of each label group has site 1. In a planted leak anyone with rows in the same cells
    may have it, so T must equal that of one of these tables.
    """
    random = np.random.default_rng(3)
    repeats = random.integers(1, 4, 24) if "people" in design else np.ones(24, int)
    person = np.repeat(np.arange(24), repeats)
    if design == "people in all folds":
        person = np.r_[person, np.arange(24)]
    n, group, site = len(person), person % 2, np.isin(person, [4, 7]).astype(int)
    columns = {"group": group, "person": person}
    if "folds" in design:
        columns["fold"] = np.arange(n) >= n - 24 if "all" in design else person // 12
    if design == "label":
        columns |= {"group": np.zeros(n, int), "numeric_labels": random.normal(size=n)}
    if design == "weights":
        columns["weight"] = 1.0 + 0.5 * site
    outputs = random.normal(size=(n, 1 if design == "one output" else 4))
    similarity = OutputSimilarity.from_outputs(outputs, LeakRows.from_columns(n, **columns))
    test = LeakTest.from_confound(similarity, site, categorical=True, resampling=MANY)
    rows, cell, y = similarity.rows, similarity.cells.codes, similarity.outputs
    site, person = site[similarity.used], rows.person
    if design == "label":
        # Residuals differ between all rows. Contrasts that depend on site and cell only move less.
        contrasts = cell_projection(cell, rows.votes) @ site[:, None]
        test = replace(test, contrasts=contrasts)
    contrast_of = dict(zip(zip(cell, site, strict=True), test.contrasts, strict=True))
    fold = None if similarity.compare_folds else rows.fold
    expected = []
    for movers in product(*people_to_whom_site_can_move(site, cell, person)):
        if len(set(movers)) < len(movers):
            continue
        moved = np.isin(person, movers).astype(int)
        a = np.array([contrast_of[key] for key in zip(cell, moved, strict=True)])
        kernel = planted_kernel(y, 0.7 * moved, cell, person, fold)
        products = kernel * np.sqrt(np.outer(rows.votes, rows.votes)) * (a @ a.T)
        expected.append([products[part, part].sum() for part in test.parts])
    assert len(test.parts) == (1 if design == "label" else 3)
    for part, sums in enumerate(np.transpose(expected)):
        measured = [measure_planted(test, part, seed) for seed in range(2)]
        errors = np.abs(np.subtract.outer(measured, sums)).min(axis=1)
        assert errors.max() < 1e-8


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
