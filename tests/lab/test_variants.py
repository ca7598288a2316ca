"""Cohorts that are less kind than the paper's, and the oracle arm of the MRI experiment."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from deconfound.errors import OptionError
from deconfound_lab import Variant, simulate_cohort
from deconfound_lab.cohort.counting import table_one
from deconfound_lab.cohort.effects import coefficients
from deconfound_lab.cohort.strengths import UNSEEN_SITE, VARIANTS, Strengths
from deconfound_lab.harness import Signals
from deconfound_lab.mri.experiment import MriExperiment
from deconfound_lab.mri.plan import ARMS, Part, Plan

TINY = Plan(
    size=16, people=120, parts=(Part(("baseline", "oracle"), (40,), 1),), folds=3, filters=(2, 2, 2, 2), epochs=1,
    least_steps=1,
)  # fmt: skip


def test_a_variant_that_changes_nothing_is_the_papers_cohort():
    plain, same = simulate_cohort(16, people=40), simulate_cohort(16, people=40, variant=Variant())
    assert plain.fingerprint == same.fingerprint
    assert "variant" not in plain.settings
    rows = np.arange(5)
    np.testing.assert_array_equal(plain.read(rows), same.read(rows))


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_has_the_papers_counts_and_its_own_volumes(name):
    plain, other = (simulate_cohort(16, people=120, independent=name == "unseen-site", variant=v) for v in (None, name))
    assert plain.fingerprint != other.fingerprint
    assert other.settings["variant"] == VARIANTS[name].changes()
    assert (plain.table["group"] == other.table["group"]).all()
    if name != "unseen-site":
        counts = [[(line.groups, line.women, line.men) for line in table_one(each.table)] for each in (plain, other)]
        assert counts[0] == counts[1] or name == "swapped"
        assert (plain.table["age"] == other.table["age"]).all() == (name != "swapped")
    rows = np.arange(30)
    if name != "swapped":
        assert not np.array_equal(plain.read(rows), other.read(rows))


def effect(age, severity, variant):
    ones = np.ones(len(age))
    tissue, motion = coefficients(age, severity * ones, 0 * ones, np.zeros((len(age), 2)), Strengths(), variant)
    return np.concatenate([tissue, motion], axis=1)


def test_ageing_along_a_curve_is_no_straight_line_and_leaves_the_diseases_alone():
    age = np.array([55.0, 65.0, 75.0])
    straight, curved = (effect(age, 0.0, Variant(age_curve=c)) for c in (0.0, 0.5))
    assert np.diff(straight, n=2, axis=0) == pytest.approx(0, abs=1e-6)
    assert np.abs(np.diff(curved, n=2, axis=0)).max() > 0.3
    disease = [effect(age, 1.0, Variant(age_curve=c)) - effect(age, 0.0, Variant(age_curve=c)) for c in (0.0, 0.5)]
    np.testing.assert_allclose(*disease, atol=1e-6)


def test_with_an_interaction_the_effect_of_a_disease_grows_with_age():
    age = np.array([55.0, 65.0, 75.0])
    variant = Variant(age_disease=0.2)
    disease = effect(age, 1.0, variant) - effect(age, 0.0, variant)
    acting = disease[:, np.abs(disease[1]) > 0]
    np.testing.assert_allclose(
        acting / acting[1], [[0.8] * acting.shape[1], [1.0] * acting.shape[1], [1.2] * acting.shape[1]], rtol=1e-5
    )


def test_sex_that_is_tied_to_the_impairment_keeps_the_counts_of_a_site():
    free, tied = (simulate_cohort(16, variant=Variant(sex_tie=tie)).table for tie in (0.0, 1.0))
    for table, low, high in ((free, -0.08, 0.08), (tied, 0.15, 0.6)):
        at = (table["site"] == "UCSF") & (table["hiv"] == 0)
        assert low < np.corrcoef(table["sex"][at] == "M", table["mci"][at])[0, 1] < high
    assert [(line.women, line.men) for line in table_one(tied)] == [(97, 389), (253, 373), (44, 106)]


def test_swapped_people_have_ages_and_sites_of_one_another_and_their_own_brains():
    plain, swapped = (simulate_cohort(16, people=200, variant=Variant(swapped=s)) for s in (0.0, 0.1))
    differ = np.flatnonzero(plain.table["age"] != swapped.table["age"])
    assert len(differ) == 20
    assert sorted(plain.table["age"][differ]) == sorted(swapped.table["age"][differ])
    np.testing.assert_array_equal(plain.scans(differ[:5]), swapped.scans(differ[:5]))
    with pytest.raises(OptionError, match="swapped must lie between 0 and 1; got 2"):
        simulate_cohort(16, variant=Variant(swapped=2))
    with pytest.raises(OptionError, match=r"variant must be one of curved-age, .*; got 'curved'"):
        simulate_cohort(16, variant="curved")


def test_only_the_independent_people_are_at_the_unseen_site_and_they_are_predicted():
    experiment = MriExperiment(plan=replace(TINY, variant="unseen-site"), cache="/nowhere")
    assert UNSEEN_SITE not in set(experiment.cohort.table["site"])
    assert set(experiment.independent.table["site"]) == {UNSEEN_SITE}


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    return MriExperiment(plan=TINY, cache=tmp_path_factory.mktemp("cache"))


def test_the_oracle_learns_from_as_many_other_people_in_whom_labels_are_independent(experiment):
    plain, oracle = (experiment.training(0, ARMS[each]) for each in ("baseline", "oracle"))
    assert len(oracle.train) == len(plain.train)
    assert len(oracle.validation) == len(plain.validation)
    assert not set(oracle.fold.train) & set(oracle.fold.validation)
    table = oracle.volumes.table
    assert abs(np.corrcoef(table["hiv"], table["age"])[0, 1]) < 1e-12
    tested = experiment.volumes[1].images
    assert not any(torch.equal(image, other) for image in oracle.volumes.images[:3] for other in tested)
    assert ARMS["oracle"].method == "none"


def test_the_oracle_is_tested_on_the_same_people_as_the_others(experiment):
    found = [experiment.compute(cell, Signals()) for cell in experiment.cells()]
    assert found[0]["rows"].tolist() == found[1]["rows"].tolist() == experiment.folds[0].test.tolist()
    assert found[0]["independent"].shape == found[1]["independent"].shape
    assert not np.array_equal(found[0]["independent"], found[1]["independent"])
