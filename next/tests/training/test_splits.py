"""Folds: every row once, no person in two parts, classes and strata spread evenly."""

import numpy as np
import pandas as pd
import pytest

from deconfound.errors import OptionError, TableError
from deconfound.training import read_task, split_folds

CLASSES = ["AD", "CN", "MCI"]


def make_people(people=60, seed=0, visits=None):
    """A class and a site for each person, who has one row, or 1 to `visits` rows."""
    rng = np.random.default_rng(seed)
    rows = np.ones(people, int) if visits is None else rng.integers(1, visits + 1, people)
    person = np.repeat(np.arange(people), rows)
    frame = pd.DataFrame({"person": [f"P{code:03d}" for code in person]})
    frame["dx"] = np.array(CLASSES)[rng.choice(3, people, p=[0.6, 0.3, 0.1])][person]
    frame["site"] = np.array(list("ABCD"))[rng.choice(4, people, p=[0.4, 0.3, 0.2, 0.1])][person]
    frame["age"] = rng.normal(65, 8, people)[person]
    frame["ill"] = rng.integers(2, size=len(frame))  # changes between visits
    frame["row"] = [f"R{code}" for code in rng.permutation(len(frame))]
    return frame.sample(frac=1, random_state=seed).reset_index(drop=True)


def split(frame, labels=("dx",), **options):
    return split_folds(frame, read_task(frame, list(labels)), **options)


def lists(folds):
    return [[part.tolist() for part in (fold.train, fold.validation, fold.test)] for fold in folds]


def assert_no_person_is_shared(frame, folds):
    for fold in folds:
        parts = [fold.train, fold.validation, fold.test]
        assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)
        people = [set(frame["person"].iloc[part]) for part in parts]
        assert sum(map(len, people)) == len(set.union(*people))


OPTIONS = {
    "k-fold": {"kind": "k-fold", "folds": 4},
    "holdout": {"kind": "holdout", "test": 0.25},
    "leave-one-out": {"kind": "leave-one-out", "column": "site"},
    "column": {"kind": "column", "column": "site"},
}


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("visits", [None, 5])
@pytest.mark.parametrize("labels", [["dx"], ["ill"], ["age"]])
def test_no_person_is_in_two_parts_and_no_row_is_lost(kind, visits, labels):
    """Acceptance 32, also where the label of a person changes; rows alone would share people."""
    frame = make_people(visits=visits)
    folds = split(frame, labels, **OPTIONS[kind], stratum="site", person="person", seed=3)
    assert_no_person_is_shared(frame, folds)
    for fold in folds:
        assert len(fold.train) + len(fold.validation) + len(fold.test) == len(frame)
        assert fold.note == ""
    if kind != "holdout":
        tested = np.concatenate([fold.test for fold in folds])
        assert sorted(tested.tolist()) == list(range(len(frame)))
    if visits and kind == "k-fold":
        alone = split(frame, labels, **OPTIONS[kind], seed=3)
        with pytest.raises(AssertionError):
            assert_no_person_is_shared(frame, alone)  # control


def test_classes_and_strata_are_spread_to_within_one_row():
    """Each class, site and cell with enough people; unstratified folds differ by far more."""
    frame = make_people(400)
    folds = split(frame, folds=5, stratum="site", validation=0.2)

    def largest_gap(parts, names, fewest):
        counts = pd.concat([frame.iloc[part].groupby(names).size() for part in parts], axis=1)
        counts = counts.fillna(0)
        counts = counts[counts.sum(axis=1) >= fewest]
        return (counts.max(axis=1) - counts.min(axis=1)).max()

    tests = [fold.test for fold in folds]
    assert largest_gap(tests, ["dx", "site"], 5) <= 1
    assert largest_gap(tests, ["dx"], 0) <= 1
    assert largest_gap(np.split(np.arange(400), 5), ["dx", "site"], 5) >= 5  # control
    assert {len(test) for test in tests} == {80}
    shares = frame["dx"].value_counts(normalize=True)
    for fold in folds:
        held_out = frame["dx"].iloc[fold.validation].value_counts(normalize=True)
        np.testing.assert_allclose(held_out[shares.index], shares, atol=0.03)
        assert len(fold.validation) == pytest.approx(0.2 * 320, abs=3)


def test_people_with_many_rows_are_spread_as_well():
    """Classes differ by few rows between folds although people have 1 to 6 of them."""
    frame = make_people(150, visits=6)
    folds = split(frame, folds=5, stratum="site", person="person")
    counts = pd.concat([frame["dx"].iloc[fold.test].value_counts() for fold in folds], axis=1)
    assert (counts.max(axis=1) - counts.min(axis=1)).max() <= 8
    sizes = [len(fold.test) for fold in folds]
    assert max(sizes) - min(sizes) <= 8


