"""Scans as a source of samples: a BIDS folder or a table of paths, read once and then stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.data.bids import TEXT, Listing, list_bids, list_paths
from deconfound.data.file_source import FileSource, Reading, check_reading, open_files
from deconfound.data.tables import read_table
from deconfound.data.volumes import (
    Fit,
    Packing,
    check_packing,
    check_shape,
    need_nibabel,
    pack,
    read_scan,
    robust_scale,
    to_shape,
)
from deconfound.errors import ScanError

SCALING = "0 to the 99.5th percentile of the voxels that are neither zero nor next to nothing"


def open_scans(
    path: str | Path,
    *,
    table: str | Path | Mapping[str, Any] | None = None,
    path_column: str = "path",
    pattern: str = "*_T1w.nii*",
    shape: Sequence[int] = (64, 64, 64),
    fit: Fit = "resample",
    spacing: float | None = None,
    dtype: Packing = "uint8",
    text: Sequence[str] = (),
    skip_bad: bool = False,
    max_gb: float = 1.0,
    cache: str | Path | None = None,
    jobs: int | None = None,
    progress: bool = True,
) -> FileSource:
    """Open scans: bring each to one orientation, shape and scale, once, and read them from a memory map from then on.

    Args:
        path: A BIDS folder; or a table of paths; or, with `table`, the folder that its paths start from.
        table: A table or its file, used instead of `participants.tsv`, or with a column of paths.
        path_column: The column of paths.
        pattern: What the names of scans look like in a BIDS folder.
        shape: Of every volume.
        fit: "resample" stretches the whole field of view to the shape; "crop" cuts or fills up with zeros.
        spacing: With fit="crop", the voxel size in mm that scans are brought to first.
        dtype: How a voxel is stored: "uint8" in 255 steps, or "float16".
        text: Columns of the table that stay text, so that names of people keep their zeros.
        skip_bad: Go on without scans that cannot be read or matched, and warn, instead of refusing all.
        max_gb: The most gigabytes of float32 that a scan's header may claim; above it a scan is refused unread.
        cache: Where volumes are stored; `DECONFOUND_CACHE` or the user's cache folder by default.
        jobs: Threads that read; one per core by default.
        progress: Whether a bar is shown while scans are read.

    Raises:
        ScanError: Names every scan that cannot be read and every row or scan that has no partner.
    """
    need_nibabel()
    size = check_shape(shape)
    check_packing(dtype)
    to_shape(np.zeros((1, 1, 1), np.float32), size, fit, (1, 1, 1), spacing)  # refuses options that do not fit
    check_reading(jobs, max_gb)
    listing = _listing(Path(path), table, path_column, pattern, (*TEXT, *text))
    listing = replace(listing, tables=_tables(Path(path), table))

    def read(file: Path) -> NDArray[Any]:
        volume, zooms = read_scan(file, max_gb)
        return pack(robust_scale(to_shape(volume, size, fit, zooms, spacing)), dtype)

    settings: dict[str, object] = {"kind": "scans", "fit": fit, "spacing": spacing, "scaling": SCALING}
    return open_files(
        listing, read, Reading("scan", settings, size, (1, *size), dtype, skip_bad, cache, jobs, progress)
    )


def _tables(path: Path, table: str | Path | Mapping[str, Any] | None) -> tuple[Path, ...]:
    """The files that the rows of a listing come from."""
    if path.is_file() and table is None:
        return (path,)
    people = [Path(table)] if isinstance(table, str | Path) else []
    return (*people, *sorted(path.glob("participants.tsv")), *sorted(path.glob("sub-*/sub-*_sessions.tsv")))


def _listing(
    path: Path, table: str | Path | Mapping[str, Any] | None, path_column: str, pattern: str, text: Sequence[str]
) -> Listing:
    if path.is_file() and table is None:
        table, path = path, path.parent
        return list_paths(read_table(table, (*text, path_column)), path_column, path)
    if not path.is_dir():
        raise ScanError(f"{path} must be a BIDS folder, or a table of paths; got nothing there. Check the path.")
    columns = None if table is None else read_table(table, (*text, path_column))
    if columns is not None and path_column in columns:
        return list_paths(columns, path_column, path)
    if columns is None and not (path / "participants.tsv").is_file():
        raise ScanError(
            f"{path} must hold participants.tsv; got a folder without it. Pass table=… with a column 'participant_id' "
            f"or a column {path_column!r}."
        )
    listing = list_bids(path, columns, pattern, text)
    if not listing.paths and not listing.faults:
        raise ScanError(f"{path} must hold scans sub-*/**/{pattern}; got none. Set pattern=….")
    return listing
