"""The scans and people of OASIS-1: from a BIDS folder, or from one prepared file where no scan can be read."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deconfound.data import open_scans, write_bytes
from deconfound.errors import RunError, TableError
from deconfound_lab.mri.training import Question, Volumes

EDGE = 64
COLUMNS = ("age", "sex", "dementia", "person")


@dataclass(frozen=True)
class Scanned:
    """Scans and who was scanned.

    Attributes:
        volumes: `(n, 64, 64, 64)`, 0 to 255.
        table: `age`, `sex`, `dementia` (0 or 1) and `person`, a number, for each scan.
        fingerprint: Digest of the scans and their table.
    """

    volumes: NDArray[np.uint8]
    table: Mapping[str, NDArray[Any]]
    fingerprint: str

    def __len__(self) -> int:
        return len(self.volumes)


def read_people(path: str | Path, progress: bool = True) -> Scanned:
    """Open OASIS-1.

    Args:
        path: The BIDS folder, with a column `diagnosis` of "control" and "dementia" in `participants.tsv`; or the file
            that `write_people` made from it.
        progress: Whether a bar is shown while scans are read.
    """
    path = Path(path)
    if path.suffix == ".npz":
        return _read_file(path)
    scans = open_scans(path, shape=(EDGE, EDGE, EDGE), progress=progress)
    lacking = [name for name in ("age", "sex", "diagnosis") if name not in scans.table]
    if lacking:
        raise TableError(
            f"participants.tsv must have the columns age, sex and diagnosis; got none called {', '.join(lacking)}."
        )
    diagnosis = np.asarray(scans.table["diagnosis"]).astype(str)
    others = sorted(set(diagnosis.tolist()) - {"control", "dementia"})
    if others:
        raise TableError(f"diagnosis must be 'control' or 'dementia'; got {', '.join(map(repr, others))}.")
    volumes = np.concatenate(
        [np.round(255 * scans.read(rows)[:, 0]).astype(np.uint8) for rows in np.array_split(np.arange(len(scans)), 16)]
    )
    table = {
        "age": np.asarray(scans.table["age"], dtype=np.float64),
        "sex": np.asarray(scans.table["sex"]).astype(str),
        "dementia": (diagnosis == "dementia").astype(np.int64),
        # A number instead of the name: what is written about people holds no identifier.
        "person": np.unique(np.asarray(scans.table["person"]).astype(str), return_inverse=True)[1],
    }
    return Scanned(volumes, table, scans.fingerprint)


def write_people(people: Scanned, path: str | Path) -> None:
    """Write one compressed file that `read_people` reads without nibabel."""
    content = io.BytesIO()
    arrays: dict[str, Any] = {"volumes": people.volumes, "fingerprint": np.array(people.fingerprint), **people.table}
    np.savez_compressed(content, **arrays)
    write_bytes(Path(path), content.getvalue())


def _read_file(path: Path) -> Scanned:
    try:
        with np.load(path, allow_pickle=False) as kept:
            table = {name: kept[name] for name in COLUMNS}
            return Scanned(kept["volumes"], table, str(kept["fingerprint"]))
    except (OSError, ValueError, KeyError) as error:
        raise RunError(f"{path} must be a file of scans that write_people made; got {error}.") from error


def on_device(people: Scanned, size: int, device: torch.device, question: Question) -> Volumes:
    """The volumes at the size that is trained on, the empty margin that all scans share cut off.

    Args:
        people: Everyone.
        size: Edge of the volumes.
        device: Where they go.
        question: What is removed and what is predicted.
    """
    kind = torch.float16 if device.type == "cuda" else torch.float32
    box = _box(people.volumes)
    parts = [_sized(people.volumes[rows][box], size, device).to(kind) for rows in np.array_split(
        np.arange(len(people)), max(1, len(people) // 32)
    )]  # fmt: skip
    controls = torch.from_numpy(people.table["dementia"] == 0).to(device)
    return Volumes(torch.cat(parts), dict(people.table), question, controls)


def _box(volumes: NDArray[np.uint8]) -> tuple[slice, ...]:
    """The smallest box outside of which no scan has anything."""
    places = np.nonzero(volumes.max(axis=0))
    return (slice(None), *(slice(int(along.min()), int(along.max()) + 1) for along in places))


def _sized(volumes: NDArray[np.uint8], size: int, device: torch.device) -> Tensor:
    images = torch.from_numpy(np.ascontiguousarray(volumes)).to(device).float()[:, None] / 255
    shape = (size, size, size)
    # Averages where there are more voxels than asked for; interpolation alone would leave some out.
    if min(images.shape[2:]) >= 2 * size:
        return torch.nn.functional.adaptive_avg_pool3d(images, shape)
    return torch.nn.functional.interpolate(images, shape, mode="trilinear")
