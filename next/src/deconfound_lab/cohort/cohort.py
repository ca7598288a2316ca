"""The simulated cohort: people, their scans, and both as samples or as a BIDS folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray

import deconfound
from deconfound.data import Samples, cache_folder
from deconfound.errors import OptionError, import_extra
from deconfound_lab.cohort.brain import make_affine
from deconfound_lab.cohort.people import People, draw_people
from deconfound_lab.cohort.rendering import SCANNERS, Draws, Renderer

# To be raised when equal arguments give other volumes.
VERSION = 1
SMALLEST = 8
# The brightest voxels of a scan, which a few hot ones must not darken: `deconfound.data.read_scan`.
BRIGHT = 99.5

# Called with the number of scans that are done and the number of all scans.
OnProgress = Callable[[int, int], None]

DESCRIPTIONS = {
    "participant_id": "Identifier of a simulated person.",
    "site": "Where the person was scanned.",
    "group": "CTRL, MCI, HIV or HAND.",
    "sex": "F or M.",
    "age": "Years.",
    "hiv": "Label: 1 in HIV and HAND.",
    "mci": "Label: 1 in MCI and HAND.",
}


class Cohort:
    """Simulated people and their scans; `simulate_cohort` makes one.

    Attributes:
        table: `participant_id`, `site`, `group`, `sex`, `age`, `hiv` and `mci`, one row per person.
        severity: What each brain shows of `hiv` and `mci`. No model may read it.
        size: The number of voxels along each axis.
        settings: All that the scans depend on.
    """

    def __init__(
        self, people: People, size: int, seed: int, independent: bool, device: torch.device
    ) -> None:
        self.table, self.severity = people.table, people.severity
        self.size = size
        self.settings = {
            "version": VERSION,
            "size": size,
            "seed": seed,
            "independent": independent,
            "people": len(self.table),
        }
        self._stream = (seed, int(independent))
        self._device = device

    def __len__(self) -> int:
        return len(self.table)

    def brain(self, row: int) -> NDArray[np.float32]:
        """Return the tissue of a person, before a scanner sees it, `(size, size, size)`."""
        return np.asarray(self._brain(row, self._draws(row)).cpu().numpy())

    def scan(self, row: int) -> NDArray[np.int16]:
        """Return the scan of a person, `(size, size, size)`."""
        draws = self._draws(row)
        scanner = SCANNERS[self.table["site"][row]]
        scan = self._renderer.scan(self._brain(row, draws), scanner, draws)
        return np.asarray(scan.to(torch.int16).cpu().numpy())

    def samples(
        self, cache: str | os.PathLike[str] | None = None, on_progress: OnProgress | None = None
    ) -> Samples:
        """Return all scans and the table as samples, equal to those of the BIDS folder.

        Args:
            cache: The folder in which scans are kept; None is `deconfound.data.cache_folder()`.
            on_progress: Called after each scan that is made.
        """
        settings = json.dumps(self.settings, sort_keys=True)
        fingerprint = hashlib.sha256(settings.encode()).hexdigest()
        folder = cache_folder() if cache is None else Path(cache)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"cohort-{fingerprint[:32]}.npy"
        with FileLock(path.with_suffix(".lock")):
            if not path.exists():
                x = np.empty((len(self), 1, *[self.size] * 3), dtype=np.uint8)
                for row in range(len(self)):
                    x[row, 0] = to_bytes(self.scan(row))
                    if on_progress is not None:
                        on_progress(row + 1, len(self))
                # Written beside, then renamed: no half-written file is ever read.
                beside = path.with_suffix(".new.npy")
                np.save(beside, x)
                os.replace(beside, path)
        x = np.load(path, mmap_mode="r")
        ids = self.table["participant_id"].to_numpy(dtype=object)
        return Samples(x, self.table, ids, None, "scan", fingerprint)

    def write_bids(
        self, folder: str | os.PathLike[str], on_progress: OnProgress | None = None
    ) -> Path:
        """Write the scans as a BIDS folder: NIfTI files, `participants.tsv` and the severities.

        Args:
            folder: A new or empty folder.
            on_progress: Called after each scan.

        Returns:
            The folder, which `deconfound.data.open_samples` opens.
        """
        nibabel = import_extra("nibabel", "mri")
        root = Path(folder)
        if root.exists() and (not root.is_dir() or any(root.iterdir())):
            raise OptionError(f"folder must be new or empty; got {str(root)!r}. Write another one.")
        (root / "phenotype").mkdir(parents=True)
        affine = make_affine(self.size)
        for row, person in enumerate(self.table["participant_id"]):
            path = root / person / "anat" / f"{person}_T1w.nii.gz"
            path.parent.mkdir(parents=True)
            nibabel.Nifti1Image(self.scan(row), affine).to_filename(path)
            if on_progress is not None:
                on_progress(row + 1, len(self))
        severity = self.severity.add_prefix("severity_")
        severity.insert(0, "participant_id", self.table["participant_id"])
        severity.to_csv(root / "phenotype" / "severity.tsv", sep="\t", index=False)
        self.table.to_csv(root / "participants.tsv", sep="\t", index=False)
        columns = {name: {"Description": text} for name, text in DESCRIPTIONS.items()}
        maker = {"Name": "deconfound", "Version": deconfound.__version__}
        dataset = {
            "Name": "Simulated cohort",
            "BIDSVersion": "1.9.0",
            "DatasetType": "raw",
            "GeneratedBy": [{**maker, "Parameters": self.settings}],
        }
        for name, content in (("participants", columns), ("dataset_description", dataset)):
            (root / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
        return root

    @cached_property
    def _renderer(self) -> Renderer:
        return Renderer(self.size, self._device)

    def _draws(self, row: int) -> Draws:
        if not 0 <= row < len(self):
            raise OptionError(f"row must lie between 0 and {len(self) - 1}; got {row}.")
        return Draws.of_person((*self._stream, row), self.size)

    def _brain(self, row: int, draws: Draws) -> torch.Tensor:
        person, severity = self.table.iloc[row], self.severity.iloc[row]
        severities = (severity["hiv"], severity["mci"])
        is_man = person["sex"] == "M"
        return self._renderer.brain(person["age"], severities, is_man=is_man, draws=draws)


def simulate_cohort(
    size: int = 64,
    seed: int = 0,
    *,
    independent: bool = False,
    people: int | None = None,
    device: str | torch.device = "cpu",
) -> Cohort:
    """Simulate the paper's cohort: exactly Table 1, and scans that show labels, age, sex and site.

    A scan depends on the seed and the row alone, in any order and, up to rounding, on any device.

    Args:
        size: The number of voxels along each axis.
        seed: Equal seeds give equal cohorts.
        independent: Draw people in whom labels are exactly independent of site, sex and age.
        people: The number of people in proportion to Table 1; None takes its 1,262, or 1,264 if
            they are independent.
        device: Where scans are computed.

    Example:
        >>> cohort = simulate_cohort(size=16, people=20)
        >>> cohort.scan(3).shape, cohort.table["site"].value_counts().to_dict()
        ((16, 16, 16), {'ADNI': 10, 'UCSF': 8, 'SRI': 2})
    """
    faults = []
    if size < SMALLEST:
        faults.append(f"size must be {SMALLEST} or more; got {size}.")
    if seed < 0:
        faults.append(f"seed must be 0 or more; got {seed}.")
    if faults:
        raise OptionError("\n".join(faults))
    drawn = draw_people(seed, independent=independent, people=people)
    return Cohort(drawn, size, seed, independent, torch.device(device))


def to_bytes(scan: NDArray[np.int16]) -> NDArray[np.uint8]:
    """Return a scan in 255 steps, as `deconfound.data.read_scan` gives it from a file."""
    values = scan.astype(np.float32)
    largest = np.float32(np.percentile(values[values > 0], BRIGHT))
    steps: NDArray[np.uint8] = np.rint(255 * np.clip(values / largest, 0, 1)).astype(np.uint8)
    return steps
