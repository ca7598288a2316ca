"""Volumes stored between runs: one memory-mapped file for a set of them, found by what they were made from.

Each volume has a digest of its content and the folder's name that of the settings, so a file is right for ever: a
changed scan or setting leads to another file. Files appear by an atomic rename, and two processes that build the same
one write the same bytes, so no lock is needed to be right; the lock here only saves the second process the work.
"""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.data.files import ABANDONED_AFTER_S, digest, hold, sweep, writing
from deconfound.data.progress import progress_bar
from deconfound.errors import OptionError

FORMAT = 1


class VolumeFault(Exception):
    """Why one volume cannot be made; others go on.

    Args:
        text: The reason.
        lasting: Whether equal content always has this fault. A file that could not be read is tried again.
    """

    def __init__(self, text: str, lasting: bool = True) -> None:
        super().__init__(text)
        self.lasting = lasting


class StoredVolumes:
    """Volumes in one file, read as float32 through a memory map.

    Args:
        path: An NPY file `(n, *shape)`, uint8 in 255 steps or float16.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map: NDArray[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_map": None}  # a worker maps the file itself, instead of receiving its content

    @property
    def stored(self) -> NDArray[Any]:
        """The file as it is, not yet in memory."""
        if self._map is None:
            self._map = np.load(self.path, mmap_mode="r")
        return self._map

    def read(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Volumes `(n, 1, D, H, W)` in 0 … 1."""
        return unpack(self.stored[rows])[:, None]


def unpack(stored: NDArray[Any]) -> NDArray[np.float32]:
    """Stored values as float32 in 0 … 1."""
    if stored.dtype == np.uint8:
        values: NDArray[np.float32] = np.multiply(stored, np.float32(1 / 255), dtype=np.float32)
        return values
    return stored.astype(np.float32)


@dataclass(frozen=True)
class CachedSet:
    """A set of volumes in the cache.

    Attributes:
        volumes: One for each digest; those with a fault are empty.
        faults: What is wrong, by position.
        made: How many were made now, instead of read from the cache.
    """

    volumes: StoredVolumes
    faults: dict[int, str]
    made: int


def cache_root(given: str | Path | None = None) -> Path:
    """Where volumes are stored: the given folder, that in `DECONFOUND_CACHE`, or the user's cache folder."""
    if given is not None:
        return Path(given)
    if os.environ.get("DECONFOUND_CACHE"):
        return Path(os.environ["DECONFOUND_CACHE"])
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "deconfound"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "deconfound" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "deconfound"


def store_volumes(
    root: Path,
    settings: dict[str, object],
    digests: Sequence[str],
    shape: tuple[int, ...],
    dtype: str,
    make: Callable[[int], NDArray[Any]],
    *,
    what: str,
    jobs: int,
    progress: bool,
) -> CachedSet:
    """The volumes of these digests, from the cache where it has them and from `make` where not.

    Args:
        root: The cache's folder.
        settings: What a volume depends on beside its digest.
        digests: One for each volume.
        shape: Of one volume.
        dtype: As it is stored.
        make: The volume at a position, of that shape and type; raises `VolumeFault` where there is none.
        what: The word on the progress bar.
        jobs: Threads that make volumes.
        progress: Whether a bar is shown.
    """
    folder = root / digest([FORMAT, settings, list(shape), dtype])[:16]
    path = folder / f"{digest(list(digests))[:32]}.npy"
    found = _find(path, digests, shape, dtype, jobs)
    if found is not None:
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder, ABANDONED_AFTER_S)
        with hold(path.with_suffix(".lock"), wait=True):
            found = _find(path, digests, shape, dtype, jobs)  # another process may have built it meanwhile
            return found or _build(path, digests, shape, dtype, make, what, jobs, progress)
    except OSError as error:
        raise OptionError(
            f"the cache must be a folder with room that can be written; got {root} ({error.strerror}). Name another "
            "one with cache=… or the environment variable DECONFOUND_CACHE."
        ) from error


