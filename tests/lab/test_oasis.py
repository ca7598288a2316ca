"""OASIS-1: who is in which part, what networks start from, and what scores are made of."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from deconfound.errors import RunError, TableError
from deconfound_lab.oasis import read_people, write_people
from deconfound_lab.oasis.augment import Augment
from deconfound_lab.oasis.measures import Line, difference, measure
from deconfound_lab.oasis.people import on_device
from deconfound_lab.oasis.plan import ARMS, FULL
from deconfound_lab.oasis.scores import PENALTIES, people_of, ridge_scores, score
from deconfound_lab.oasis.training import divide, member_data, train_member
from tests.data.scan_files import write_scan
from tests.lab.oasis_people import TINY, made_up

OASIS = Path(os.environ.get("DECONFOUND_DATA", Path(__file__).parents[3] / "shared" / "data")) / "oasis1"


@pytest.fixture
def bids(tmp_path):
    """Three people in a BIDS folder."""
    root = tmp_path / "bids"
    lines = ["participant_id\tage\tsex\tdiagnosis"]
    for number, diagnosis in enumerate(["control", "dementia", "control"]):
        lines.append(f"sub-{number}\t{60 + number}\t{'FMF'[number]}\t{diagnosis}")
        for session in (1, 2) if number == 0 else (1,):
            name = f"sub-{number}_ses-{session}_T1w.nii.gz"
            write_scan(root / f"sub-{number}" / f"ses-{session}" / "anat" / name, seed=10 * number + session)
    (root / "participants.tsv").write_text("\n".join(lines) + "\n")
    return root


def test_a_prepared_file_holds_what_the_folder_holds_and_no_identifier(bids, tmp_path, monkeypatch):
    monkeypatch.setenv("DECONFOUND_CACHE", str(tmp_path / "cache"))
    people = read_people(bids, progress=False)
    assert people.volumes.shape == (4, 64, 64, 64)
    assert people.table["dementia"].tolist() == [0, 0, 1, 0]
    assert people.table["person"].tolist() == [0, 0, 1, 2]
    write_people(people, tmp_path / "people.npz")
    monkeypatch.setattr("deconfound_lab.oasis.people.open_scans", lambda *_: pytest.fail("scans were read"))
    again = read_people(tmp_path / "people.npz")
    assert again.fingerprint == people.fingerprint
    assert np.array_equal(again.volumes, people.volumes)
    assert all(np.array_equal(again.table[name], column) for name, column in people.table.items())
    with np.load(tmp_path / "people.npz") as kept:
        assert not any("sub-" in str(kept[name]) for name in kept.files if name != "volumes")


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("diagnosis", "dx", "must have the columns age, sex and diagnosis; got none called diagnosis"),
        ("dementia", "mci", "diagnosis must be 'control' or 'dementia'; got 'mci'"),
    ],
)
def test_a_table_that_does_not_answer_the_question_is_refused(bids, tmp_path, monkeypatch, old, new, text):
    monkeypatch.setenv("DECONFOUND_CACHE", str(tmp_path / "cache"))
    file = bids / "participants.tsv"
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(TableError, match=text):
        read_people(bids, progress=False)


def test_broken_files_are_named(tmp_path):
    (tmp_path / "x.npz").write_bytes(b"broken")
    with pytest.raises(RunError, match=r"x\.npz must be a file of scans that write_people made; got"):
        read_people(tmp_path / "x.npz")


def test_the_margin_is_cut_off_and_the_volume_brought_to_size():
    people = made_up(6)
    volumes = on_device(people, 16, torch.device("cpu"), TINY.question)
    assert volumes.images.shape == (len(people), 1, 16, 16, 16)
    bright = people.volumes[:, 30, 30, 30] / 255
    assert volumes.images.flatten(1).numpy() == pytest.approx(np.tile(bright[:, None], (1, 4096)), abs=1e-6)
    assert volumes.controls.tolist() == (people.table["dementia"] == 0).tolist()


def test_every_person_is_tested_once_and_left_out_by_one_member_of_the_other_folds():
    people = made_up(90).table
    tested = []
    for fold in range(5):
        parts = [divide(FULL, people, fold, member) for member in range(FULL.members)]
        persons = {name: [set(people["person"][getattr(part, name)]) for part in parts] for name in ("train", "test")}
        held = [set(people["person"][part.validation]) for part in parts]
        assert all(test == persons["test"][0] for test in persons["test"])
        assert sum(map(len, held)) == len(set.union(*held)) == 90 - len(persons["test"][0])
        for mine, left_out in zip(persons["train"], held, strict=True):
            assert not mine & left_out
            assert not mine & persons["test"][0]
        tested += sorted(persons["test"][0])
    assert sorted(tested) == list(range(90))


def test_an_augmentation_of_nothing_is_the_image_or_its_mirror_image():
    torch.manual_seed(0)
    images = torch.rand(16, 1, 5, 6, 7)
    same = Augment(shift=0, turn=0, contrast=0)(images)
    either = [(same - each).abs().amax((1, 2, 3, 4)) for each in (images, images.flip(2))]
    assert torch.minimum(*either).max() < 1e-5
    assert Augment()(images.half()).dtype == torch.float32
    assert (either[0] < 1e-5).any()
    assert (either[1] < 1e-5).any()


def test_an_augmentation_moves_turns_and_scales_within_its_bounds():
    torch.manual_seed(0)
    images = torch.zeros(64, 1, 17, 17, 17)
    images[:, :, 8, 8, 8] = 1
    moved = Augment(mirror=False, shift=2 / 17, turn=0, contrast=0)(images)
    grid = torch.stack(torch.meshgrid(*[torch.arange(17.0)] * 3, indexing="ij"))
    centre = (moved * grid).sum((2, 3, 4)) / moved.sum((2, 3, 4))
    away = (centre - 8).abs()
    assert 1.5 < away.max() <= 2 + 1e-4
    bright = Augment(mirror=False, shift=0, turn=0, contrast=0.1)(images).amax((1, 2, 3, 4))
    assert 0.9 <= bright.min() < 0.95 < 1.05 < bright.max() <= 1.1
    rotations = Augment(turn=10)._turned(2 * torch.rand(8, 3) - 1)
    assert torch.allclose(rotations @ rotations.mT, torch.eye(3).expand(8, 3, 3), atol=1e-5)


def test_ridge_scores_are_those_of_the_penalty_with_the_least_leave_one_out_error():
    from sklearn.linear_model import Ridge, RidgeCV

    random = np.random.default_rng(0)
    x = random.normal(size=(40, 60)) + 3
    y = x[:, 0] + random.normal(size=40)
    train = np.arange(30)
    centred = x[train] - x[train].mean(0)
    alphas = PENALTIES * np.linalg.eigvalsh(centred @ centred.T)[-1]
    alpha = RidgeCV(alphas=alphas).fit(x[train], y[train]).alpha_
    expected = Ridge(alpha=alpha).fit(x[train], y[train]).predict(x) - y[train].mean()
    assert ridge_scores(x @ x.T, y, train) == pytest.approx(expected, abs=1e-6)


def member_of(part, table, shift=0.0):
    """What a member says: a score that goes with age; refitted, it is shifted, and less."""
    noise = np.random.default_rng(0).normal(size=len(table["age"]))
    values = 0.1 * table["age"] + 2 * table["dementia"] + noise
    held, test = part.validation, part.test
    return {
        "held_out_rows": held, "held_out": values[held], "test_rows": test, "test": values[test] / 2 + shift,
        "unrefitted": values[test], "features": np.zeros((len(test), 2)), "seconds": 1.0,
    }  # fmt: skip


def test_scores_are_averaged_over_members_and_scans_and_w_scores_are_free_of_age():
    table = made_up(300).table
    members = {
        (member, "pmdn", fold): member_of(divide(TINY, table, fold, member), table)
        for member in range(2)
        for fold in range(2)
    }
    persons = people_of(table, np.zeros(len(table["age"]), dtype=int))
    found = score(members, TINY, "pmdn", table, persons)
    controls = persons.table["dementia"] == 0
    age = persons.table["age"][controls]
    trained, w_score = found.judged["as trained"].mean(0), found.judged["W-score"].mean(0)
    assert found.judged["refitted"].shape == (2, 300)
    assert found.features.shape == (300, 4)
    assert np.corrcoef(trained[controls], age)[0, 1] > 0.8
    assert abs(np.corrcoef(w_score[controls], age)[0, 1]) < 0.15
    assert w_score[controls].mean() == pytest.approx(0, abs=0.2)
    assert w_score[controls].std() == pytest.approx(1, abs=0.2)
    assert w_score[~controls].mean() == pytest.approx(2, abs=0.5)


def test_w_scores_are_fitted_to_held_out_controls_alone():
    """Other scores of the held-out cases change nothing, other scores of the controls do."""
    table = made_up(120).table
    persons = people_of(table, np.zeros(len(table["age"]), dtype=int))

    def scored(label):
        members = {}
        for member in range(2):
            for fold in range(2):
                part = divide(TINY, table, fold, member)
                made = member_of(part, table)
                rows = table["dementia"][part.validation] == label
                # Exchanged among themselves, so that the scale of the member stays.
                made["held_out"][rows] = np.sort(made["held_out"][rows])
                members[member, "pmdn", fold] = made
        return score(members, TINY, "pmdn", table, persons).judged["W-score"]

    plain = scored(2)
    np.testing.assert_allclose(scored(1), plain, atol=1e-9)
    assert np.abs(scored(0) - plain).max() > 0.01


def test_refitted_is_after_the_refit_and_the_others_before_it():
    table = made_up(60).table
    plain, shifted = (
        {(m, "pmdn", f): member_of(divide(TINY, table, f, m), table, shift) for m in range(2) for f in range(2)}
        for shift in (0.0, 5.0)
    )
    persons = people_of(table, np.zeros(len(table["age"]), dtype=int))
    before, after = (score(members, TINY, "pmdn", table, persons) for members in (plain, shifted))
    assert (after.judged["refitted"] - before.judged["refitted"] > 0.5).all()
    for kind in ("as trained", "W-score"):
        np.testing.assert_array_equal(after.judged[kind], before.judged[kind])


def test_measures_are_those_of_sklearn_and_numpy_and_lie_in_their_intervals():
    from sklearn.metrics import roc_auc_score

    table = made_up(200).table
    random = np.random.default_rng(1)
    scores = random.normal(size=len(table["age"])) + table["dementia"] + 0.02 * table["age"]
    line = measure("baseline", "as trained", scores[None], table, 200)
    old, control = table["age"] >= 60, table["dementia"] == 0
    assert line.auc.mean == pytest.approx(roc_auc_score(table["dementia"], scores))
    assert line.auc_old.mean == pytest.approx(roc_auc_score(table["dementia"][old], scores[old]))
    assert line.r_age.mean == pytest.approx(np.corrcoef(scores[control], table["age"][control])[0, 1])
    for value in (line.auc, line.auc_old, line.r_age, line.r_age_old, line.r_sex):
        assert value.low < value.mean < value.high
    assert line.curve[0]["mean"] < line.curve[-1]["mean"]
    assert Line.from_dict(json.loads(json.dumps(line.to_dict()))) == line
    assert measure("baseline", "as trained", np.zeros((1, len(scores))), table, 5).r_age.mean == 0


def test_intervals_hold_the_trainings_and_differences_are_paired():
    """Members that disagree widen an interval; a score against itself differs by nothing at all."""
    table = made_up(200).table
    random = np.random.default_rng(1)
    common = random.normal(size=len(table["age"])) + table["dementia"]
    noise = random.normal(size=(4, len(common)))
    agreeing, apart = common + 0 * noise, common + 2 * (noise - noise.mean(0))
    widths = [(v := measure("pmdn", "refitted", each, table, 300).auc).high - v.low for each in (agreeing, apart)]
    assert measure("pmdn", "refitted", apart, table, 5).auc.mean == pytest.approx(
        measure("pmdn", "refitted", agreeing, table, 5).auc.mean
    )
    assert widths[1] > 1.3 * widths[0]
    none = difference(apart, apart, table, 50)["auc"]
    assert (none.mean, none.low, none.high) == (0, 0, 0)
    better = difference(agreeing + table["dementia"], agreeing, table, 300)
    assert better["auc"].low > 0
    older = difference(agreeing + 0.1 * table["age"], agreeing, table, 300)["r_age"]
    assert older.low > 0


def test_a_training_is_the_same_each_time_and_refits_only_where_the_method_does():
    data = member_data(TINY, on_device(made_up(), 16, torch.device("cpu"), TINY.question), fold=0, member=0)
    first, second = (train_member(TINY, data, "pmdn") for _ in range(2))
    assert np.array_equal(first["test"], second["test"])
    assert not np.array_equal(first["test"], first["unrefitted"])
    assert np.array_equal(first["test_rows"], data.fold.test)
    assert np.array_equal(first["held_out_rows"], data.fold.validation)
    plain = train_member(TINY, data, "baseline")
    assert np.array_equal(plain["test"], plain["unrefitted"])


def test_neither_test_nor_held_out_scans_reach_the_training_and_the_last_epoch_is_taken():
    """Other test scans, or other labels of the held-out ones, leave the scores of the others as they are."""
    people = made_up()
    plan = replace(TINY, epochs=2)
    volumes = on_device(people, 16, torch.device("cpu"), plan.question)
    rows = divide(plan, people.table, 0, 0)
    images, dementia = volumes.images.clone(), people.table["dementia"].copy()
    images[rows.test] = images[rows.test].flip(0)
    dementia[rows.validation] = 1 - dementia[rows.validation]
    first = train_member(plan, member_data(plan, volumes, 0, 0), "pmdn")
    # The folds themselves are dealt by diagnosis: the data of the same rows with other labels are put together here.
    data = member_data(plan, volumes, 0, 0)
    other = replace(volumes, images=images, table={**volumes.table, "dementia": dementia})
    changed = type(data)(plan.network, other, rows, data.seed, plan.gamma)
    second = train_member(plan, changed, "pmdn")
    np.testing.assert_array_equal(first["held_out"], second["held_out"])
    assert first["losses"] == second["losses"]
    assert len(first["losses"]) == 2


@pytest.mark.skipif(not OASIS.exists(), reason="oasis1 is not there; set DECONFOUND_DATA to the folder that holds it")
def test_real_people_are_read_with_their_diagnosis(tmp_path, monkeypatch):
    monkeypatch.setenv("DECONFOUND_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "oasis"
    root.mkdir()
    lines = (OASIS / "participants.tsv").read_text().splitlines()
    chosen = [line for line in lines[1:] if line.split("\t")[3] == "dementia"][:2] + lines[1:3]
    (root / "participants.tsv").write_text("\n".join([lines[0], *dict.fromkeys(chosen)]) + "\n")
    for line in chosen:
        link = root / line.split("\t")[0]
        link.exists() or link.symlink_to(OASIS / link.name)
    people = read_people(root, progress=False)
    assert people.table["dementia"].sum() == 2
    assert (people.table["age"][people.table["dementia"] == 1] >= 60).all()
    images = on_device(people, 48, torch.device("cpu"), FULL.question).images
    assert 0.2 < float((images > 0.02).float().mean()) < 0.6


def test_every_arm_has_learned_its_task_before_a_full_training_ends():
    scans = 436
    steps = FULL.epochs * (int(scans * 4 / 5 * 3 / 4) // FULL.batch_size)
    volumes = on_device(made_up(), 16, torch.device("cpu"), FULL.question)
    data = member_data(replace(TINY, filters=FULL.filters), volumes, fold=0, member=0)
    for name, arm in ARMS.items():
        assert data.prepare(arm, FULL.lr).batches_to_warm_up < steps, name
