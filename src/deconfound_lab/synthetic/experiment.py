"""The paper's synthetic experiment (Section 3.1): every method at every batch size, and Figure 2 from the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from deconfound_lab.harness import Cell, Experiment, Finished, Page, Signals
from deconfound_lab.harness.provenance import distinct
from deconfound_lab.synthetic.page import make_page
from deconfound_lab.synthetic.plan import Setup, full_grid, quick_grid
from deconfound_lab.synthetic.tables import Results
from deconfound_lab.synthetic.training import TEST_PER_GROUP, run_setup


class SyntheticExperiment(Experiment):
    """The cells of a grid.

    Args:
        quick: The small grid for two cores, with smaller test sets.
        device: Where it is trained.
        setups: Used instead of the full or the quick grid.
        test_per_group: Test images in each group.
    """

    modules: ClassVar[tuple[str, ...]] = ("synthetic.training",)

    def __init__(
        self,
        quick: bool = False,
        device: str = "cpu",
        *,
        setups: Sequence[Setup] | None = None,
        test_per_group: int | None = None,
    ) -> None:
        self.setups = list(setups) if setups is not None else quick_grid() if quick else full_grid()
        self.test_per_group = test_per_group or (1000 if quick else TEST_PER_GROUP)
        self.device = device

    @property
    def definition(self) -> Mapping[str, Any]:
        """The size of the test sets; all else stands in the cells."""
        return {"test_per_group": self.test_per_group}

    def cells(self) -> list[Cell]:
        """One for each setup."""
        return [Cell(setup.key, setup.to_dict()) for setup in self.setups]

    def compute(self, cell: Cell, signals: Signals) -> dict[str, Any]:
        """Train all seeds of a setup."""
        setup = Setup.from_dict(cell.definition)
        return {"seeds": run_setup(setup, torch.device(self.device), signals.tick, self.test_per_group)}

    def summarise(self, finished: Mapping[str, Finished], failures: Mapping[str, str]) -> dict[str, Any] | None:
        """Every finished cell with all its numbers."""
        if not finished:
            return None
        sources = distinct(each.provenance for each in finished.values())
        cells = [
            {
                "cell": setup.to_dict(),
                "seeds": finished[setup.key].result["seeds"],
                "seconds": finished[setup.key].seconds,
                "provenance": sources.index(finished[setup.key].provenance),
            }
            for setup in self.setups
            if setup.key in finished
        ]
        missing = [setup.key for setup in self.setups if setup.key not in finished]
        return {
            **self.definition, "provenance": sources, "cells": cells, "failures": dict(failures), "missing": missing,
        }  # fmt: skip

    @classmethod
    def page(cls, results: Mapping[str, Any], folder: Path) -> Page:
        """Figure 2, and the tables in the order of the paper's argument."""
        return make_page(Results(results), cls.modules)
