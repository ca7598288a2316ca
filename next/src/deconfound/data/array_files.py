"""Files of arrays (.npy, .npz, .pt, .safetensors), and a limit to what a file may unpack to."""

from __future__ import annotations

import gzip
import math
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from deconfound.errors import DeconfoundError, ShapeError, TableError, import_extra

ARRAY_ENDINGS = (".npy", ".npz", ".pt", ".pth", ".safetensors")
# A file is refused unread if it unpacks to more bytes than this, and to more than this many times
# its own size.
LARGEST_UNPACKED = 10**9
LARGEST_RATIO = 100


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file by name; a file of a single array has it under the name "".

    Pickled objects are never loaded, because loading them runs code from the file. The array of an
    .npy file is a memory map.

    Args:
        path: An .npy or .npz file of NumPy, a .pt or .pth file of one tensor or a dict of tensors,
            or a .safetensors file.

    Raises:
        TableError: The file is absent or damaged, or holds other objects.

    Example:
        >>> import tempfile, numpy as np
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/two.npz", x=np.eye(2), age=[63, 71])
        ...     arrays = read_arrays(Path(folder, "two.npz"))
        >>> arrays["age"].tolist()
        [63, 71]
    """
    if not path.is_file():
        raise TableError(f"There is no file {str(path)!r}. Check the path.")
    refuse_unpacking(path)
    try:
        if path.suffix.lower() in (".pt", ".pth", ".safetensors"):
            return _read_tensors(path)
        return _read_numpy(path)
    except DeconfoundError as error:
        raise TableError(f"{path.name!r} {error}") from None
    except Exception as error:  # Each way of being damaged has another type.
        raise TableError(
            f"{path.name!r} cannot be read ({type(error).__name__}). Check that it is complete, "
            "and that it was written by numpy.save, numpy.savez, torch.save or safetensors."
        ) from error


def as_samples(values: Any) -> NDArray[Any]:
    """Return an array or tensor as uint8 if it is, and as float32 otherwise.

    Raises:
        ShapeError: It does not hold finite real numbers.
    """
    array = to_numpy(values)
    if isinstance(values, np.ma.MaskedArray) or array.dtype.kind not in "biuf":
        kind = f"{type(values).__name__} of {array.dtype}"
        raise ShapeError(f"Samples must be real numbers without a mask; got a {kind}. Convert it.")
    if array.dtype not in (np.uint8, np.float32):
        with np.errstate(over="ignore"):  # A number beyond float32 becomes infinite.
            array = array.astype(np.float32)
    wrong = np.argwhere(~np.isfinite(array))
    if len(wrong):
        raise ShapeError(
            f"Samples must be finite as float32; {len(wrong):,} values are not, the first at "
            f"{wrong[0].tolist()} (counted from 0). Correct them, or leave these samples out."
        )
    return array


def to_numpy(values: Any) -> NDArray[Any]:
    """Return an array or tensor, on any device, as an array of NumPy."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        # NumPy has no bfloat16.
        values = values.float() if "bfloat16" in str(values.dtype) else values
    return np.asarray(values)


def refuse_unpacking(path: Path) -> None:
    """Refuse a compressed file that unpacks to far more than its size, before memory is taken."""
    size = path.stat().st_size
    limit = max(LARGEST_UNPACKED, LARGEST_RATIO * size)
    if _unpacked_size(path, limit) > limit:
        raise TableError(
            f"{path.name!r} has {size:,} bytes and unpacks to more than "
            f"{LARGEST_UNPACKED / 1e9:g} GB. If it is not damaged, save it without compression."
        )


def _unpacked_size(path: Path, limit: int) -> int:
    """Return the unpacked size of a compressed file, or 0 for other and for damaged files."""
    with path.open("rb") as file:
        start = file.read(4)
    with suppress(Exception):  # The reader of the file raises the error.
        if start[:2] == b"PK":
            with zipfile.ZipFile(path) as archive:
                return sum(item.file_size for item in archive.infolist())
        if start == b"PAR1":
            metadata = import_extra("pyarrow.parquet", "files").read_metadata(path)
            return 8 * int(metadata.num_rows) * int(metadata.num_columns)
        if start[:2] == b"\x1f\x8b":
            with gzip.open(path) as content:
                # To get there it is unpacked, but not kept.
                return content.seek(limit + 1)
    return 0


def _read_numpy(path: Path) -> dict[str, NDArray[Any]]:
    # Opened here, because numpy leaves a damaged archive open.
    with path.open("rb") as file:
        if not zipfile.is_zipfile(path):
            _check_header(file, path.stat().st_size)
            return {"": np.load(path, mmap_mode="r", allow_pickle=False)}
        with np.load(file, allow_pickle=False) as archive:
            for item in archive.zip.infolist():
                with archive.zip.open(item) as member:
                    _check_header(member, item.file_size)
            return dict(archive)


def _read_tensors(path: Path) -> dict[str, NDArray[Any]]:
    if path.suffix.lower() == ".safetensors":
        loaded = import_extra("safetensors.torch", "files").load_file(path)
    else:
        import torch

        loaded = torch.load(path, map_location="cpu", weights_only=True)
    tensors = loaded if isinstance(loaded, Mapping) else {"": loaded}
    if not all(hasattr(tensor, "detach") for tensor in tensors.values()):
        raise TableError("holds other objects than tensors. Save one tensor, or a dict of them.")
    return {str(name): to_numpy(tensor) for name, tensor in tensors.items()}


def _check_header(file: IO[bytes], size: int) -> None:
    """Refuse an array that claims more than its file of `size` bytes, or that holds objects."""
    if np.lib.format.read_magic(file) == (1, 0):
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