def _find(path: Path, digests: Sequence[str], shape: tuple[int, ...], dtype: str, jobs: int) -> CachedSet | None:
    """The file if it is whole; None if it is absent, incomplete or damaged."""
    index, stored = _opened(path, shape, dtype)
    if index is None or index["digests"] != list(digests) or index["again"]:
        return None
    faults = {int(row): text for row, text in index["faults"].items()}
    rows = [row for row in range(len(digests)) if row not in faults]
    with ThreadPoolExecutor(jobs) as pool:
        whole = all(pool.map(lambda row: zlib.crc32(stored[row]) == index["checks"][row], rows))
    return CachedSet(StoredVolumes(path), faults, 0) if whole else None


def _build(
    path: Path,
    digests: Sequence[str],
    shape: tuple[int, ...],
    dtype: str,
    make: Callable[[int], NDArray[Any]],
    what: str,
    jobs: int,
    progress: bool,
) -> CachedSet:
    known = _known(path.parent, set(digests), shape, dtype)
    checks, faults, again = [0] * len(digests), dict[int, str](), list[int]()
    missing = [row for row, name in enumerate(digests) if name not in known]
    header = _header((len(digests), *shape), dtype)
    length = int(np.prod(shape)) * np.dtype(dtype).itemsize
    turn = threading.Lock()
    with writing(path) as file, progress_bar(what, len(missing), progress and bool(missing)) as advance:
        file.write(header)
        file.truncate(len(header) + length * len(digests))

        def put(row: int, volume: NDArray[Any]) -> None:
            content = np.ascontiguousarray(volume).tobytes()
            checks[row] = zlib.crc32(content)
            # Written, not mapped: a full disk is then an error instead of a crash.
            with turn:
                file.seek(len(header) + row * length)
                file.write(content)

        def fill(row: int) -> None:
            try:
                put(row, make(row))
            except VolumeFault as fault:
                faults[row] = str(fault)
                again.extend([] if fault.lasting else [row])
            advance()

        for row, name in enumerate(digests):
            if name in known:
                put(row, known[name])
        with ThreadPoolExecutor(jobs) as pool:
            try:
                for _ in pool.map(fill, missing):
                    pass
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
    index = {"format": FORMAT, "digests": list(digests), "checks": checks, "faults": faults, "again": sorted(again)}
    with writing(path.with_suffix(".json")) as file:
        file.write(json.dumps(index).encode())
    return CachedSet(StoredVolumes(path), dict(sorted(faults.items())), len(missing))


def _known(folder: Path, wanted: set[str], shape: tuple[int, ...], dtype: str) -> dict[str, NDArray[Any]]:
    """Volumes that other files of the same settings already hold, undamaged."""
    found: dict[str, NDArray[Any]] = {}
    for path in sorted(folder.glob("*.npy")):
        index, stored = _opened(path, shape, dtype)
        for row, name in enumerate([] if index is None else index["digests"]):
            asked = name in wanted and name not in found and str(row) not in index["faults"]
            if asked and zlib.crc32(stored[row]) == index["checks"][row]:
                found[name] = stored[row]
    return found


def _opened(path: Path, shape: tuple[int, ...], dtype: str) -> tuple[Any, Any]:
    """The index and the volumes of a file, not yet in memory; None for both where they are not there or do not fit."""
    try:
        index, stored = json.loads(path.with_suffix(".json").read_text()), np.load(path, mmap_mode="r")
        n = len(index["digests"])
        right = (
            index["format"] == FORMAT
            and len(index["checks"]) == n
            and isinstance(index["faults"], dict)
            and "again" in index
            and stored.shape == (n, *shape)
            and stored.dtype == np.dtype(dtype)
        )
    except (OSError, ValueError, EOFError, KeyError, TypeError, RecursionError):
        return None, None
    return (index, stored) if right else (None, None)


def _header(shape: tuple[int, ...], dtype: str) -> bytes:
    buffer = io.BytesIO()
    description = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_2_0(buffer, description)
    return buffer.getvalue()
