"""Files as a source of samples: scans or images, read once and then stored, with a row of the table for each."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.data.bids import Listing
from deconfound.data.cache import StoredVolumes, cache_root, store_volumes, unpack
from deconfound.data.files import digest, file_digests
from deconfound.design.table import from_cells
from deconfound.errors import DeconfoundWarning, OptionError, ScanError


class FileSource:
    """Scans or images and their table; see `deconfound.data.Source`. Made by `open_scans` and `open_images`.

    Attributes:
        table: Column name → values, one per file.
        shape: Of a sample, channels first: `(1, D, H, W)` or `(channels, height, width)`.
        fingerprint: Digest of the files' content, the settings and the table.
        paths: The files.
        skipped: What was left out under `skip_bad`, one sentence each.
        made: How many files were read by this call; the others came from the cache.
        row_numbers: The row of the table as given, for each file; its place among the scans of a BIDS folder where
            several of them share a row.
        path_column: The column that names the files; None for a BIDS folder.
        file_names: What that column calls each file.
    """

    def __init__(
        self, volumes: StoredVolumes, places: NDArray[np.intp], shape: tuple[int, ...], table: dict[str, NDArray[Any]],
        paths: Sequence[Path], fingerprint: str, skipped: Sequence[str], made: int,
        content: Callable[[], list[str]], row_numbers: NDArray[np.intp], path_column: str | None,
        file_names: Sequence[str],
    ) -> None:  # fmt: skip
        self._volumes, self._places, self._content, self._then = volumes, places, content, content()
        self.table: Mapping[str, Any] = table
        self.shape = shape
        self.fingerprint = fingerprint
        self.paths = tuple(paths)
        self.skipped = tuple(skipped)
        self.made = made
        self.row_numbers = row_numbers
        self.path_column = path_column
        self.file_names = tuple(file_names)

    def __len__(self) -> int:
        return len(self._places)

    def read(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """The samples of these rows, `(n, *shape)` in 0 … 1."""
        places = self._places[np.asarray(rows)]
        return unpack(self._volumes.stored[places]).reshape(len(places), *self.shape)

    def current_fingerprint(self) -> str:
        """The fingerprint, or another one where a file or a table of them has changed since it was opened."""
        now = self._content()
        return self.fingerprint if now == self._then else digest(now)


@dataclass(frozen=True)
class Reading:
    """How files are read and stored: `settings` are what a stored sample depends on beside its file."""

    what: str
    settings: dict[str, object]
    stored_shape: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    skip_bad: bool
    cache: str | Path | None
    jobs: int | None
    progress: bool


def check_reading(jobs: int | None, max_gb: float) -> None:
    """Refuse options that no reader of files can take."""
    if jobs is not None and jobs < 1:
        raise OptionError(f"jobs must be at least 1; got {jobs}.")
    if not max_gb > 0:
        raise OptionError(f"max_gb must be positive; got {max_gb}.")


def open_files(listing: Listing, read: Callable[[Path], NDArray[Any]], how: Reading) -> FileSource:
    """Read the files of a listing, or take them from the cache.

    `read` gives one file as it is stored, and raises `VolumeFault` where it cannot be read. A `ScanError` names every
    such file, and every row or file without a partner.
    """
    root, jobs = cache_root(how.cache), how.jobs or min(8, os.cpu_count() or 1)
    content = partial(file_digests, [*listing.paths, *listing.tables], root, jobs)
    digests = content()[: len(listing.paths)]
    cached = store_volumes(
        root, how.settings, digests, how.stored_shape, how.dtype, lambda item: read(listing.paths[item]),
        what=f"reading {how.what}s", jobs=jobs, progress=how.progress,
    )  # fmt: skip
    faults = listing.faults + [f"{listing.paths[item]}: {text}" for item, text in cached.faults.items()]
    good = [item for item in range(len(digests)) if item not in cached.faults]
    _report(faults, len(good), how)
    rows = [listing.rows[item] for item in good]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: from_cells([row.get(name) for row in rows], name) for name in names}
    texts = {name: [str(cell) for cell in column.tolist()] for name, column in columns.items()}
    mark = digest([how.settings, list(how.stored_shape), how.dtype, [digests[item] for item in good], texts])
    paths = [listing.paths[item] for item in good]
    places = np.array(good, dtype=np.intp)
    numbers = np.array(listing.numbers, dtype=np.intp)[places]
    file_names = [listing.names[item] for item in good] if listing.path_column else []
    return FileSource(
        cached.volumes, places, how.shape, columns, paths, mark, faults, cached.made, content, numbers,
        listing.path_column, file_names,
    )  # fmt: skip


def _report(faults: list[str], good: int, how: Reading) -> None:
    """Refuse what is wrong, or say what is left out."""
    listed = "\n".join(f"  {fault}" for fault in faults)
    if faults and not how.skip_bad:
        raise ScanError(
            f"every {how.what} must be readable and have one row of the table; got {len(faults)} "
            f"{'fault' if len(faults) == 1 else 'faults'}:\n{listed}\n"
            "Correct them, or pass skip_bad=True (--skip-bad of a command, data.options.skip_bad of a config) to go on "
            f"with the {good} that are right."
        )
    if not good:
        raise ScanError(f"at least one {how.what} must be readable and have a row of the table; got none.\n{listed}")
    if faults:
        warnings.warn(f"{len(faults)} left out, {good} {how.what}s remain:\n{listed}", DeconfoundWarning, stacklevel=4)
