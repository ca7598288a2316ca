"""The simulated cohort: Table 1 to the person, scans by seed and person, and a known truth."""

import json

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from deconfound.data import open_samples
from deconfound.errors import OptionError
from deconfound_lab.cohort import (
    GROUPS,
    SCANNERS,
    Draws,
    Renderer,
    bayes_accuracy,
    count_table_one,
    draw_people,
    simulate_cohort,
)

# Groups, women and men, mean and sd of the ages, as the paper prints them.
PAPER = {
    "UCSF": ((156, 148, 37, 145), (97, 389), (67.00, 6.47)),
    "ADNI": ((229, 397, 0, 0), (253, 373), (75.16, 6.61)),
    "SRI": ((75, 0, 75, 0), (44, 106), (50.72, 11.33)),
}


def group_accuracy(given, people):
    """Both labels right, averaged over the four groups."""
    is_right = (given == people.table[["hiv", "mci"]].to_numpy()).all(axis=1)
    return np.mean([is_right[people.table["group"] == group].mean() for group in GROUPS])


# People


@pytest.mark.parametrize("seed", [0, 7])
def test_table_one_is_the_papers_to_the_person_and_the_ages_to_the_digit(seed):
    table = draw_people(seed).table
    assert len(table) == table["participant_id"].nunique() == 1262
    for site, (counts, sexes, (mean, sd)) in PAPER.items():
        own = table[table["site"] == site]
        assert tuple((own["group"] == group).sum() for group in GROUPS) == counts
        assert tuple((own["sex"] == sex).sum() for sex in "FM") == sexes
        assert own["age"].mean() == pytest.approx(mean, abs=1e-9)
        assert own["age"].std() == pytest.approx(sd, abs=1e-9)
        counted = count_table_one(table).loc[site]
        expected = [*counts, "/".join(map(str, sexes)), f"{mean:.2f} ± {sd:.2f}"]
        assert list(counted) == expected


def test_hand_has_both_labels():
    table = draw_people().table
    labels = table.groupby("group")[["hiv", "mci"]].agg(["min", "max"])
    for group, (hiv, mci) in {"CTRL": (0, 0), "MCI": (0, 1), "HIV": (1, 0), "HAND": (1, 1)}.items():
        assert list(labels.loc[group]) == [hiv, hiv, mci, mci]


def test_independent_groups_have_the_same_sites_sexes_and_ages():
    table = draw_people(3, independent=True, people=400).table
    columns = ["site", "sex", "age"]
    parts = [
        table.loc[table["group"] == group, columns].sort_values(columns).to_numpy().tolist()
        for group in GROUPS
    ]
    assert len(parts[0]) == 100
    assert all(part == parts[0] for part in parts)
    # The control: in Table 1 labels and age are associated.
    tied = draw_people(3).table
    assert abs(np.corrcoef(tied["hiv"], tied["age"])[0, 1]) > 0.2
    assert len(draw_people(independent=True).table) == 1264


def test_smaller_cohorts_keep_the_proportions():
    counts = count_table_one(draw_people(people=126).table).loc["UCSF"]
    assert list(counts[list(GROUPS)]) == [16, 15, 4, 14]
    assert draw_people(people=1).table["site"].tolist() == ["ADNI"]


def test_severities_are_normal_around_two_and_a_half_times_the_label():
    people = draw_people(1, independent=True, people=40_000)
    for label in ("hiv", "mci"):
        noise = people.severity[label] - 2.5 * people.table[label]
        assert noise.mean() == pytest.approx(0, abs=0.02)
        assert noise.std() == pytest.approx(1, abs=0.015)
        assert abs(np.corrcoef(noise, people.table["age"])[0, 1]) < 0.02


# Truth


def test_the_bayes_accuracy_is_that_of_the_bayes_rule_on_many_people():
    people = draw_people(11, independent=True, people=100_000)
    given = (people.severity.to_numpy() > 1.25).astype(int)
    assert group_accuracy(given, people) == pytest.approx(bayes_accuracy(), abs=0.006)
    assert bayes_accuracy() == pytest.approx(norm.cdf(1.25) ** 2)
    assert round(bayes_accuracy(), 3) == 0.8


