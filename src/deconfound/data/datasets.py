"""A torch Dataset or a Hugging Face dataset as a source of samples."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.data.tables import read_table
from deconfound.design.table import Table
from deconfound.errors import OptionError, ShapeError

# What the input is usually called in a dict, and what stands for an item that is the input itself.
INPUTS = ("image", "pixel_values", "x", "input", "inputs")
WHOLE = ...


class DatasetSource:
    """Samples of a dataset and their table; see `deconfound.data.Source`. Made by `open_dataset`."""

    def __init__(self, dataset: Any, inputs: Any, table: Mapping[str, Any], version: str | None = None) -> None:
        self.dataset, self.inputs, self.version = dataset, inputs, version
        self.table: Mapping[str, Any] = table
        first = self._sample(0)
        self.shape: tuple[int, ...] = first.shape
        if version is None and not np.array_equal(first, self._sample(0), equal_nan=True):
            raise OptionError(
                "samples must be the same at each reading; got two that differ in row 0. Leave random transforms out "
                "of the dataset (training.augment has the usual ones), or pass version=… and answer for the content."
            )

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """The samples of these rows, `(n, *shape)`."""
        samples = [self._sample(int(row)) for row in rows]
        for row, sample in zip(rows, samples, strict=True):
            if sample.shape != self.shape:
                raise ShapeError(
                    f"samples must have one shape, {self.shape}; got {sample.shape} in row {int(row)}. Resize them in "
                    "the dataset's own transform."
                )
        return np.stack(samples) if samples else np.zeros((0, *self.shape), np.float32)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the table and of all samples, or of the table beside the version that the user gave."""
        return self.current_fingerprint()

    def current_fingerprint(self) -> str:
        """The same of the content as it is now; without a version every sample is read."""
        whole = hashlib.sha256()
        for row in range(len(self)) if self.version is None else ():
            whole.update(np.ascontiguousarray(self._sample(row)).tobytes())
        for name, column in sorted(self.table.items()):
            whole.update(repr((name, np.asarray(column).tolist())).encode())
        return whole.hexdigest() if self.version is None else f"version {self.version}, table {whole.hexdigest()}"

    def _sample(self, row: int) -> NDArray[np.float32]:
        item = self.dataset[row]
        try:
            value = item if self.inputs is WHOLE else item[self.inputs]
        except (KeyError, IndexError, TypeError) as error:
            raise OptionError(
                f"inputs must be a key or a place of a sample; got {self.inputs!r} for a {type(item).__name__}."
            ) from error
        if hasattr(value, "detach"):
            value = value.detach().cpu().float()
        picture = hasattr(value, "convert") and hasattr(value, "getbands")  # a Pillow image: channels come first
        array = np.asarray(value, dtype=np.float32)
        if picture:
            return (array[..., None] if array.ndim == 2 else array).transpose(2, 0, 1) / np.float32(255)
        return array


def open_dataset(
    dataset: Any,
    *,
    inputs: Any = None,
    table: Table | None = None,
    columns: Mapping[str, Any] | Sequence[str] | None = None,
    version: str | None = None,
) -> DatasetSource:
    """A dataset as a source: anything with `len()` whose items are samples, as torch and Hugging Face datasets have.

    Args:
        dataset: Map-style: `dataset[i]` is a tuple, a dict, or the input itself. Pillow images become `(channels,
            height, width)` in 0 … 1; arrays and tensors stay as they are, so their channels must come first.
        inputs: The place or key of the input in an item. If None: the first of a tuple; of a dict, what is called
            image, pixel_values or x, or else the only entry that is no column; any other item is itself the input.
        table: One row per item, in the same order.
        columns: Without a table: name → place or key in an item, or the names of a dict's entries. Each is read once.
        version: A name for the content, by which a run knows its data again. If None it reads and digests every sample
            before and after each fold, which takes long where samples are decoded.

    Example:
        >>> items = [{"x": [0.5, 1.0], "age": 61.0, "dx": "AD"}, {"x": [0.0, 2.0], "age": 70.0, "dx": "CN"}]
        >>> source = open_dataset(items, inputs="x", columns=["age", "dx"])
        >>> source.read([1]), source.table["dx"].tolist()
        (array([[0., 2.]], dtype=float32), ['AD', 'CN'])
    """
    check_items(dataset)
    if (table is None) == (columns is None):
        raise OptionError("table or columns must say what each sample's label and confounds are; got both or none.")
    if columns is not None:
        keys = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}
        table = {name: _entries(dataset, key) for name, key in keys.items()}
    assert table is not None
    read = read_table(table)
    rows = len(next(iter(read.values()))) if read else 0
    if rows != len(dataset):
        raise ShapeError(f"table must have one row per sample; got {rows} rows for {len(dataset)} samples.")
    return DatasetSource(dataset, _found(dataset[0], read) if inputs is None else inputs, read, version)


def check_items(dataset: Any) -> None:
    """Refuse what has no samples by number: a stream, nothing, or several datasets by name."""
    if isinstance(dataset, Mapping) and 0 not in dataset:
        names = ", ".join(map(repr, dataset))
        raise OptionError(
            f"dataset must be one dataset; got a {type(dataset).__name__} of {names}. Pass one of its entries."
        )
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__") or not len(dataset):
        raise OptionError(
            f"dataset must have a length and items by number; got {type(dataset).__name__}. Make a list of it."
        )


def _found(item: Any, columns: Sequence[str] | Mapping[str, Any]) -> Any:
    """Where the input is in an item."""
    if isinstance(item, tuple | list) and len(item) and not isinstance(item[0], int | float):
        return 0
    if not isinstance(item, Mapping):
        return WHOLE
    left = [key for key in item if key not in columns]
    named = [key for key in INPUTS if key in left] or (left if len(left) == 1 else [])
    if not named:
        raise OptionError(f"inputs must say which entry of a sample is its input; got none for {', '.join(left)}.")
    return named[0]


def _entries(dataset: Any, key: Any) -> list[Any]:
    if key in getattr(dataset, "column_names", ()):  # Hugging Face reads a column without decoding the images
        return list(dataset[key])
    try:
        return [dataset[row][key] for row in range(len(dataset))]
    except (KeyError, IndexError, TypeError) as error:
        raise OptionError(
            f"columns must name entries of every sample; got {key!r} ({type(error).__name__})."
        ) from error
