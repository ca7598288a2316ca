"""The simulated cohort: Table 1 to the person, seeded volumes, and a truth that can be computed."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm

from deconfound.data.scans import open_scans
from deconfound.data.sources import Source
from deconfound.errors import OptionError
from deconfound_lab.cohort.cohort import simulate_cohort
from deconfound_lab.cohort.counting import paper_table_one, table_one
from deconfound_lab.cohort.people import GROUPS, LABELS, draw_people, shares
from deconfound_lab.cohort.strengths import Strengths
from deconfound_lab.cohort.truth import bayes_accuracy, bayes_labels


def both_right(given, table):
    right = (given["hiv"] == table["hiv"]) & (given["mci"] == table["mci"])
    return np.mean([right[table["group"] == group].mean() for group in GROUPS])


@pytest.mark.parametrize("seed", [0, 7])
def test_table_one_is_the_papers_to_the_person_and_the_ages_to_the_digit(seed):
    table = draw_people(seed, Strengths()).table
    assert len(table["age"]) == 1262
    for ours, theirs in zip(table_one(table), paper_table_one(), strict=True):
        assert (ours.site, ours.groups, ours.women, ours.men) == (theirs.site, theirs.groups, theirs.women, theirs.men)
        assert ours.age == pytest.approx(theirs.age, abs=1e-9)
        assert ours.age_sd == pytest.approx(theirs.age_sd, abs=1e-9)


def test_table_one_is_what_the_paper_prints():
    ucsf, adni, sri = paper_table_one()
    assert [sum(line.groups[group] for line in (ucsf, adni, sri)) for group in GROUPS] == [460, 545, 112, 145]
    assert (ucsf.women, ucsf.men, adni.women, adni.men, sri.women, sri.men) == (97, 389, 253, 373, 44, 106)
    assert (adni.age, adni.age_sd) == (75.16, 6.61)


def test_labels_say_hand_is_both():
    table = draw_people(0, Strengths()).table
    for group, (hiv, mci) in LABELS.items():
        rows = table["group"] == group
        assert set(zip(table["hiv"][rows].tolist(), table["mci"][rows].tolist(), strict=True)) == {(hiv, mci)}


def test_in_the_independent_set_every_group_has_the_same_sites_sexes_and_ages():
    people = draw_people(3, Strengths(), independent=True, people=400)
    table = people.table
    columns = zip(table["site"], table["sex"], table["age"], strict=True)
    rows = np.array([f"{site} {sex} {age}" for site, sex, age in columns])
    per_group = [sorted(rows[table["group"] == group].tolist()) for group in GROUPS]
    assert len(per_group[0]) == 100
    assert all(group == per_group[0] for group in per_group)
    tied = draw_people(3, Strengths()).table
    assert abs(np.corrcoef(tied["hiv"], tied["age"])[0, 1]) > 0.2  # the control: in Table 1 they are not


def test_smaller_cohorts_keep_the_proportions():
    table = draw_people(0, Strengths(), people=126).table
    counts = {line.site: line.groups for line in table_one(table)}
    assert counts["UCSF"] == {"CTRL": 16, "MCI": 15, "HIV": 4, "HAND": 14}
    assert shares([1, 1, 1], 4) == [2, 1, 1]
    assert draw_people(0, Strengths(), people=1).table["site"].tolist() == ["ADNI"]


def test_impaired_people_can_be_older_within_a_site_without_changing_its_ages():
    table = draw_people(0, Strengths(), older=5.0).table
    at = table["site"] == "ADNI"
    age, impaired = table["age"][at], table["mci"][at] == 1
    assert age[impaired].mean() - age[~impaired].mean() > 3
    assert table_one(table)[1].age == pytest.approx(75.16)


def test_a_volume_depends_on_seed_and_person_alone():
    first = simulate_cohort(16, seed=5)
    volumes = first.read([7, 1000, 3])
    np.testing.assert_array_equal(simulate_cohort(16, seed=5).read([3, 7, 1000]), volumes[[2, 0, 1]])
    assert np.abs(simulate_cohort(16, seed=6).read([7]) - volumes[:1]).max() > 0.1
    assert np.abs(volumes[0] - volumes[1]).max() > 0.1


def test_people_are_the_same_at_every_size():
    small, large = simulate_cohort(16, people=12), simulate_cohort(32, people=12)
    for name in small.table:
        assert small.table[name].tolist() == large.table[name].tolist()
    coarse = large.brains([2])[0].reshape(16, 2, 16, 2, 16, 2).mean((1, 3, 5))
    assert np.corrcoef(coarse.ravel(), small.brains([2])[0].ravel())[0, 1] > 0.97


def test_volumes_look_like_a_stripped_head():
    scan = simulate_cohort(32, people=12).scans([0])[0]
    assert scan.dtype == np.int16
    assert not scan[0].any()
    assert 0.2 < (scan > 0).mean() < 0.35  # as much of the box as a brain fills
    assert np.percentile(scan[scan > 0], 99) < 1500


def same_person(cohort, **changes):
    """The first person's brain under other latents and strengths."""
    strengths = replace(cohort.strengths, **changes.pop("strengths", {}))
    other = simulate_cohort(cohort.size, strengths=strengths)
    for name, value in changes.items():
        column = other.severity.get(name, other.truth.get(name, other.table.get(name)))
        column[0] = value
    return other


