"""Datasets straight into `fit`, `compare` and `predict`: the same runs, resumed and checked as runs on files are."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import Dataset

import deconfound as dc
from deconfound.data import open_array, open_dataset, open_images, open_scans, open_table
from deconfound.errors import OptionError, RunError
from deconfound.training.fitting import chosen_config
from deconfound.training.jobs import open_runs, plan
from deconfound.training.sources import with_categories
from deconfound.training.tasks import read_task
from deconfound.training.workers import keep_open, run_job
from tests.data.scan_files import write_bids
from tests.data.test_images import write_image
from tests.training import tiny

FRAME = tiny.cohort(48)
NETWORK = {"name": "cnn2d", "options": {"filters": [4], "hidden": 4}}


class People(Dataset):
    """Small images with the columns of the cohort, as torch and Hugging Face datasets give them."""

    def __init__(self, brighter=0.0):
        rows = FRAME[[f"f{k}" for k in range(6)]].to_numpy(np.float32) + brighter
        self.images = torch.from_numpy(rows).reshape(-1, 1, 2, 3).repeat_interleave(2, 2)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, row):
        columns = FRAME.iloc[row]
        return {"image": self.images[row], **{name: columns[name] for name in ("id", "dx", "age", "site")}}


def settings(folder, **sections):
    given = {"design": {"confounds": ["age", "site"]}, "network": NETWORK, "training": {"epochs": 2}}
    content = tiny.settings("", folder, **{**given, **sections})
    if not content["data"]["source"]:
        del content["data"]["source"]
    return content


def predictions(folder):
    return [path.read_text() for path in sorted(folder.glob("fold-*/predictions.csv"))]


def test_a_dataset_runs_as_the_same_samples_in_a_file_do(tmp_path):
    dc.fit(settings(tmp_path / "a"), source=People())
    np.save(tmp_path / "x.npy", People().images.numpy())
    data = {"source": str(tmp_path / "x.npy"), "table": str(tiny.write(tmp_path, FRAME.drop(columns="person")))}
    dc.fit(settings(tmp_path / "b", data={**data, "label": "dx", "id": "id"}))
    assert predictions(tmp_path / "a") == predictions(tmp_path / "b")
    found = dc.predict(tmp_path / "a", People())
    assert found.seen == 48
    from_file = dc.predict(tmp_path / "b", tmp_path / "table.csv", tmp_path / "x.npy")
    assert torch.equal(found.scores, from_file.scores)


def test_a_run_on_a_dataset_is_resumed_by_its_content_and_refuses_another(tmp_path):
    first = dc.fit(settings(tmp_path / "run"), source=People())
    (tmp_path / "run" / "fold-1" / "result.json").unlink()
    again = dc.fit(settings(tmp_path / "run"), source=open_dataset(People(), columns=["id", "dx", "age", "site"]))
    assert again.metrics == first.metrics
    with pytest.raises(RunError, match="must be those it was started with"):
        dc.fit(settings(tmp_path / "run"), source=People(brighter=1.0))
    with pytest.raises(OptionError, match="were given in Python; got none here"):
        dc.fit(tmp_path / "run" / "config.yaml")


def test_a_version_stands_for_the_content_and_is_told(tmp_path):
    def opened(version, **changes):
        return open_dataset(People(**changes), columns=["id", "dx", "age", "site"], version=version)

    found = dc.fit(settings(tmp_path / "run"), source=opened("2024-03"))
    assert found.results["provenance"]["data"].startswith("version 2024-03, table ")
    assert opened("2024-03", brighter=1.0).fingerprint == found.results["provenance"]["data"]
    with pytest.raises(RunError, match="must be those it was started with"):
        dc.fit(settings(tmp_path / "run"), source=opened("2024-04"))


def test_a_dataset_is_compared(tmp_path):
    compared = {"compare": {"methods": ["none", "mdn"], "permutations": 19, "bootstraps": 40}}
    found = dc.compare(settings(tmp_path / "run", **compared), source=People())
    assert [line["name"] for line in found.lines] == ["none", "mdn"]


def test_a_dataset_travels_with_a_fold_to_another_process(tmp_path):
    config = chosen_config(settings(tmp_path / "run"), [], People(), False)
    jobs, _ = plan(open_runs([config], given=People()))
    keep_open([])  # a new process has nothing open
    result = run_job(pickle.loads(pickle.dumps(jobs[1])))
    assert result.error is None
    assert (tmp_path / "run" / "fold-1" / "result.json").exists()


def test_random_samples_and_datasets_without_columns_are_refused(tmp_path):
    class Noisy(People):
        def __getitem__(self, row):
            return {**super().__getitem__(row), "image": torch.randn(1, 4, 3)}

    with pytest.raises(OptionError, match="must be the same at each reading; got two that differ in row 0"):
        dc.fit(settings(tmp_path / "run"), source=Noisy())
    with pytest.raises(OptionError, match=r"dicts, or opened by .*; got list with items of type tuple"):
        dc.fit(settings(tmp_path / "run"), source=[(torch.zeros(1, 4, 3), 1)])
    with pytest.raises(OptionError, match=r"design\.confounds must be columns of the table; got 'weight'"):
        dc.fit(settings(tmp_path / "run", design={"confounds": ["weight"]}), source=People())
    with pytest.raises(OptionError, match="which entry of a sample is its input; got none for left, right"):
        open_dataset([{"left": [1.0], "right": [2.0], "age": 3}], columns=["age"])


def sources(folder):
    """One source of each kind with the files that it depends on."""
    np.save(folder / "x.npy", np.zeros((48, 2)))
    table = tiny.write(folder, FRAME)
    write_image(folder / "pictures" / "p.png")
    (folder / "names.csv").write_text("file,age\np.png,60\n")
    study = write_bids(folder / "study", people=2)
    options = {"cache": folder / "cache", "progress": False}
    return {
        "array": (open_array(folder / "x.npy", table=table), [folder / "x.npy", table]),
        "table": (open_table(table, roles=["dx"]), [table]),
        "images": (
            open_images(folder / "pictures", table=folder / "names.csv", size=4, **options),
            [folder / "pictures" / "p.png", folder / "names.csv"],
        ),
        "scans": (
            open_scans(study, shape=(4, 4, 4), **options),
            [next(study.rglob("*_T1w.nii*")), study / "participants.tsv"],
        ),
    }


@pytest.mark.parametrize("kind", ["array", "table", "images", "scans"])
def test_every_source_tells_when_one_of_its_files_has_changed(tmp_path, kind):
    source, files = sources(tmp_path)[kind]
    assert source.current_fingerprint() == source.fingerprint
    for path in files:
        content = path.read_bytes()
        path.write_bytes(content + b" ")
        assert source.current_fingerprint() != source.fingerprint
        path.unlink()
        assert source.current_fingerprint() != source.fingerprint
        path.write_bytes(content)
        assert source.current_fingerprint() == source.fingerprint


def test_a_data_frame_is_trained_and_predicted_as_its_file_is(tmp_path):
    path = tiny.write(tmp_path, FRAME)
    asked = tiny.settings(path, tmp_path / "file", training={"epochs": 1}, data={"exclude": ["f5"]})
    of_file = dc.fit(asked)
    beside = {**asked, "run": {**asked["run"], "folder": str(tmp_path / "frame")}}
    of_frame = dc.fit(beside, source=FRAME)
    assert of_frame.metrics == of_file.metrics
    new = FRAME.drop(columns="dx").iloc[:, ::-1]  # any order of columns
    expected = dc.predict(of_file.folder, path)
    for folder in (of_file.folder, of_frame.folder):
        found = dc.predict(folder, new)
        assert torch.equal(found.scores, expected.scores)
        assert found.seen == len(FRAME)
    with pytest.raises(RunError, match="data"):
        dc.fit(beside, source=FRAME[::-1])


def test_categories_of_numbers_in_a_data_frame_are_names_and_change_no_label_of_two_classes(tmp_path):
    codes = {"dx": FRAME["dx"].eq("asd").astype(int), "site": FRAME["site"].map({"A": 1, "B": 2, "C": 3})}
    numbers = FRAME.assign(**codes)
    named = numbers.astype({"dx": "category", "site": "category"})
    runs = {
        name: dc.fit(
            tiny.settings("", tmp_path / name, training={"epochs": 1}, data={"types": types}, run={"audit": True}),
            "compare.permutations=39",
            "compare.bootstraps=40",
            source=frame,
        )
        for name, frame, types in (("named", named, {}), ("forced", numbers, {"site": "categorical"}))
    }
    assert predictions(tmp_path / "named") == predictions(tmp_path / "forced")
    assert runs["named"].audit.to_dict()["about"]["confounds"][2]["levels"] == ["1", "2", "3"]
    assert torch.equal(dc.predict(tmp_path / "named", numbers).scores, dc.predict(tmp_path / "named", named).scores)
    many = named.assign(dx=pd.Categorical(np.arange(len(named)) % 12))  # as numbers they would be amounts
    config = with_categories(chosen_config(tiny.settings("", tmp_path / "many"), [], many, False), many)
    task, _ = read_task(many, ["dx"], "auto", config.data.audit_types, None)
    assert (task.kind, config.data.types) == ("multiclass", {"dx": "categorical", "site": "categorical"})


def test_a_data_frame_does_not_stand_for_samples_that_are_none_of_its_columns(tmp_path):
    run = dc.fit(settings(tmp_path / "run"), source=People())
    for images in (None, tmp_path):
        with pytest.raises(OptionError, match="where these are no columns of it; got DataFrame"):
            dc.predict(run.folder, FRAME, images)
