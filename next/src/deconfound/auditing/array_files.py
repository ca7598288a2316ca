"""Files of arrays (.npy, .npz), and a limit to what any file may unpack to."""

from __future__ import annotations

import gzip
import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from deconfound.errors import DeconfoundError, TableError, import_extra

# A file is refused unread if it unpacks to more bytes than this, and to more than this many times
# its own size.
LARGEST_UNPACKED = 10**9
LARGEST_RATIO = 100
CHUNK = 2**20


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of an .npz file by name, or that of an .npy file under the name "".

    Pickled objects are never loaded, because loading them runs code from the file.
    """
    if not path.is_file():
        raise TableError(f"There is no file {str(path)!r}. Check the path.")
    refuse_unpacking(path)
    try:
        if not zipfile.is_zipfile(path):
            with path.open("rb") as file:
                return {"": _read_array(file, path.stat().st_size)}
        with zipfile.ZipFile(path) as archive:
            arrays = {}
            for item in archive.infolist():
                with archive.open(item) as member:
                    arrays[item.filename.removesuffix(".npy")] = _read_array(member, item.file_size)
            return arrays
    except DeconfoundError as error:
        raise TableError(f"{path.name!r} {error}") from None
    except Exception as error:  # Each way of being damaged has another type.
        raise TableError(
            f"{path.name!r} cannot be read ({type(error).__name__}). "
            "Check that it is complete and was written by numpy.save or numpy.savez."
        ) from error


def refuse_unpacking(path: Path) -> None:
    """Refuse a compressed file that unpacks to far more than its size, before memory is taken."""
    size = path.stat().st_size
    unpacked = _measure_unpacked(path, max(LARGEST_UNPACKED, LARGEST_RATIO * size))
    if unpacked > LARGEST_UNPACKED and unpacked > LARGEST_RATIO * size:
        raise TableError(
            f"{path.name!r} has {size:,} bytes and unpacks to more than "
            f"{LARGEST_UNPACKED / 1e9:g} GB. If it is not damaged, save it without compression."
        )


def _measure_unpacked(path: Path, limit: int) -> int:
    """Return the unpacked size of a compressed file, or 0 for other and for damaged files."""
    with path.open("rb") as file:
        start = file.read(4)
    try:
        if start[:2] == b"PK":
            with zipfile.ZipFile(path) as archive:
                return sum(item.file_size for item in archive.infolist())
        if start == b"PAR1":
            metadata = import_extra("pyarrow.parquet", "files").read_metadata(path)
            return 8 * int(metadata.num_rows) * int(metadata.num_columns)
        if start[:2] == b"\x1f\x8b":
            return _measure_gzip(path, limit)
    except Exception:  # The reader of the file raises the error.
        return 0
    return 0


def _measure_gzip(path: Path, limit: int) -> int:
    total = 0
    with gzip.open(path) as file:
        while total <= limit and (chunk := file.read(CHUNK)):
            total += len(chunk)
    return total


def _read_array(file: IO[bytes], size: int) -> NDArray[Any]:
    """Read an array from a file of `size` bytes, after its header was compared with that size."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    else:
        shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    if dtype.hasobject:
        raise TableError("holds pickled objects, which are not loaded. Save numbers or texts.")
    count = math.prod(shape)
    if count * dtype.itemsize > size:
        raise TableError(
            f"declares {count:,} cells of {dtype.itemsize} bytes, but has {size:,} bytes. "
            "The file is damaged; save it again."
        )
    file.seek(0)
    array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array
