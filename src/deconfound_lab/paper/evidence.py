"""What the paper's statements are judged by: the committed results, and the verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deconfound.data import read_json
from deconfound_lab.mri.results import Line
from deconfound_lab.mri.results import Results as MriResults
from deconfound_lab.synthetic.tables import Results as SyntheticResults
from deconfound_lab.synthetic.tables import of

HOLDS, PART, NOT, OPEN = "holds", "holds in part", "**does not hold here**", "open"


class NotRun(Exception):
    """What a statement is judged by is not among the committed results."""


class ByBatch(dict[int, float]):
    """A measure by batch size; what was not run raises `NotRun`."""

    def __missing__(self, batch: int) -> float:
        raise NotRun


@dataclass(frozen=True)
class Evidence:
    """The committed results that figures are taken from."""

    synthetic: SyntheticResults
    mri: MriResults
    bench: Sequence[Mapping[str, Any]]
    networks: SyntheticResults

    @classmethod
    def read(cls, folder: Path) -> Evidence:
        """From `docs/results`; other networks may not have been run."""
        networks = folder / "synthetic-networks" / "results.json"
        return cls(
            SyntheticResults(read_json(folder / "synthetic" / "results.json")),
            MriResults.from_dict(read_json(folder / "mri" / "results.json")),
            [read_json(path) for path in sorted((folder / "performance").glob("*.json"))],
            SyntheticResults(read_json(networks) if networks.exists() else {"cells": []}),
        )

    def along(self, method: str, measure: str) -> ByBatch:
        """A measure of a method on synthetic images by batch size: ours refitted, the others as they are published."""
        pairs = zip(self.synthetic.batches(), self.synthetic.along(method), strict=True)
        when = "best" if method == "pmdn" else "as_trained"
        found = ByBatch({batch: of(cell, measure, when).mean for batch, cell in pairs if cell})
        if not found:
            raise NotRun
        return found

    def cell(self, measure: str, when: str, method: str, **wanted: Any) -> float:
        """A measure of one cell on synthetic images; of another network, where one is named."""
        found = (self.networks if "network" in wanted else self.synthetic).find(method, **wanted)
        if found is None:
            raise NotRun
        return of(found, measure, when).mean

    def line(self, batch: int, arm: str) -> Line:
        """An arm of the MRI experiment: ours refitted, the others as they are published."""
        found = self.mri.find(batch, arm, "refitted" if arm == "pmdn" else "as trained")
        if found is None:
            raise NotRun
        return found

    def batches(self, *arms: str, folds: int = 1) -> list[int]:
        """The batch sizes at which all of these arms are trained, in at least so many folds."""
        lines = {batch: [self.mri.find(batch, arm) for arm in arms] for batch in self.mri.batches}
        found = [batch for batch, own in lines.items() if all(line and len(line.trials) >= folds for line in own)]
        if not found:
            raise NotRun
        return found


Finding = tuple[str, str, str]
"""Our figures, the verdict, and the reason."""


def answer(holds: Sequence[bool]) -> str:
    return HOLDS if all(holds) else PART if any(holds) else NOT


def span(values: Mapping[int, float], form: str = ".1%") -> str:
    low, high = f"{min(values.values()):{form}}", f"{max(values.values()):{form}}"
    return low if low == high else f"{low} to {high}"
