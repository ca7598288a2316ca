"""Files that several tests write, and a reader that counts how often it is called."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from PIL import Image


def write_picture(path: Path, value: int = 0, size: tuple[int, int] = (8, 6)) -> Path:
    """Write a picture of one colour; `size` is (width, height)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, 10, 20)).save(path)
    return path


def write_scan(
    path: Path, voxels: np.ndarray | None = None, affine: np.ndarray | None = None
) -> Path:
    """Write a scan, by default of 3 × 4 × 5 voxels from 1 to 60."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if voxels is None:
        voxels = np.arange(1, 61, dtype=np.int16).reshape(3, 4, 5)
    kind = nibabel.MGHImage if path.name.endswith((".mgh", ".mgz")) else nibabel.Nifti1Image
    kind(voxels, np.eye(4) if affine is None else affine).to_filename(path)
    return path


def write_study(folder: Path, sessions: dict[str, int], rows: str | None = None) -> Path:
    """Write a BIDS folder with a number of sessions for each person."""
    for person, count in sessions.items():
        for session in range(1, count + 1):
            name = f"sub-{person}_ses-{session}_T1w"
            write_scan(folder / f"sub-{person}" / f"ses-{session}" / "anat" / f"{name}.nii.gz")
    table = "participant_id\tage\n" + "".join(f"sub-{name}\t6{name}\n" for name in sessions)
    (folder / "participants.tsv").write_text(rows or table)
    return folder


def read_number(path: Path) -> Any:
    """Read a text file with one number as a sample of shape (1, 2, 2), and note the call."""
    with open(os.environ["DECODE_LOG"], "a") as log:
        log.write(f"{path.name}\n")
    return np.full((1, 2, 2), int(path.read_text()), dtype=np.uint8)