def test_numeric_labels_are_stratified_by_fifths():
    frame = make_people(500)
    folds = split(frame, ["age"], folds=5)
    fifths = pd.qcut(frame["age"], 5, labels=False).to_numpy()
    for fold in folds:
        counts = np.bincount(fifths[fold.test], minlength=5)
        assert counts.max() - counts.min() <= 1
    assert np.ptp([frame["age"].iloc[fold.test].mean() for fold in folds]) < 1
    several = split(frame.assign(size=frame["age"] ** 2), ["age", "size"], folds=5)
    assert len(several) == 5


def test_several_labels_are_stratified_together():
    frame = make_people(300).assign(other=lambda x: (x["dx"] == "AD").astype(int))
    folds = split(frame, ["ill", "other"], folds=5)
    cell = 2 * frame["ill"] + frame["other"]
    counts = np.stack([np.bincount(cell.iloc[fold.test], minlength=4) for fold in folds])
    assert np.ptp(counts, axis=0).max() <= 1


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("visits", [None, 3])
def test_the_division_follows_from_the_seed(kind, visits):
    frame = make_people(visits=visits)
    first, again, other = (
        lists(split(frame, **OPTIONS[kind], person="person", seed=seed)) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("visits", [None, 3])
def test_with_ids_the_order_of_the_rows_does_not_matter(kind, visits):
    frame = make_people(visits=visits)
    shuffled = frame.sample(frac=1, random_state=5)
    person = "person" if visits else None

    def sets_of_ids(table, **more):
        folds = split(table, **OPTIONS[kind], stratum="site", person=person, **more)
        return [[set(table["row"].iloc[part]) for part in parts] for parts in lists(folds)]

    ids = [sets_of_ids(table, ids=table["row"].tolist()) for table in (frame, shuffled)]
    assert ids[0] == ids[1]
    if kind == "k-fold" and not visits:
        assert sets_of_ids(frame) != sets_of_ids(shuffled)  # control


def test_a_left_out_site_is_never_trained_on():
    frame = make_people()
    folds = split(frame, kind="leave-one-out", column="site")
    assert [fold.name for fold in folds] == ["A", "B", "C", "D"]
    for fold in folds:
        assert set(frame["site"].iloc[fold.test]) == {fold.name}
        rest = np.concatenate([fold.train, fold.validation])
        assert fold.name not in set(frame["site"].iloc[rest])


def test_people_seen_at_the_left_out_site_leave_the_training():
    """Fault 21: 0.2 refused such a table. The note counts rows and people."""
    frame = make_people(60)
    visit = frame[frame["site"] == "A"].head(3).assign(site="B")
    again = frame[frame["site"] == "A"].head(2).assign(site="C")
    frame = pd.concat([frame, visit, again], ignore_index=True)
    folds = split(frame, kind="leave-one-out", column="site", person="person")
    assert_no_person_is_shared(frame, folds)
    notes = {fold.name: fold.note for fold in folds}
    assert notes == {
        "A": "5 rows of 3 people are left out: their other rows are tested.",
        "B": "5 rows of 3 people are left out: their other rows are tested.",
        "C": "4 rows of 2 people are left out: their other rows are tested.",
        "D": "",
    }
    for fold in folds:
        assert (frame["site"].iloc[fold.test] == fold.name).all()
        assert len(fold.test) == (frame["site"] == fold.name).sum()


def test_a_column_can_hold_the_folds_in_the_order_of_numbers():
    frame = make_people(60).assign(part=np.arange(60) % 12)
    folds = split(frame, kind="column", column="part", validation=0.2)
    assert [fold.name for fold in folds] == [str(number) for number in range(12)]
    assert (folds[10].test % 12 == 10).all()


def test_validation_rows_have_each_class_that_two_people_have():
    """Two rare classes of two people each are in both parts; one of a single person is trained on.

    Kills a division alone, which puts two rare classes into different parts.
    """
    dx = np.array(["A"] * 40 + ["B"] * 30 + ["C"] * 2 + ["D"] * 2 + ["E"])
    for visits in (1, 2):
        frame = pd.DataFrame({"dx": np.repeat(dx, visits)})
        frame["person"] = np.repeat(np.arange(75), visits)
        frame["part"] = np.where(frame["person"] < 5, "first", "second")
        for seed in range(5):
            fold = split(frame, kind="column", column="part", person="person", seed=seed)[0]
            assert set(frame["dx"].iloc[fold.train]) == set("ABCDE")
            assert set(frame["dx"].iloc[fold.validation]) == set("ABCD")
            assert len(fold.validation) == pytest.approx(10 * visits, abs=3 * visits)


def test_without_validation_all_rows_are_trained_on():
    frame = make_people(60)
    for fold in split(frame, folds=3, validation=0):
        assert len(fold.validation) == 0
        assert len(fold.train) == 40


def test_shares_are_those_of_the_rows():
    frame = make_people(400)
    for share, parts in ((0.5, 2), (0.25, 4), (0.1, 10)):
        fold = split(frame, kind="holdout", test=share, validation=share)[0]
        assert len(fold.test) == pytest.approx(400 / parts, abs=3)
        assert len(fold.validation) == pytest.approx((400 - len(fold.test)) / parts, abs=3)


@pytest.mark.parametrize("people", [3, 4, 5])
@pytest.mark.parametrize("repeats", [1, 2])
def test_there_can_be_as_many_folds_as_people(people, repeats):
    """Each fold tests one person, and has somebody to train on and somebody for validation."""
    frame = pd.DataFrame({"age": np.arange(people * repeats) * 1.5 + 0.25})
    frame["person"] = np.arange(len(frame)) // repeats
    folds = split(frame, ["age"], folds=people, person="person", validation=0.5)
    assert [frame["person"].iloc[fold.test].nunique() for fold in folds] == [1] * people
    assert all(len(fold.train) and len(fold.validation) for fold in folds)


def test_a_missing_stratum_is_a_stratum():
    frame = make_people(100)
    frame.loc[:19, "site"] = None
    folds = split(frame, stratum="site")
    counts = [frame["site"].iloc[fold.test].isna().sum() for fold in folds]
    assert max(counts) - min(counts) <= 2


def test_all_options_without_sense_are_named_together():
    with pytest.raises(OptionError) as error:
        split(make_people(), kind="kfold", folds=1, test=0.8, validation=-0.1)
    assert str(error.value).splitlines() == [
        "There is no kind 'kfold'. Did you mean 'k-fold'?",
        "folds must be a whole number, 2 or more; got 1.",
        "test must be a share between 0 and 0.5; got 0.8.",
        "validation must be a share between 0 and 0.5; got -0.1.",
    ]
    with pytest.raises(OptionError, match="kind='column' needs a column; got None"):
        split(make_people(), kind="column")


def test_all_faults_of_the_table_are_named_together():
    frame = make_people(40)
    task = read_task(frame, ["dx"])
    with pytest.raises(TableError) as error:
        split_folds(frame, task, kind="leave-one-out", column="sites", person="persn")
    assert "no column 'sites'. Did you mean 'site'" in str(error.value)
    assert "no column 'persn'. Did you mean 'person'" in str(error.value)
    frame.loc[3, "dx"] = frame.loc[5, "site"] = frame.loc[7, "person"] = None
    with pytest.raises(TableError) as error:
        split_folds(frame, task, kind="leave-one-out", column="site", person="person")
    text = str(error.value)
    assert "Label 'dx' is none of 'AD', 'CN', 'MCI' in row 3" in text
    assert "Column 'site' is empty in row 5" in text
    assert "Column 'person' is empty in row 7" in text


def test_classes_with_fewer_people_than_folds_are_named():
    """People count, not rows."""
    frame = pd.DataFrame({"dx": ["A"] * 20 + ["B"] * 9 + ["C"] * 6})
    frame["person"] = [*range(20), *np.arange(9) % 3 + 20, *np.arange(6) % 2 + 23]
    with pytest.raises(TableError) as error:
        split(frame, folds=4, person="person")
    assert str(error.value).splitlines() == [
        "Label 'dx' is 'B' for 3 people, fewer than 4 folds. "
        "Use fewer folds, or join this class with another one.",
        "Label 'dx' is 'C' for 2 people, fewer than 4 folds. "
        "Use fewer folds, or join this class with another one.",
    ]
    assert len(split(frame, folds=4)) == 4  # control: rows are enough


def test_folds_without_people_to_train_on_are_named():
    frame = make_people(40).assign(site="A")
    with pytest.raises(TableError, match="Fold 'A' has 40 rows to test, and 0 people to train on"):
        split(frame, kind="leave-one-out", column="site")
    ages = pd.DataFrame({"age": [60.5, 70, 80]})
    with pytest.raises(TableError) as error:
        split(ages, ["age"], folds=5)
    assert "Fold '3' has 0 rows to test" in str(error.value)
    assert "Fold '4' has 0 rows to test" in str(error.value)