def test_the_bayes_accuracy_with_confounds_is_that_of_the_posterior_given_the_site():
    """Each person's posterior by hand, in place of an integral."""
    people = draw_people(12, people=100_000)
    totals = np.sum([counts for counts, _, _ in PAPER.values()], axis=0)
    shares = {site: np.array(counts) / totals for site, (counts, _, _) in PAPER.items()}
    prior = np.array([shares[site] for site in people.table["site"]])
    labels = np.array(list(GROUPS.values()))
    likelihood = norm.pdf(people.severity.to_numpy()[:, None] - 2.5 * labels).prod(axis=2)
    given = labels[(prior * likelihood).argmax(axis=1)]
    assert group_accuracy(given, people) == pytest.approx(bayes_accuracy(confounds=True), abs=0.008)
    assert round(bayes_accuracy(confounds=True), 3) == 0.869


# Scans


def test_a_scan_depends_on_the_seed_and_the_person_alone():
    """Kills the mutant that draws all people from one generator."""
    first, again = simulate_cohort(16, seed=5), simulate_cohort(16, seed=5)
    scans = {row: first.scan(row) for row in (7, 1000, 3)}
    for row in (3, 7, 1000):
        np.testing.assert_array_equal(again.scan(row), scans[row])
    assert np.abs(simulate_cohort(16, seed=6).scan(7) - scans[7]).max() > 100
    assert np.abs(scans[7] - scans[3]).max() > 100


def test_each_persons_brain_has_a_form_of_its_own():
    """Age and health alone change 1 % of a man's outline. Kills one generator for all people."""
    cohort = simulate_cohort(16, seed=5)
    men = np.flatnonzero(cohort.table["sex"] == "M")[:6]
    outlines = [cohort.brain(row) > 0.1 for row in men]
    others = [(outlines[0] ^ outline).sum() / outlines[0].sum() for outline in outlines[1:]]
    assert min(others) > 0.03


def test_people_are_the_same_at_every_size():
    small, large = simulate_cohort(16, people=12), simulate_cohort(32, people=12)
    assert small.table.equals(large.table)
    coarse = large.brain(2).reshape(16, 2, 16, 2, 16, 2).mean((1, 3, 5))
    assert np.corrcoef(coarse.ravel(), small.brain(2).ravel())[0, 1] > 0.97


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same_scans_up_to_rounding():
    here, there = (simulate_cohort(32, people=12, device=name) for name in ("cpu", "cuda"))
    assert np.percentile(np.abs(here.scan(5) - there.scan(5)), 99.9) <= 1


def test_a_scan_holds_a_stripped_head():
    scan = simulate_cohort(32, people=12).scan(0)
    assert scan.dtype == np.int16
    assert not scan[0].any()
    assert 0.2 < (scan > 0).mean() < 0.35
    assert 800 < np.percentile(scan[scan > 0], 99) < 1500


def test_each_effect_acts_in_its_place():
    """The same person with other causes. The lower temporal lobe shows impairment, not HIV."""
    renderer, draws = Renderer(32), Draws.of_person((0, 0, 0), 32)

    def brain(age=65.0, severity=(0.0, 0.0), is_man=False):
        return renderer.brain(age, severity, is_man=is_man, draws=draws).numpy()

    usual = brain()
    hiv, mci, age, sex = (
        np.abs(other - usual)
        for other in (
            brain(severity=(2.5, 0.0)),
            brain(severity=(0.0, 2.5)),
            brain(age=85.0),
            brain(is_man=True),
        )
    )
    assert min(change.max() for change in (hiv, mci, age, sex)) > 0.02
    x, _, z = np.meshgrid(*[np.linspace(-1, 1, 32)] * 3, indexing="ij")
    height, side = ((change * z).sum() / change.sum() for change in (mci, hiv)), (mci, hiv)
    assert next(height) < next(height)
    lateral = [(change * np.abs(x)).sum() / change.sum() for change in side]
    assert lateral[0] > lateral[1]
    # The size of a brain is seen at its rim.
    middle = slice(12, 20)
    assert sex[middle, middle, middle].mean() < sex.mean()


