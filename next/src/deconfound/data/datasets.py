"""Datasets of PyTorch and Hugging Face, and other objects with a length and items by number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from deconfound.data.array_files import as_samples, to_numpy
from deconfound.data.cache import OnProgress
from deconfound.data.features import select_names
from deconfound.data.images import to_pixels
from deconfound.errors import OptionError, ShapeError


def read_dataset(
    dataset: Any,
    features: str | Iterable[str] | None,
    size: Any,
    on_progress: OnProgress | None,
) -> tuple[NDArray[Any], pd.DataFrame]:
    """Return x and the columns of a dataset, which is read once into memory.

    An item is the input itself, or a tuple whose first entry it is, or a dict. The texts and
    numbers of a dict become columns, and its only other entry is the input.

    Args:
        dataset: Has `len()` and `dataset[i]`. Pictures of Pillow become uint8, channels first.
        features: The entry of a dict that is the input, if there are several.
        size: The size of pictures; None keeps theirs.
        on_progress: Called with the number of items, that of all items, and a text.

    Raises:
        OptionError: It has no items by number, or the input is not clear.
        ShapeError: The samples differ in shape, or from one reading to the next.
    """
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__") or not len(dataset):
        raise OptionError(
            f"A {type(dataset).__name__} has no samples by number. Pass a dataset with len() and "
            "dataset[i], not a loader or a stream: list(stream)."
        )
    item = dataset[0]
    cells: dict[str, list[Any]] = {}
    key = None
    if isinstance(item, Mapping):
        cells = {name: [] for name, value in item.items() if np.ndim(value) == 0}
        key = choose_input([name for name in item if name not in cells], features, "entry")
    first = _read_input(item, key, size)
    if not first.ndim:
        raise ShapeError("The samples are single numbers. Pass an array of shape (n, 1).")
    if not np.array_equal(first, _read_input(dataset[0], key, size)):
        raise ShapeError(
            "Sample 0 differs from one reading to the next. Leave random transforms out of the "
            "dataset: samples are read once, and the training augments them."
        )
    x = np.empty((len(dataset), *first.shape), first.dtype)
    for row in range(len(dataset)):
        item = dataset[row]
        sample = _read_input(item, key, size)
        if (sample.shape, sample.dtype) != (first.shape, first.dtype):
            raise ShapeError(
                f"Sample {row} has shape {sample.shape} and type {sample.dtype}, sample 0 has "
                f"{first.shape} and {first.dtype}. Give all samples one shape and type; for "
                "pictures write size=, such as size=(3, 64, 64)."
            )
        x[row] = sample
        for name, column in cells.items():
            column.append(to_numpy(item[name]).item())
        if on_progress is not None:
            on_progress(row + 1, len(dataset), "Reading samples")
    return x, pd.DataFrame(cells, index=range(len(dataset)), dtype=object)


def choose_input(names: Sequence[str], features: str | Iterable[str] | None, what: str) -> str:
    """Return the one name that is the input; all others are columns of one value per row."""
    inputs = select_names(names, features, names, what) if names else []
    if len(inputs) != 1:
        listed = ", ".join(map(repr, inputs)) or "none"
        fix = f" Write the one that is the input: features=[{inputs[0]!r}]." if inputs else ""
        raise OptionError(f"One {what} must be the input; there are {listed}.{fix}")
    return inputs[0]


def _read_input(item: Any, key: str | None, size: Any) -> NDArray[Any]:
    """Return the input of an item as an array."""
    if key is not None:
        item = item[key]
    elif isinstance(item, tuple):
        item = item[0]
    if hasattr(item, "getbands"):  # A picture of Pillow.
        return to_pixels(item, size)
    if size is not None:
        raise OptionError("size= is for pictures, but the samples are arrays. Leave it out.")
    return as_samples(item)