def test_each_effect_acts_where_it_should():
    cohort = simulate_cohort(32)
    x, y, z = np.meshgrid(*[np.linspace(-1, 1, 32)] * 3, indexing="ij")
    base = same_person(cohort, hiv=0.0, mci=0.0, age=65.0, sex="F").brains([0])[0]

    def change(**latents):
        latents = {"hiv": 0.0, "mci": 0.0, "age": 65.0, "sex": "F"} | latents
        return np.abs(same_person(cohort, **latents).brains([0])[0] - base)

    def height(field):
        return (field * z).sum() / field.sum()

    mci, hiv, age, sex = change(mci=2.5), change(hiv=2.5), change(age=85.0), change(sex="M")
    assert height(mci) < height(hiv)  # the temporal lobes lie below the striatum and the deep white matter
    lateral = [(field * np.abs(x)).sum() / field.sum() for field in (mci, hiv)]
    assert lateral[0] > lateral[1]
    middle = np.abs(x) + np.abs(y) + np.abs(z) < 0.5
    assert sex[middle].mean() < sex.mean() < age.sum()  # size is seen at the rim
    assert min(field.max() for field in (mci, hiv, age, sex)) > 0.02


def test_the_site_is_not_additive():
    """One brain at two sites: the difference is no constant, and follows the tissue."""
    cohort = simulate_cohort(32)
    quiet = {"sites": {k: replace(a, noise=1e-6, blur=0.1) for k, a in cohort.strengths.sites.items()}}
    first, second = (same_person(cohort, site=site, strengths=quiet).scans([0])[0] for site in ("UCSF", "SRI"))
    brain = cohort.brains([0])[0]
    inside = (first > 0) & (second > 0)
    difference = (second - first)[inside].astype(float)
    dark, bright = brain[inside] < 0.5, brain[inside] > 0.8
    assert difference[dark].mean() < -30
    assert abs(difference[dark].mean() - difference[bright].mean()) > 30


def test_without_site_strength_the_sites_are_alike():
    alike = Strengths(site=0.0)
    assert alike.acquisition("UCSF") == pytest.approx(alike.acquisition("SRI")) or (
        alike.acquisition("UCSF").gamma == pytest.approx(alike.acquisition("SRI").gamma)
    )
    assert Strengths().acquisition("SRI").gamma == pytest.approx(Strengths().sites["SRI"].gamma)


def test_the_bayes_accuracy_is_that_of_the_bayes_rule_on_many_people():
    people = draw_people(11, Strengths(), independent=True, people=200_000)
    assert both_right(bayes_labels(people.severity), people.table) == pytest.approx(bayes_accuracy(), abs=0.004)
    assert bayes_accuracy() == pytest.approx(norm.cdf(1.25) ** 2)
    assert bayes_accuracy(Strengths(hiv_separation=0.0)) == pytest.approx(0.5 * norm.cdf(1.25))


def test_the_bayes_accuracy_with_confounds_is_that_of_the_posterior_given_the_site():
    """Written differently: the weighted posterior of each simulated person, instead of an integral."""
    people = draw_people(12, Strengths(), people=100_000)
    counts = {line.site: line.groups for line in paper_table_one()}
    totals = {group: sum(groups[group] for groups in counts.values()) for group in GROUPS}
    score = np.stack([
        np.array([counts[site][group] / totals[group] for site in people.table["site"]])
        * norm.pdf(people.severity["hiv"], 2.5 * LABELS[group][0])
        * norm.pdf(people.severity["mci"], 2.5 * LABELS[group][1])
        for group in GROUPS
    ])  # fmt: skip
    chosen = np.array([LABELS[group] for group in GROUPS])[score.argmax(0)]
    accuracy = both_right({"hiv": chosen[:, 0], "mci": chosen[:, 1]}, people.table)
    assert accuracy == pytest.approx(bayes_accuracy(confounds=True), abs=0.006)
    assert accuracy > bayes_accuracy() + 0.03


