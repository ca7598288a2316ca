"""Arrays, their files, and datasets: equal samples from each of them, and nothing executed."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset

from deconfound.data import open_samples, read_arrays
from deconfound.errors import DeconfoundError, OptionError, ShapeError, TableError

X = np.random.default_rng(0).normal(size=(5, 3, 2)).astype(np.float32)
AGE = np.array([61.0, 70.0, 55.0, 66.0, 71.0])
IDS = ["007", "008", "009", "010", "011"]
TABLE = pd.DataFrame({"id": IDS, "age": AGE})


class Items(Dataset):
    """A dataset of any items."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> Any:
        return self.items[row]


def write(folder: Path, form: str) -> Path:
    path = folder / f"x.{form}"
    tensors = {"x": torch.from_numpy(X), "age": torch.from_numpy(AGE)}
    if form == "npy":
        np.save(path, X)
    elif form == "npz":
        np.savez_compressed(path, x=X, age=AGE)
    elif form == "pt":
        torch.save(tensors, path)
    elif form == "pth":
        torch.save(tensors["x"], path)
    else:
        safetensors.torch.save_file(tensors, path)
    return path


@pytest.mark.parametrize("form", ["npy", "npz", "pt", "pth", "safetensors"])
def test_files_of_arrays(tmp_path: Path, form: str) -> None:
    """Arrays of shape (n,) are columns, unless the table has them."""
    path = write(tmp_path, form)
    samples = open_samples(path)
    np.testing.assert_array_equal(samples.x, X)
    assert (samples.kind, samples.shape, samples.features) == ("array", (3, 2), None)
    assert list(samples.table) == (["age"] if form in ("npz", "pt", "safetensors") else [])
    assert samples.ids.tolist() == ["0", "1", "2", "3", "4"]
    beside = open_samples(path, TABLE[["id"]], id="id")
    assert beside.ids.tolist() == IDS
    if form in ("npz", "pt", "safetensors"):
        assert beside.table["age"].tolist() == AGE.tolist()
        with pytest.raises(TableError, match="both have the columns 'age'"):
            open_samples(path, TABLE, id="id")


SOURCES: dict[str, Callable[[], Any]] = {
    "float64": lambda: X.astype(np.float64),
    "tensor": lambda: torch.from_numpy(X).requires_grad_(),
    "tensors and labels": lambda: TensorDataset(torch.from_numpy(X), torch.zeros(5)),
    "items": lambda: Items(list(X)),
    "dicts": lambda: Items([{"x": x, "age": age} for x, age in zip(X, AGE, strict=True)]),
    "list": lambda: list(torch.from_numpy(X)),
}


@pytest.mark.parametrize("name", SOURCES)
def test_sources_in_python(name: str) -> None:
    table = TABLE.drop(columns="age") if name == "dicts" else TABLE
    samples = open_samples(SOURCES[name](), table, id="id", roles=["age"])
    np.testing.assert_array_equal(samples.x, X)
    assert samples.x.dtype == np.float32
    assert samples.table["age"].tolist() == AGE.tolist()
    assert samples.ids.tolist() == IDS
    assert samples.fingerprint == open_samples(X, TABLE, id="id", roles=["age"]).fingerprint


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.uint8])
def test_types_of_tensors(dtype: torch.dtype) -> None:
    values = torch.arange(12).reshape(4, 3).to(dtype)
    samples = open_samples(values)
    assert samples.x.tolist() == values.tolist()
    assert samples.x.dtype == (np.uint8 if dtype == torch.uint8 else np.float32)


def test_arrays_are_joined_by_an_id_that_both_have(tmp_path: Path) -> None:
    order = [3, 1, 4, 0, 2]
    np.savez(tmp_path / "x.npz", x=X[order], id=np.array(IDS)[order])
    samples = open_samples(tmp_path / "x.npz", TABLE[1:], id="id")
    np.testing.assert_array_equal(samples.x, X[1:])
    assert samples.ids.tolist() == IDS[1:]
    assert "1 samples have no row: '007'" in samples.notes[0]


def test_the_input_of_several_arrays_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", image=X, mask=X > 0)
    with pytest.raises(OptionError, match=r"'image', 'mask'.*features=\['image'\]"):
        open_samples(tmp_path / "x.npz")
    assert open_samples(tmp_path / "x.npz", features="mask").x.tolist() == (X > 0).tolist()
    with pytest.raises(OptionError, match=r"no array 'masc'\. Did you mean 'mask'"):
        open_samples(tmp_path / "x.npz", features=["masc"])
    np.savez(tmp_path / "y.npz", x=X, age=AGE[:3])
    with pytest.raises(TableError, match="'age' has 3, 'x' has 5"):
        open_samples(tmp_path / "y.npz")


BAD_ARRAYS = {
    "one axis": X[:, 0, 0],
    "no rows": X[:0],
    "texts": np.array([["a"]]),
    "complex": X * 1j,
    "objects": X.astype(object),
    "nan": np.where(X[2, 1, 0] == X, np.nan, X),
    "too large": np.float64(X) * 1e40,
    "masked": np.ma.masked_array(X, X > 1),
}


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_arrays_that_are_no_samples(name: str) -> None:
    with pytest.raises(ShapeError) as caught:
        open_samples(BAD_ARRAYS[name])
    if name == "nan":
        assert "[2, 1, 0]" in str(caught.value)


def test_rows_are_not_guessed() -> None:
    with pytest.raises(ShapeError, match=r"5 samples and 4 rows.*id='…'"):
        open_samples(X, TABLE[1:])
    with pytest.raises(TableError, match="no column 'id'"):
        open_samples(X, TABLE[["age"]], id="id")


