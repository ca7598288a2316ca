"""Small scans and BIDS folders, written as a user's tools write them."""

from pathlib import Path

import nibabel as nib
import numpy as np


def write_scan(path, seed=0, shape=(6, 7, 8), affine=None, values=None):
    """A scan of random positive voxels in a zero frame; returns the voxels."""
    if values is None:
        values = np.random.default_rng(seed).uniform(1, 100, shape).astype(np.float32)
        values[0] = 0
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.Nifti1Image(values, np.eye(4) if affine is None else affine).to_filename(path)
    return values


def write_bids(root, people=3, sessions=0):
    """`people` participants with an age and a sex, each with one scan, or one per session."""
    root = Path(root)
    root.mkdir(parents=True, exist_ok=True)
    lines = ["participant_id\tage\tsex\tscore"]
    for number in range(people):
        name = f"sub-{number + 1:02d}"
        lines.append(f"{name}\t{50 + number}\t{'FM'[number % 2]}\t{'n/a' if number == 0 else number / 2}")
        for session in range(sessions) or [None]:
            if session is None:
                path = root / name / "anat" / f"{name}_T1w.nii.gz"
            else:
                path = root / name / f"ses-{session + 1}" / "anat" / f"{name}_ses-{session + 1}_T1w.nii.gz"
            write_scan(path, seed=10 * number + (session or 0))
    (root / "participants.tsv").write_text("\n".join(lines) + "\n")
    return root