def test_a_linear_probe_finds_site_and_age_and_the_confounding_is_real():
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression, RidgeCV
    from sklearn.model_selection import cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    cohort = simulate_cohort(32, people=500)
    images = cohort.read(np.arange(500)).reshape(500, -1)
    parts = PCA(80, svd_solver="randomized", random_state=0).fit_transform(images)
    site, age = cohort.table["site"].astype(str), cohort.table["age"]
    guessed = cross_val_predict(make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)), parts, site)
    assert (guessed == site).mean() > 0.9
    predicted = cross_val_predict(make_pipeline(StandardScaler(), RidgeCV(np.logspace(0, 4, 9))), parts, age)
    assert 1 - ((age - predicted) ** 2).mean() / age.var() > 0.5


def test_a_cohort_is_a_source_and_reads_the_same_from_the_cache(tmp_path):
    cohort = simulate_cohort(16, people=12)
    assert isinstance(cohort, Source)
    assert (len(cohort), cohort.shape) == (12, (1, 16, 16, 16))
    drawn = cohort.read(np.arange(12))
    cohort.keep(tmp_path, jobs=2, progress=False)
    np.testing.assert_array_equal(cohort.read(np.arange(12)), drawn)
    assert cohort.read(np.array([4])).dtype == np.float32
    other = simulate_cohort(16, seed=1, people=12).keep(tmp_path, progress=False)
    assert np.abs(other.read([0]) - drawn[:1]).max() > 0.1


def test_a_written_cohort_is_read_as_any_other_folder_of_scans(tmp_path):
    cohort = simulate_cohort(16, people=12, independent=True)
    folder = cohort.write_bids(tmp_path / "bids", progress=False)
    scans = open_scans(folder, cache=tmp_path / "cache", shape=(16, 16, 16), progress=False)
    np.testing.assert_array_equal(scans.read(np.arange(12)), cohort.read(np.arange(12)))
    for name in ("participant_id", "person", "site", "group", "sex", "hiv", "mci", "age"):
        assert scans.table[name].tolist() == cohort.table[name].tolist()
    description = json.loads((folder / "dataset_description.json").read_text())
    assert description["GeneratedBy"][0]["Parameters"]["strengths"]["mci_separation"] == 2.5
    assert "severity" not in " ".join(scans.table)
    with pytest.raises(OptionError, match="the cohort's folder must be new or empty"):
        cohort.write_bids(folder, progress=False)


def test_volumes_are_drawn_without_changing_the_number_of_threads(tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        simulate_cohort(16, people=4).keep(tmp_path, jobs=2, progress=False)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"size": 4}, "size must be at least 8; got 4"),
        ({"seed": -1}, "seed must not be negative; got -1"),
        ({"anatomy": "mouse"}, "anatomy must be one of procedural, icbm152; got 'mouse'"),
        (
            {"independent": True, "people": 10},
            "people must be a positive multiple of four where independent=True; got 10",
        ),
        ({"people": 0}, "people must be at least 1; got 0"),
        ({"dtype": "int32"}, "dtype must be 'uint8' or 'float16'"),
    ],
)
def test_options_out_of_range_are_refused(options, text):
    with pytest.raises(OptionError, match=text):
        simulate_cohort(**({"size": 16} | options))


def test_a_row_that_is_not_there_is_refused():
    with pytest.raises(OptionError, match="rows must lie between 0 and 11; got 12"):
        simulate_cohort(16, people=12).read([12])


def test_the_icbm152_maps_give_a_cohort_too():
    pytest.importorskip("nilearn", reason="the ICBM152 maps are inside nilearn")
    procedural, atlas = simulate_cohort(16, people=12), simulate_cohort(16, people=12, anatomy="icbm152")
    volume = atlas.brains([0])[0]
    assert 0.2 < (volume > 0.1).mean() < 0.4
    assert 0.6 < np.corrcoef(volume.ravel(), procedural.brains([0])[0].ravel())[0, 1] < 0.99
    assert atlas.table["age"].tolist() == procedural.table["age"].tolist()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same_volumes_up_to_rounding():
    here, there = simulate_cohort(32, people=12), simulate_cohort(32, people=12, device="cuda")
    difference = np.abs(here.scans([5]).astype(int) - there.scans([5]))
    assert np.percentile(difference, 99.9) <= 1
