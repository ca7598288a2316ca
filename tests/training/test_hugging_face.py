"""Datasets of the real Hugging Face package straight into `fit`, `compare` and `predict`."""

import numpy as np
import pytest
import torch
from PIL import Image

import deconfound as dc
from deconfound.errors import OptionError
from tests.training import tiny
from tests.training.test_given_sources import FRAME, predictions, settings

datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
COLUMNS = FRAME[["id", "dx", "age", "site"]].to_dict("list")


@pytest.fixture(autouse=True)
def _quiet():
    datasets.disable_progress_bars()


def pictures():
    """Grey images whose brightness knows label and site."""
    cells = FRAME[["f0", "f2", "f4", "f5"]].to_numpy()
    return [Image.fromarray(np.kron(row.reshape(2, 2) * 40 + 128, np.ones((2, 2))).astype(np.uint8)) for row in cells]


@pytest.fixture
def people(tmp_path):
    def items():
        for place, image in enumerate(pictures()):
            yield {"image": image, **{name: cells[place] for name, cells in COLUMNS.items()}}

    return datasets.Dataset.from_generator(items, cache_dir=str(tmp_path / "cache"))


def test_images_of_a_dataset_run_as_the_same_samples_in_a_file_do(tmp_path, people):
    dc.fit(settings(tmp_path / "a"), source=people)
    np.save(tmp_path / "x.npy", np.stack([np.asarray(image, np.float32) for image in pictures()])[:, None] / 255)
    data = {"source": str(tmp_path / "x.npy"), "table": str(tiny.write(tmp_path, FRAME.drop(columns="person")))}
    dc.fit(settings(tmp_path / "b", data={**data, "label": "dx", "id": "id"}))
    assert predictions(tmp_path / "a") == predictions(tmp_path / "b") != []
    found = dc.predict(tmp_path / "a", people.remove_columns("dx"))
    assert torch.equal(found.scores, dc.predict(tmp_path / "b", tmp_path / "table.csv", tmp_path / "x.npy").scores)


def test_columns_of_numbers_in_any_format_are_the_same_run(tmp_path):
    pixels = [np.asarray(image, np.float32)[None].tolist() for image in pictures()]
    whole = datasets.Dataset.from_dict({"pixel_values": pixels, **COLUMNS})
    plain = dc.fit(settings(tmp_path / "lists"), source=whole)
    formatted = whole.with_format("torch", columns=["pixel_values"], output_all_columns=True)
    tensors = dc.fit(settings(tmp_path / "tensors"), source=formatted)
    assert predictions(tmp_path / "lists") == predictions(tmp_path / "tensors") != []
    assert plain.results["provenance"]["data"] == tensors.results["provenance"]["data"]


def test_a_dataset_is_compared_on_the_rows_that_were_selected(tmp_path, people):
    compared = {"compare": {"methods": ["none", "mdn"], "permutations": 19, "bootstraps": 40}}
    found = dc.compare(settings(tmp_path / "run", **compared), source=people.shuffle(seed=1).select(range(40)))
    assert [line["name"] for line in found.lines] == ["none", "mdn"]
    tables = [path.read_text() for path in (tmp_path / "run").rglob("fold-*/predictions.csv")]
    assert sum(text.count("\n") - 1 for text in tables) == 2 * 40


def test_splits_by_name_and_streams_are_refused_with_what_to_do(tmp_path, people):
    with pytest.raises(OptionError, match=r"must be one dataset; got a DatasetDict of 'train', 'test'\. Pass one of"):
        dc.fit(settings(tmp_path / "run"), source=datasets.DatasetDict(train=people, test=people))
    with pytest.raises(OptionError, match=r"a length and items by number; got IterableDataset\. Make a list of it"):
        dc.fit(settings(tmp_path / "run"), source=people.to_iterable_dataset())
