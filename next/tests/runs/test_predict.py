"""`predict`: the numbers of the run on its own rows, and clear errors on others."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from deconfound.data import read_image, read_scan
from deconfound.errors import OptionError, StateError, TableError
from deconfound.runs import Run, predict
from tests.runs.cohort import make_cohort, make_config, train


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    return train(make_config(tmp_path_factory.mktemp("cohort"), method={"name": "pmdn"}))


def new_people(**columns: Any) -> pd.DataFrame:
    return make_cohort(6, seed=1).drop(columns="dx").assign(**columns)


def test_a_fold_gives_its_stored_predictions_and_the_default_the_mean_of_all(run):
    """Kills labels that are needed, rows in another order, and a mean of logits."""
    people = make_cohort().drop(columns="dx").sample(frac=1, random_state=0)
    by_fold = {name: predict(run, people, fold=name).set_index("id") for name in run.folds}
    for name, stored in run.predictions.groupby("fold"):
        again = by_fold[name].loc[stored["id"], "prob_AD"]
        np.testing.assert_allclose(again, stored["prob_AD"], rtol=0, atol=1e-5)
    together = predict(str(run.folder), people)
    assert together["id"].tolist() == people["pid"].tolist()
    mean = np.mean([one["prob_AD"] for one in by_fold.values()], axis=0)
    np.testing.assert_allclose(together["prob_AD"], mean, rtol=0, atol=1e-6)
    assert (together["predicted"] == np.where(together["prob_AD"] >= 0.5, "AD", "CN")).all()


def test_a_new_site_is_refused_or_counts_as_the_mean(run):
    people = new_people(site="D")
    with pytest.raises(TableError, match=r"'D'.*design\.unseen: mean"):
        predict(run, people)
    assert predict(run, people, unseen="mean")["prob_AD"].between(0, 1).all()


def test_columns_that_the_run_needs_are_named(run):
    with pytest.raises(
        TableError, match=r"(?s)no column 'age'\. Did you mean 'aeg'.* read these confounds"
    ) as caught:
        predict(run, new_people().rename(columns={"age": "aeg"}).drop(columns="site"))
    assert "no column 'site'" in str(caught.value)
    with pytest.raises(TableError, match="no column 'f2'"):
        predict(run, new_people().drop(columns="f2"))


def test_a_plain_network_needs_no_confounds(tmp_path):
    plain = train(make_config(tmp_path))
    assert len(predict(plain, new_people()[["f1", "f2", "f3"]])) == 6


def test_one_sample_is_wrapped_in_lists(run):
    sample = new_people().iloc[0].to_dict()
    with pytest.raises(TableError, match=r"column 'age' are of type float\. Pass a list"):
        predict(run, sample)
    assert len(predict(run, {name: [value] for name, value in sample.items()})) == 1


def test_an_absent_run_fold_or_source_is_an_error_with_the_way_out(run, tmp_path):
    with pytest.raises(OptionError, match="There is no run in"):
        predict(tmp_path, new_people())
    with pytest.raises(OptionError, match=r"no finished fold '7'\. There are '0'"):
        predict(run, new_people(), fold="7")
    with pytest.raises(OptionError, match="Leave source= out"):
        predict(run, new_people(), "folder")


def test_out_is_a_new_file_and_never_an_input_or_part_of_a_run(run, tmp_path):
    """Release 0.2 overwrote its own input."""
    table, out = tmp_path / "new.csv", tmp_path / "out.csv"
    new_people().to_csv(table, index=False)
    frame = predict(run, table, out=out)
    assert pd.read_csv(out)["prob_AD"].round(6).tolist() == frame["prob_AD"].round(6).tolist()
    (tmp_path / "link.csv").symlink_to(table)
    (tmp_path / "twin.csv").hardlink_to(table)
    before = table.read_bytes()
    for target, expected in [
        (table, "is an input"),
        (tmp_path / "link.csv", "is an input"),
        (tmp_path / "twin.csv", "is an input"),
        (run.folder / "folds" / "0" / "predictions.csv", "lies in the folder of a run"),
        (run.folder / "new.csv", "lies in the folder of a run"),
        (tmp_path / "people.xlsx", r"does not end with \.csv"),
    ]:
        with pytest.raises(OptionError, match=expected):
            predict(run, table, out=target, force=True)
    assert table.read_bytes() == before
    with pytest.raises(OptionError, match=r"exists.*force=True"):
        predict(run, table, out=out)
    assert len(predict(run, table, out=out, force=True)) == 6


def test_numbers_and_classes_have_columns_of_their_own(tmp_path):
    people = make_cohort()
    people["score"] = (people["f1"] * 3 + 50).round(3)
    people["stage"] = np.array(["early", "late", "none"])[np.arange(len(people)) % 3]
    keys = {"positive": None, "features": ["f2", "f3"]}
    numeric = train(make_config(tmp_path, people, data={**keys, "labels": "score"}))
    values = predict(numeric, people)
    assert list(values) == ["id", "score_score"]
    assert values["score_score"].between(20, 80).all()
    classes = train(
        make_config(tmp_path, people, data={**keys, "labels": "stage"}), f"run.folder={tmp_path}/c"
    )
    values = predict(classes, people)
    names = ["prob_early", "prob_late", "prob_none"]
    assert list(values) == ["id", *names, "predicted"]
    np.testing.assert_allclose(values[names].sum(axis=1), 1, atol=1e-6)
    assert ("prob_" + values["predicted"] == values[names].idxmax(axis=1)).all()


def test_an_estimator_runs_only_if_it_is_trusted(tmp_path):
    """A pickle of a stranger can do anything."""
    keys = {"name": "sklearn.ensemble:RandomForestClassifier", "options": {"n_estimators": 5}}
    config = make_config(tmp_path, network=keys)
    forest = train(config)
    with pytest.raises(OptionError, match="trust=True"):
        predict(forest, new_people())
    assert predict(forest, new_people(), trust=True)["prob_AD"].between(0, 1).all()


def write_image(path: Path, shape: tuple[int, ...], seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 255, shape, dtype=np.uint8)
    Image.fromarray(pixels).save(path.with_suffix(".png"))


def write_scan(path: Path, shape: tuple[int, ...], seed: int) -> None:
    nibabel = pytest.importorskip("nibabel")
    values = np.random.default_rng(seed).random(shape, dtype=np.float32)
    nibabel.Nifti1Image(values, np.eye(4)).to_filename(path.with_suffix(".nii"))


@pytest.mark.parametrize(
    ("write", "read", "shape", "other"),
    [
        (write_image, read_image, (8, 8, 3), (11, 9)),
        (write_scan, read_scan, (6, 6, 6), (8, 7, 8)),
    ],
)
def test_a_run_of_images_needs_images_and_brings_new_ones_to_its_size(
    tmp_path, monkeypatch, write, read, shape, other
):
    """New pictures are grey and of another size; each is read alone as the oracle."""
    monkeypatch.setenv("DECONFOUND_CACHE", str(tmp_path / "cache"))
    people = make_cohort(24).drop(columns=["f1", "f2", "f3"])
    (tmp_path / "train").mkdir()
    (tmp_path / "new").mkdir()
    for row, name in enumerate(people["pid"]):
        write(tmp_path / "train" / name, shape, row)
    for row, name in enumerate(["x1", "x2"]):
        write(tmp_path / "new" / name, other, row)
    config = make_config(tmp_path, people)
    config["data"] |= {"source": str(tmp_path / "train"), "table": str(tmp_path / "people.csv")}
    config["network"] = {"options": {"channels": [4], "hidden": 4, "groups": 2}}
    run = train(config, "training.epochs=1")
    table = pd.DataFrame({"pid": ["x2", "x1"], "age": [60.0, 70.0], "site": ["A", "B"]})
    with pytest.raises(OptionError, match=r"reads \w+.*add --images FOLDER \(source= in Python\)"):
        predict(run, table)
    frame = predict(run, table, tmp_path / "new", fold="0")
    assert frame["id"].tolist() == ["x2", "x1"]
    size = (3, 8, 8) if write is write_image else (1, *shape)
    x = np.stack([read(next((tmp_path / "new").glob(f"{name}.*")), size) for name in frame["id"]])
    expected = torch.from_numpy(run.model("0").outputs(x, table)).sigmoid()
    np.testing.assert_allclose(frame["prob_AD"], expected[:, 0], rtol=0, atol=1e-6)


def test_a_reader_runs_only_if_it_is_trusted(tmp_path, monkeypatch):
    """The config of a stranger's run may name any function of any module."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("DECONFOUND_CACHE", str(tmp_path / "cache"))
    code = "import numpy\ndef read(path):\n    return numpy.loadtxt(path, ndmin=1)\n"
    (tmp_path / "own_reader.py").write_text(code)
    people = make_cohort(24)
    (tmp_path / "files").mkdir()
    for name, values in people.set_index("pid")[["f1", "f2", "f3"]].iterrows():
        np.savetxt(tmp_path / "files" / f"{name}.txt", values)
    config = make_config(tmp_path, people)
    config["data"] |= {"source": str(tmp_path / "files"), "table": str(tmp_path / "people.csv")}
    own = train(config, "data.options.reader=own_reader:read", "training.epochs=1")
    monkeypatch.delitem(sys.modules, "own_reader")
    (tmp_path / "own_reader.py").write_text("open('exploded', 'w').close()\n" + code)
    with pytest.raises(
        OptionError, match=r"data\.options\.reader is 'own_reader:read'.*trust=True"
    ):
        predict(own, people, tmp_path / "files")
    assert not (tmp_path / "exploded").exists()
    assert len(predict(own, people, tmp_path / "files", trust=True)) == 24
    assert (tmp_path / "exploded").exists()


def test_a_run_without_a_finished_fold_says_so(tmp_path):
    config = make_config(tmp_path)
    with pytest.raises(StateError, match="All 2 folds failed"):
        train(config, "training.lr=1e18", "training.optimizer=sgd")
    with pytest.raises(StateError, match="No fold of the run"):
        predict(tmp_path / "run", Path(config["data"]["source"]))
