"""Runs: from a config to folds on disk, and from there to predictions, comparisons and reports."""

from deconfound.runs.compare import (
    Comparison,
    Line,
    compare,
    compare_folds,
    default_variants,
)
from deconfound.runs.config import Config
from deconfound.runs.fit import fit
from deconfound.runs.init import Proposal, propose
from deconfound.runs.page import render_comparison, render_run
from deconfound.runs.predict import predict
from deconfound.runs.problem import Problem, prepare
from deconfound.runs.run import Run

__all__ = [
    "Comparison",
    "Config",
    "Line",
    "Problem",
    "Proposal",
    "Run",
    "compare",
    "compare_folds",
    "default_variants",
    "fit",
    "predict",
    "prepare",
    "propose",
    "render_comparison",
    "render_run",
]