def header_of(shape: tuple[int, ...], descr: str = "<f8") -> bytes:
    """Return the start of an .npy file that claims any shape."""
    buffer = io.BytesIO()
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue()


@pytest.mark.parametrize("ending", ["npy", "npz"])
@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04", b"no array", header_of((10**13,)), header_of((2, 2)) + bytes(8)],
)
def test_damaged_arrays_are_refused(tmp_path: Path, ending: str, content: bytes) -> None:
    path = tmp_path / f"x.{ending}"
    if ending == "npz" and content[:2] != b"PK":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", content)
    else:
        path.write_bytes(content)
    with pytest.raises(TableError, match=f"x.{ending}") as caught:
        open_samples(path)
    # A claim is compared with the size of the file, and not tried out.
    assert ("declares" in str(caught.value)) == (b"10000000000000" in content)


def test_an_archive_that_unpacks_to_far_more_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, x=X)
    content = path.read_bytes()
    # The size that the directory at the end of the archive states.
    start = content.index(b"PK\x01\x02") + 24
    path.write_bytes(content[:start] + struct.pack("<I", 2 * 10**9) + content[start + 4 :])
    with pytest.raises(TableError, match="unpacks to more than 1 GB"):
        open_samples(path)


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("executed"),)


def test_nothing_in_a_file_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", np.array([Harmful()]), allow_pickle=True)
    np.savez("b.npz", x=np.array([Harmful()], dtype=object))
    torch.save({"x": Harmful()}, "c.pt")
    Path("d.pt").write_bytes(pickle.dumps(Harmful()))
    torch.save({"x": [1, 2]}, "e.pt")
    for name in ("a.npy", "b.npz", "c.pt", "d.pt", "e.pt", "absent.npy"):
        with pytest.raises(TableError, match=name):
            open_samples(name)
        with pytest.raises(TableError, match=name):
            read_arrays(Path(name))
    assert not Path("executed").exists()


def pictures(modes: str = "RGB") -> list[dict[str, Any]]:
    sizes = [(8, 6)] * 3
    return [
        {"image": Image.new(modes, size, number), "label": "cat", "age": torch.tensor(60 + number)}
        for number, size in enumerate(sizes)
    ]


def test_pictures_in_dicts() -> None:
    samples = open_samples(Items(pictures()), roles=["label", "age"])
    assert samples.x.shape == (3, 3, 6, 8)
    assert samples.x.dtype == np.uint8
    assert samples.x[:, 0, 0, 0].tolist() == [0, 1, 2]
    assert samples.table.to_dict("list") == {"label": ["cat"] * 3, "age": [60, 61, 62]}
    assert open_samples(Items(pictures()), size=4).shape == (3, 4, 4)
    calls: list[tuple[int, int, str]] = []
    open_samples(Items(pictures("L")), on_progress=lambda *call: calls.append(call))
    assert [call[:2] for call in calls] == [(1, 3), (2, 3), (3, 3)]


def test_a_dataset_of_hugging_face() -> None:
    datasets = pytest.importorskip("datasets", reason="Hugging Face datasets is not installed")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    )
    content = {"image": [item["image"] for item in pictures()], "label": [0, 1, 0]}
    dataset = datasets.Dataset.from_dict(content, features=features)
    samples = open_samples(dataset, TABLE[["id"]][:3], id="id", roles=["label"])
    assert samples.x[:, 0, 0, 0].tolist() == [0, 1, 2]
    assert samples.table["label"].tolist() == [0, 1, 0]
    with pytest.raises(OptionError, match=r"'train'.*source\['train'\]"):
        open_samples(datasets.DatasetDict(train=dataset))
    with pytest.raises(OptionError, match="by number"):
        open_samples(dataset.to_iterable_dataset())


class Shaken(Items):
    def __getitem__(self, row: int) -> Any:
        return self.items[row] + np.random.default_rng().normal()


DATASETS: dict[str, tuple[Callable[[], Any], type[DeconfoundError], str]] = {
    "random": (lambda: Shaken(list(X)), ShapeError, "random transforms"),
    "unequal": (lambda: Items([X[0], X[1][:2]]), ShapeError, "Sample 1 has shape"),
    "types": (lambda: Items([X[0], X[0].astype(np.uint8)]), ShapeError, "type uint8"),
    "loader": (lambda: DataLoader(Items(list(X))), OptionError, "not a loader"),
    "stream": (lambda: iter(X), OptionError, "by number"),
    "empty": (lambda: Items([]), OptionError, "by number"),
    "two inputs": (lambda: Items([{"a": X[0], "b": X[1]}]), OptionError, "'a', 'b'"),
    "no input": (lambda: Items([{"a": 1.0, "b": "x"}]), OptionError, "there are none"),
    "numbers": (lambda: [1.0, 2.0], ShapeError, "single numbers"),
    "number": (lambda: 5, OptionError, "by number"),
}


@pytest.mark.parametrize("name", DATASETS)
def test_datasets_that_cannot_be_read(name: str) -> None:
    make, error, text = DATASETS[name]
    with pytest.raises(error, match=text):
        open_samples(make())


def test_sizes_of_items() -> None:
    items = pictures()
    items[1]["image"] = Image.new("L", (4, 4))
    with pytest.raises(ShapeError, match=r"size=\(3, 64, 64\)"):
        open_samples(Items(items))
    assert open_samples(Items(items), size=(3, 6, 6)).shape == (3, 6, 6)
    with pytest.raises(OptionError, match="size= is for pictures"):
        open_samples(Items(list(X)), size=4)
