"""Folds: nothing of the test rows is seen before they are predicted."""

from dataclasses import replace

import numpy as np
import pytest

from deconfound.errors import OptionError, TableError
from deconfound.training.batches import Order
from deconfound.training.fold_data import fold_data
from deconfound.training.problem import open_problem
from deconfound.training.splits import deal, kfold, level_test_rows, person_codes, stratum_codes, with_validation
from tests.training import tiny

PARTS_OF_0_1 = [
    [2, 3, 6, 7, 8, 9, 10, 11, 20, 21],
    [0, 1, 4, 5, 18, 19, 22, 23, 26, 27],
    [12, 13, 14, 15, 16, 17, 24, 25, 28, 29],
]


def divided(frame, person=None, column=None, **options):
    strata, people = stratum_codes([frame["dx"].to_numpy()]), person_codes(frame, person, len(frame))
    if column is None:
        return kfold(strata, people, **options)
    rows = np.arange(len(frame))
    return with_validation(level_test_rows(frame[column].to_numpy(), rows, column), rows, strata, people, 0.15, 0)


@pytest.mark.parametrize("scans", [1, 3])
def test_folds_cover_all_rows_once_and_share_no_person(scans):
    frame = tiny.cohort(120, scans=scans)
    found = divided(frame, "person", folds=4)
    assert sorted(np.concatenate([fold.test for fold in found]).tolist()) == list(range(120))
    for fold in found:
        parts = [fold.train, fold.validation, fold.test]
        assert sum(map(len, parts)) == 120
        people = [set(frame["person"].to_numpy()[part]) for part in parts]
        assert sum(map(len, people)) == len(set.union(*people))


def test_strata_are_spread_to_within_one_row():
    strata = np.array([0] * 50 + [1] * 23 + [2] * 7 + [3] * 2)
    part = deal(strata, np.arange(len(strata)), 5, seed=1)
    for stratum in range(4):
        counts = np.bincount(part[strata == stratum], minlength=5)
        assert counts.max() - counts.min() <= 1
    sizes = np.bincount(part)
    assert sizes.max() - sizes.min() <= 1


def test_the_division_follows_the_seed_and_nothing_else():
    frame = tiny.cohort()
    same, again, other = (divided(frame, folds=3, seed=seed)[0].test.tolist() for seed in (1, 1, 2))
    assert same == again != other


def test_a_column_can_hold_the_folds():
    frame = tiny.cohort(60)
    frame["part"] = np.arange(60) % 12
    found = divided(frame, column="part")
    assert [fold.name for fold in found] == [str(number) for number in range(12)]
    assert (found[10].test % 12 == 10).all()


def test_long_codes_of_sites_are_told_apart_also_as_floats():
    values = np.array([1234567.0, 1234568.0, np.nan, 1234567.0])
    found = level_test_rows(values, np.array([0, 1, 3]), "site")
    assert [(name, rows.tolist()) for name, rows in found] == [("1234567", [0, 3]), ("1234568", [1])]


def test_leaving_a_site_out_that_a_person_visited_twice_is_refused():
    frame = tiny.cohort(60, scans=2)
    frame["site"] = ["A", "B"] * 30
    with pytest.raises(TableError, match="splits must keep a person in one fold; got 30 people"):
        divided(frame, "person", "site")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"folds": 100}, "splits.folds must be between 2 and the 72 people; got 100"),
        ({"folds": 72, "validation": 0.01}, "must have at least 100 people to train on"),
    ],
)
def test_impossible_divisions_are_refused(options, said):
    with pytest.raises((OptionError, TableError), match=said):
        divided(tiny.cohort(), **options)


def test_a_seed_of_the_division_is_stronger_than_that_of_the_run(tmp_path):
    path = tiny.write(tmp_path)
    drawn = [tiny.config(path, tmp_path, run={"seed": seed}, splits={"seed": own}) for seed, own in
             ((1, None), (9, 1), (9, None))]  # fmt: skip
    first, same, other = (open_problem(config).folds[0].test.tolist() for config in drawn)
    assert first == same != other


