"""The paper's MRI experiment (Section 3.2) on the simulated cohort."""

from collections.abc import Sequence

from deconfound_lab.harness import Cell, Experiment
from deconfound_lab.mri.arms import ARMS, TABLE_ARMS, Arm, MRINet
from deconfound_lab.mri.measures import (
    measure_accuracies,
    measure_associations,
    measure_within_groups,
    pool_folds,
)
from deconfound_lab.mri.report import make_page
from deconfound_lab.mri.training import (
    BATCHES,
    BalancedFocal,
    BrainScale,
    Problem,
    compute_cell,
    fit_cell,
    grid,
    make_cell,
    make_cell_method,
    make_people_cell,
    make_problem,
    make_schedule,
    measure,
    split_people,
)

__all__ = [
    "ARMS",
    "BATCHES",
    "TABLE_ARMS",
    "Arm",
    "BalancedFocal",
    "BrainScale",
    "MRINet",
    "Problem",
    "compute_cell",
    "fit_cell",
    "grid",
    "make_cell",
    "make_cell_method",
    "make_page",
    "make_people_cell",
    "make_problem",
    "make_schedule",
    "measure",
    "measure_accuracies",
    "measure_associations",
    "measure_within_groups",
    "mri_experiment",
    "pool_folds",
    "split_people",
]


def mri_experiment(cells: Sequence[Cell] | None = None) -> Experiment:
    """Return the MRI experiment, with the cells of `grid` or with others."""
    return Experiment("mri", grid() if cells is None else cells, compute_cell, make_page)
