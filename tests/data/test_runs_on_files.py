"""Runs on a user's own files, from init to predict: a folder of images, and a table with text among its features."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from torch import nn

from deconfound.errors import DeconfoundWarning
from deconfound.training import predict
from deconfound.training.run_folder import signed
from deconfound.training.start import start_config
from tests.data.test_images import write_image
from tests.training import tiny

ONE_EPOCH = {"training": {"epochs": 1, "batch_size": 16, "accelerator": "cpu"}, "method": {"name": "none"}}


def small_cnn(outputs, shape):
    """The network of the user's own that the config names."""
    channels = shape[0]
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, outputs)
    )


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    frame = tiny.cohort(24)[["id", "dx", "age", "sex", "site"]]
    for name, number in zip(frame["id"], range(24), strict=True):
        write_image(tmp_path / "pictures" / f"{name}.jpg", number)
    tiny.write(tmp_path, frame)
    monkeypatch.setenv("DECONFOUND_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_a_folder_of_images_is_trained_on_and_predicted(pictures):
    path = pictures / "table.csv"
    start = start_config(path, ["dx"], ["age", "site"], source=pictures / "pictures")
    assert "24 rows, samples of shape (3, 224, 224)" in start.noticed
    source = {"source": str(pictures / "pictures"), "table": str(path), "options": {"size": 12, "channels": "grey"}}
    network = {"name": "tests.data.test_runs_on_files:small_cnn", "options": {}}
    config = tiny.config(path, pictures / "run", data=source, network=network, **ONE_EPOCH)
    assert tiny.fit(config)["folds"]
    (pictures / "pictures" / "0003.jpg").write_bytes(b"no picture")
    with pytest.warns(UserWarning, match="1 left out, 23 images remain"):
        found = predict(pictures / "run", path, pictures / "pictures", skip_bad=True, trust=True)
    assert len(found.scores) == 23


@pytest.fixture
def with_gap(pictures):
    """A table that names its pictures without endings and has no ids; its fourth picture is absent."""
    frame = pd.read_csv(pictures / "table.csv", dtype={"id": str}).rename(columns={"id": "image"})
    (pictures / "pictures" / "0003.jpg").unlink()
    path = tiny.write(pictures, frame, "named.csv")
    options = {"size": 12, "channels": "grey", "skip_bad": True}
    source = {"source": str(pictures / "pictures"), "table": str(path), "id": None, "options": options}
    network = {"name": "tests.data.test_runs_on_files:small_cnn", "options": {}}
    design = {"confounds": ["age"]}
    config = tiny.config(path, pictures / "run", data=source, design=design, network=network, **ONE_EPOCH)
    with pytest.warns(UserWarning, match="1 left out, 23 images remain"):
        tiny.fit(config)
    return pictures / "run", path, config


def fold_tables(run):
    return [pd.read_csv(path, dtype={"image": str}) for path in sorted(run.glob("fold-*/predictions.csv"))]


def test_scores_keep_the_rows_and_names_of_the_table_where_a_picture_is_left_out(with_gap):
    run, path, _ = with_gap
    frame = pd.read_csv(path, dtype={"image": str})
    said = pd.concat(fold_tables(run)).sort_values("row")
    assert said["row"].tolist() == [0, 1, 2, *range(4, 24)]
    assert said["image"].tolist() == frame["image"][said["row"]].tolist()
    assert np.allclose(said["age"], frame["age"][said["row"]])
    with pytest.warns(UserWarning, match="1 left out, 23 images remain"):
        found = predict(run, path, path.parent / "pictures", skip_bad=True, trust=True)
    assert (found.id_column, list(found.ids), found.seen) == ("image", said["image"].tolist(), 23)


def test_a_run_that_counted_the_rows_that_were_left_goes_on_to_do_so(with_gap):
    run, _, config = with_gap
    about = json.loads((run / "run.json").read_text())
    old = {key: value for key, value in about.items() if key not in ("row", "sha256")}
    (run / "run.json").write_text(json.dumps(signed(old)))
    for fold in run.glob("fold-*"):
        shutil.rmtree(fold)
    with pytest.warns(UserWarning, match="1 left out, 23 images remain"):
        tiny.fit(config)
    assert sorted(pd.concat(fold_tables(run))["row"]) == list(range(23))


def test_text_features_are_trained_on_and_a_new_table_is_coded_the_same(tmp_path):
    frame = tiny.cohort()
    frame["pain"] = np.where(frame["dx"] == "asd", "typical", "none")
    path = tiny.write(tmp_path, frame)
    config = tiny.config(path, tmp_path / "run", data={"exclude": ["f*", "person"]}, **ONE_EPOCH)
    tiny.fit(config)
    new = frame.drop(columns="dx").head(6)
    assert len(predict(tmp_path / "run", tiny.write(tmp_path, new, "new.csv")).scores) == 6
    new["pain"] = "crushing"
    empty = r"samples must be filled in every row; .* pain\[none\] \(6\), pain\[typical\] \(6\)"
    with pytest.warns(DeconfoundWarning, match="no features: crushing"), pytest.raises(ValueError, match=empty):
        predict(tmp_path / "run", tiny.write(tmp_path, new, "new.csv"))
