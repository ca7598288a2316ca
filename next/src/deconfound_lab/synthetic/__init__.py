"""The paper's synthetic experiment (Section 3.1): images with a known best accuracy."""

from collections.abc import Sequence

from deconfound_lab.harness import Cell, Experiment
from deconfound_lab.synthetic.experiment import (
    ARMS,
    Problem,
    fit_cell,
    grid,
    make_cell,
    make_cell_method,
    make_problem,
    measure,
    mode_gap,
    predict,
    train_cell,
)
from deconfound_lab.synthetic.images import (
    CEILING,
    CEILING_WITH_CONFOUND,
    SyntheticImages,
    bump,
    synthetic_images,
)
from deconfound_lab.synthetic.networks import NETWORKS, SyntheticCNN
from deconfound_lab.synthetic.report import make_page

__all__ = [
    "ARMS",
    "CEILING",
    "CEILING_WITH_CONFOUND",
    "NETWORKS",
    "Problem",
    "SyntheticCNN",
    "SyntheticImages",
    "bump",
    "fit_cell",
    "grid",
    "make_cell",
    "make_cell_method",
    "make_page",
    "make_problem",
    "measure",
    "mode_gap",
    "predict",
    "synthetic_experiment",
    "synthetic_images",
    "train_cell",
]


def synthetic_experiment(cells: Sequence[Cell] | None = None) -> Experiment:
    """Return the synthetic experiment, with the cells of `grid` or with others."""
    return Experiment("synthetic", grid() if cells is None else cells, train_cell, make_page)
