"""What the sections of a benchmark share: jobs, rows, and metadata to measure with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deconfound.design import Design
from deconfound_lab.benchmarks.timing import Clock

Row = dict[str, Any]
Result = Mapping[str, Any]
"""The content of `<device>.json`."""


@dataclass(frozen=True)
class Job:
    """What is compared with one another stands in one job, so that its ratios come from the same minute.

    Attributes:
        section: The table that its rows belong to.
        name: What is measured, for people; unique within the section.
        rows: Measures.
        pieces: Parts of it that several processes can precompile; none if there is nothing to compile.
        late: Whether it waits for all that are not: it takes long, or could spoil what comes after it.
    """

    section: str
    name: str
    rows: Callable[[Clock], Iterable[Row]]
    pieces: tuple[Callable[[Clock], object], ...] = ()
    late: bool = False

    @property
    def key(self) -> str:
        """Its name among all jobs."""
        return f"{self.section}: {self.name}"


def rows(result: Result, section: str) -> list[Row]:
    """All rows of a section."""
    return [row for job in result["jobs"].values() if job["section"] == section for row in job["rows"]]


def people(n: int, sites: int, seed: int = 0) -> dict[str, list[float] | list[str]]:
    """Age, sex, site and label of `n` people at some sites, drawn at random."""
    rng = np.random.default_rng(seed)
    return {
        "age": rng.normal(60, 12, n).tolist(),
        "sex": rng.choice(["f", "m"], n).tolist(),
        "site": [f"s{k}" for k in rng.integers(0, sites, n)],
        "label": rng.integers(0, 2, n).astype(float).tolist(),
    }


def metadata(n: int, sites: int = 4, device: str = "cpu", seed: int = 0) -> tuple[Design, Tensor]:
    """A design over 2 + (sites − 1) confound columns and a label, and the metadata of `n` rows."""
    table = people(max(n, 20 * sites), sites, seed)
    design = Design(confounds=["age", "sex", "site"], keep=["label"]).fit(table)
    return design, torch.as_tensor(design.encode(table)[:n]).to(device)