def test_the_effect_of_the_site_is_not_additive():
    """Gray and white matter at two sites: the curves change their difference, not a constant."""
    renderer, draws = Renderer(32), Draws.of_person((0, 0, 0), 32)
    brain = torch.full((32, 32, 32), 0.6)
    brain[:, 16:] = 0.9
    scans = {site: renderer.scan(brain, scanner, draws) for site, scanner in SCANNERS.items()}
    # Away from the borders, which are blurred; the front and the back have their own gain.
    near, far = slice(8, 14), slice(18, 24)
    contrast = {site: float((scan[:, far] - scan[:, near]).mean()) for site, scan in scans.items()}
    assert contrast["SRI"] - contrast["UCSF"] > 60
    assert contrast["ADNI"] - contrast["UCSF"] > 30


def test_site_and_age_can_be_read_off_the_scans(tmp_path):
    """The control of every removal: the confounds are in the scans."""
    samples = simulate_cohort(16, people=300).samples(tmp_path)
    x = samples.x.reshape(300, -1).astype(np.float64)
    site, age = samples.table["site"].to_numpy(dtype=str), samples.table["age"].to_numpy()
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=1e-3, max_iter=300))
    assert (cross_val_predict(probe, x, site, cv=3) == site).mean() > 0.9
    ridge = make_pipeline(StandardScaler(), RidgeCV(np.logspace(2, 5, 4)))
    predicted = cross_val_predict(ridge, x, age, cv=3)
    assert np.corrcoef(predicted, age)[0, 1] > 0.6


# Files


def test_samples_are_made_once_and_read_from_the_cache(tmp_path):
    made = []
    cohort = simulate_cohort(16, people=8)
    first = cohort.samples(tmp_path, lambda done, total: made.append((done, total)))
    assert made == [(number, 8) for number in range(1, 9)]
    # What a killed process leaves is not read.
    (tmp_path / "cohort-half.new.npy").write_bytes(b"half")
    again = simulate_cohort(16, people=8).samples(tmp_path, lambda done, total: made.append(done))
    assert len(made) == 8
    np.testing.assert_array_equal(again.x, first.x)
    assert (again.fingerprint, again.kind, again.shape) == (
        first.fingerprint,
        "scan",
        (1, 16, 16, 16),
    )
    other = simulate_cohort(16, seed=1, people=8).samples(tmp_path)
    assert other.fingerprint != first.fingerprint
    assert not np.array_equal(other.x, first.x)


def test_a_bids_folder_is_read_as_any_other(tmp_path):
    pytest.importorskip("nibabel")
    cohort = simulate_cohort(16, people=8, independent=True)
    folder = cohort.write_bids(tmp_path / "bids")
    read = open_samples(folder, cache=tmp_path / "cache")
    samples = cohort.samples(tmp_path)
    np.testing.assert_array_equal(read.x, samples.x)
    for name in samples.table:
        assert read.table[name].astype(str).tolist() == samples.table[name].astype(str).tolist()
    # Nobody trains on severities by accident.
    assert not [name for name in read.table if "severity" in name]
    description = json.loads((folder / "dataset_description.json").read_text())
    assert description["GeneratedBy"][0]["Parameters"]["independent"] is True
    with pytest.raises(OptionError, match="folder must be new or empty; got"):
        cohort.write_bids(folder)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"size": 4, "seed": -1}, "size must be 8 or more; got 4.*\n.*seed must be 0 or more; got"),
        ({"independent": True, "people": 10}, "people must be a multiple of four; got 10"),
        ({"people": 0}, "people must be 1 or more; got 0"),
    ],
)
def test_impossible_cohorts_are_refused(options, text):
    with pytest.raises(OptionError, match=text):
        simulate_cohort(**{"size": 16, **options})


def test_a_row_that_does_not_exist_is_refused():
    with pytest.raises(OptionError, match="row must lie between 0 and 11; got 12"):
        simulate_cohort(16, people=12).scan(12)
