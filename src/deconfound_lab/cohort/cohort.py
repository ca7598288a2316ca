"""The simulated cohort as a source of samples: the paper's Table 1, with a truth that is known."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from deconfound.data import (
    Packing,
    StoredVolumes,
    cache_root,
    check_packing,
    digest,
    pack,
    robust_scale,
    store_volumes,
    unpack,
)
from deconfound.errors import OptionError
from deconfound_lab.cohort.effects import coefficients, load_template
from deconfound_lab.cohort.people import People, draw_people
from deconfound_lab.cohort.rendering import Renderer, draw
from deconfound_lab.cohort.strengths import Strengths, Variant, variant_of

VERSION = 1
"""Raised whenever equal arguments give other volumes, so that kept ones are not taken for them."""

MIN_SIZE = 8


class Cohort:
    """Simulated people and their volumes; see `deconfound.data.source.Source`. Made by `simulate_cohort`.

    Volumes are drawn when they are read; `keep` writes them to the cache once, and reads them from there.

    Attributes:
        table: `participant_id`, `person`, `site`, `group`, `sex`, `age`, `hiv`, `mci`, one row per person.
        severity: Of `hiv` and `mci`: what the volumes show of the labels. No model may see it.
        truth: `age` and `site` as the volumes show them, also where the table is wrong.
        shape: `(1, size, size, size)`.
        settings: All that the volumes depend on, as plain values.
        fingerprint: Their digest.
    """

    def __init__(
        self,
        people: People,
        renderer: Renderer,
        stream: tuple[int, int],
        dtype: Packing,
        settings: dict[str, object],
        variant: Variant,
    ) -> None:
        self.table: Mapping[str, Any] = people.table
        self.severity, self.truth = people.severity, people.truth
        self.strengths = renderer.strengths
        self.size = renderer.size
        self.shape: tuple[int, ...] = (1, *[renderer.size] * 3)
        self.fingerprint = digest([settings, dtype])
        self.dtype: Packing = dtype
        self.settings = settings
        self._renderer, self._stream, self._variant = renderer, stream, variant
        self._stored: StoredVolumes | None = None

    def __len__(self) -> int:
        return len(self.table["age"])

    def read(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """The volumes of these rows, `(n, 1, size, size, size)` in 0 … 1, scaled and kept as `open_scans` does."""
        if self._stored is not None:
            return self._stored.read(np.asarray(rows))
        return np.stack([unpack(self._packed(int(row))) for row in rows])[:, None]

    def scans(self, rows: NDArray[Any]) -> NDArray[np.int16]:
        """The same people as their scanners give them, in whole numbers, `(n, size, size, size)`."""
        return np.stack([self._scan(int(row)).to(torch.int16).cpu().numpy() for row in rows])

    def brains(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """The same people as tissue, before a scanner sees them, `(n, size, size, size)`."""
        return np.stack([self._brain(int(row))[0].cpu().numpy() for row in rows])

    def keep(self, cache: str | Path | None = None, *, jobs: int | None = None, progress: bool = True) -> Cohort:
        """Write all volumes to the cache, unless they are there, and read them from it from now on.

        Args:
            cache: The folder; `DECONFOUND_CACHE` or the user's cache folder by default.
            jobs: Threads that draw volumes; one per core by default.
            progress: Whether a bar is shown.
        """
        jobs = jobs or os.cpu_count() or 1
        # A table that is wrong about people has their volumes still.
        shown = {name: value for name, value in self.settings.items() if name != "variant"}
        if changes := replace(self._variant, swapped=0.0).changes():
            shown["variant"] = changes
        digests = [digest([shown, row]) for row in range(len(self))]
        size = (self.size,) * 3
        with single_threaded(jobs):
            stored = store_volumes(
                cache_root(cache), {"kind": "cohort"}, digests, size, self.dtype, self._packed,
                what="simulating", jobs=jobs, progress=progress,
            )  # fmt: skip
        self._stored = stored.volumes
        return self

    def write_bids(self, folder: str | Path, *, jobs: int | None = None, progress: bool = True) -> Path:
        """Write the scans as a BIDS folder for `open_scans`; see `deconfound_lab.cohort.cohort_files.write_bids`."""
        from deconfound_lab.cohort.cohort_files import write_bids

        return write_bids(self, folder, jobs=jobs, progress=progress)

    def map_scans(self, jobs: int | None = None) -> Iterator[NDArray[np.int16]]:
        """Every person's scan in the order of the table, drawn by several threads."""
        jobs = jobs or os.cpu_count() or 1
        with single_threaded(jobs), ThreadPoolExecutor(jobs) as pool:
            for first in range(0, len(self), 4 * jobs):  # a few at a time, so that memory stays small
                rows = range(first, min(first + 4 * jobs, len(self)))
                yield from pool.map(lambda row: self.scans(np.array([row]))[0], rows)

    def _packed(self, row: int) -> NDArray[Any]:
        return pack(robust_scale(self._scan(row).cpu().numpy()), self.dtype)

    def _brain(self, row: int) -> tuple[torch.Tensor, Any]:
        draws = draw((*self._stream, row), self.size)
        one = slice(row, row + 1)
        tissue, motion = coefficients(
            self.truth["age"][one],
            self.severity["mci"][one],
            self.severity["hiv"][one],
            draws.modes[None],
            self.strengths,
            self._variant,
        )
        return self._renderer.brain(tissue[0], motion[0], self.table["sex"][row] == "M", draws), draws

    def _scan(self, row: int) -> torch.Tensor:
        if not 0 <= row < len(self):
            raise OptionError(f"rows must lie between 0 and {len(self) - 1}; got {row}.")
        brain, draws = self._brain(row)
        return self._renderer.scan(brain, str(self.truth["site"][row]), draws)