def test_kfold_gives_the_rows_that_release_0_1_gave():
    found = kfold(np.arange(30) % 3, person_codes({"p": np.arange(30) // 2}, "p", 30), folds=3, validation=0.2, seed=4)
    assert [fold.test.tolist() for fold in found] == PARTS_OF_0_1
    assert [fold.validation.tolist() for fold in found] == [[4, 5, 26, 27], [10, 11, 12, 13], [0, 1, 4, 5]]


def test_whole_numbers_as_ids_give_the_same_folds_whether_they_are_read_as_numbers_or_as_text(tmp_path):
    frame = tiny.cohort(60, scans=2)
    frame["person"] = np.random.default_rng(0).permutation(np.arange(1, 31)).repeat(2)
    config = tiny.config(tiny.write(tmp_path, frame), tmp_path / "run", data={"person": "person"})
    problem = open_problem(config)
    assert problem.source.table["person"].tolist() == frame["person"].astype(str).tolist()
    in_numbers = open_problem(config, replace(problem.source, table=frame))
    assert [fold.test.tolist() for fold in problem.folds] == [fold.test.tolist() for fold in in_numbers.folds]


def test_a_person_whose_id_is_written_with_and_without_zeros_is_one_person():
    codes = person_codes({"p": np.array(["0010", "0005", "5", "A5", "0A5"], dtype=object)}, "p", 5)
    assert codes.tolist() == [1, 0, 0, 3, 2]


def test_a_column_of_people_that_is_a_confound_too_is_read_by_its_values(tmp_path):
    frame = tiny.cohort(60).assign(site=np.arange(60) % 20)
    config = tiny.config(
        tiny.write(tmp_path, frame), tmp_path / "run", data={"person": "site"}, design={"confounds": ["age", "site"]}
    )
    assert open_problem(config).source.table["site"].dtype.kind == "i"


def test_batches_are_of_nearly_one_size_and_hold_every_row_once():
    order = Order(65, 16, seed=3)
    batches = list(order)
    assert sorted(row for batch in batches for row in batch) == list(range(65))
    assert {len(batch) for batch in batches} == {13}
    order.set_epoch(1)
    assert list(order) != batches
    order.set_epoch(0)
    assert list(order) == batches


@pytest.mark.parametrize("method", ["none", "input-residualize", "pmdn"])
def test_changing_the_test_rows_changes_nothing_that_was_fitted(tmp_path, method):
    frame = tiny.cohort()
    path = tiny.write(tmp_path, frame)
    first = tiny.config(path, tmp_path / "a", method={"name": method})
    test = open_problem(first).folds[0].test
    changed = frame.copy()
    random = np.random.default_rng(0)
    for name in ("f0", "f3", "age"):
        changed.loc[test, name] = random.normal(100, 50, len(test))
    changed.loc[test, "sex"] = changed.loc[test, "sex"].map({"F": "M", "M": "F"})
    second = tiny.config(tiny.write(tmp_path, changed, "changed.csv"), tmp_path / "b", method={"name": method})
    before, after = fold_data(open_problem(first), 0), fold_data(open_problem(second), 0)
    assert before.design.to_json() == after.design.to_json()
    assert before.scaler.to_dict() == after.scaler.to_dict()
    tiny.fit(first)
    tiny.fit(second)
    weights = [(tmp_path / name / "fold-0" / "checkpoint.pt").read_bytes() for name in "ab"]
    histories = [(tmp_path / name / "fold-0" / "history.csv").read_text() for name in "ab"]
    said = [(tmp_path / name / "fold-0" / "predictions.csv").read_text() for name in "ab"]
    assert weights[0] == weights[1]
    assert histories[0] == histories[1]
    assert said[0] != said[1]  # the change did reach the test rows
    other = [(tmp_path / name / "fold-1" / "checkpoint.pt").read_bytes() for name in "ab"]
    assert other[0] != other[1]  # where they are training rows it matters


def test_labels_of_the_test_rows_are_not_in_their_metadata(tmp_path):
    data = fold_data(open_problem(tiny.config(tiny.write(tmp_path), tmp_path / "run")), 0)
    roles = [column.role for column in data.design.columns]
    keep = [index for index, role in enumerate(roles) if role == "keep"]
    assert data.test.metadata[:, keep].isnan().all()
    assert not data.train.metadata.isnan().any()
