"""Arrays as sources of a run: an NPY or NPZ file beside a table, row by row or joined by an id."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.data.table_source import Columns, fingerprint, positions, read_table
from deconfound.design.table import absent
from deconfound.errors import TableError


class ArraySource:
    """Samples along the first axis of an array, memory-mapped where it is a file of its own."""

    def __init__(self, values: NDArray[Any], table: Columns, fingerprint: str) -> None:
        self.values = values
        self.table: Mapping[str, Any] = table
        self.shape: tuple[int, ...] = values.shape[1:]
        self.fingerprint = fingerprint

    def __len__(self) -> int:
        return len(self.values)

    def read(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """The samples of these rows as float32."""
        return np.asarray(self.values[rows], dtype=np.float32)


def open_array(
    path: str | Path, *, table: str | Path | None, id: str | None = None, array: str | None = None
) -> ArraySource:
    """Open an array and its table.

    Args:
        path: NPY `(n, …)`, or NPZ with such an array and, where the rows are in another order, one of ids.
        table: One row per sample.
        id: The column of `table`, and the name of the NPZ's array of ids, that join the two.
        array: Which array of the NPZ holds the samples, where it has several.
    """
    path = Path(path)
    if table is None:
        raise TableError(f"data.table must be given beside {path.name}; got none. An array has no columns of its own.")
    if not path.is_file():
        raise TableError(f"{path} must be a file; got nothing there. Check the path.")
    columns = read_table(table, [id] if id else [])
    digest = fingerprint([path, Path(table)])
    values, names = _load(path, array, id)
    if values.ndim < 2 or values.dtype.kind not in "biuf":
        raise TableError(f"{path} must hold numbers of shape (samples, …); got shape {values.shape} of {values.dtype}.")
    if names is not None:
        faults = absent([str(id)], list(columns), f"data.id in {Path(table).name}")
        if faults:
            raise TableError(faults[0])
        place = positions(path, names, str(id))
        positions(Path(table), columns[str(id)], str(id))
        missing = [name for name in columns[str(id)].tolist() if name not in place]
        if missing:
            raise TableError(
                f"{path} must hold a sample for every {id!r} of {Path(table).name}; got none for {missing[0]!r} "
                f"({len(missing)} are absent)."
            )
        values = values[[place[name] for name in columns[str(id)].tolist()]]
    rows = len(next(iter(columns.values())))
    if rows != len(values):
        raise TableError(
            f"{path.name} and {Path(table).name} must have as many rows; got {len(values)} and {rows}. Join them with "
            "data.id and an array of ids in an NPZ."
        )
    return ArraySource(values, columns, digest)


def array_in_memory(values: NDArray[Any], table: Columns) -> ArraySource:
    """A source of an array that is already there, such as synthetic images."""
    whole = hashlib.sha256(np.ascontiguousarray(values).tobytes())
    for name, column in table.items():
        whole.update(f"{name}{np.asarray(column).tolist()}".encode())
    return ArraySource(np.asarray(values), table, whole.hexdigest())


def _load(path: Path, array: str | None, id: str | None) -> tuple[NDArray[Any], NDArray[Any] | None]:
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError) as error:
        told = str(error).rstrip(".")
        raise TableError(f"{path} must hold plain arrays of numbers; got {told}. Save it without objects.") from error
    if isinstance(loaded, np.ndarray):
        return loaded, None
    with loaded:
        names = loaded[id].astype(str).astype(object) if id in loaded.files else None
        choices = [name for name in loaded.files if name != id]
        chosen = array if array is not None else choices[0] if len(choices) == 1 else None
        if chosen not in loaded.files:
            raise TableError(f"data.array must be one of {', '.join(choices)} in {path.name}; got {array!r}.")
        return loaded[chosen], names