def simulate_cohort(
    size: int = 64,
    seed: int = 0,
    *,
    independent: bool = False,
    people: int | None = None,
    strengths: Strengths | None = None,
    anatomy: str = "procedural",
    older: float = 0.0,
    variant: str | Variant | None = None,
    dtype: Packing = "uint8",
    device: str | torch.device = "cpu",
) -> Cohort:
    """Simulate the paper's cohort: exactly Table 1, with volumes that show labels, age, sex and site.

    A volume depends on the seed and the person's row alone, in whatever order and on whatever device it is drawn (up to
    rounding).

    Args:
        size: Edge of the cubic volumes.
        seed: Equal seeds give equal cohorts.
        independent: Draw a test set in which labels are independent of site, sex and age, exactly.
        people: How many; Table 1's 1,262 by default (1,264 if `independent`), else in proportion.
        strengths: The sizes of the effects; the fixed ones by default.
        anatomy: "procedural" (no extra), or "icbm152" (the maps that nilearn ships).
        older: By how many years impaired people are older within a site; the paper does not say.
        variant: A `Variant` or the name of one: "curved-age", "age-disease", "sex-tied", "unseen-site", "swapped".
        dtype: How voxels are kept: "uint8" or "float16".
        device: Where volumes are computed.

    Example:
        >>> cohort = simulate_cohort(size=16, people=20)
        >>> cohort.read([3, 1]).shape, sorted(set(cohort.table["site"]))
        ((2, 1, 16, 16, 16), ['ADNI', 'SRI', 'UCSF'])
    """
    check_packing(dtype)
    if size < MIN_SIZE:
        raise OptionError(f"size must be at least {MIN_SIZE}; got {size}.")
    if seed < 0:
        raise OptionError(f"seed must not be negative; got {seed}.")
    place = _device(device)
    strengths = strengths or Strengths()
    chosen = variant_of(variant).reaching(independent)
    drawn = draw_people(seed, strengths, independent=independent, people=people, older=older, variant=chosen)
    renderer = Renderer(load_template(anatomy, size), strengths, size, place)
    count = len(drawn.table["age"])
    settings: dict[str, object] = {
        "version": VERSION,
        "size": size,
        "seed": seed,
        "independent": independent,
        "people": count,
        "anatomy": anatomy,
        "older": older,
        "strengths": strengths.to_dict(),
    }
    if chosen.changes():
        settings["variant"] = chosen.changes()
    return Cohort(drawn, renderer, (seed, int(independent)), dtype, settings, chosen)


def _device(name: str | torch.device) -> torch.device:
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # torch without CUDA says so by an assertion
        reason = str(error).split("\n")[0].rstrip(".")
        raise OptionError(f"device must be one of torch's that is here; got {str(name)!r} ({reason}).") from error


@contextmanager
def single_threaded(jobs: int) -> Iterator[None]:
    """One torch thread for each of several workers, which otherwise wait for each other."""
    before = torch.get_num_threads()
    if jobs > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
