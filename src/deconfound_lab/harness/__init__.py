"""What all experiments share: plan → cells → store with provenance → tables, figures, page.

An experiment says what its cells are, how one is computed, what the finished ones amount to and what its page shows
(`experiment`); the harness runs them, stores them and writes the page. It knows nothing of images, methods or measures.
"""

from deconfound_lab.harness.experiment import Cells, Experiment, Progress, Signals, run_experiment
from deconfound_lab.harness.page import Figure, Page, Section, Table
from deconfound_lab.harness.store import Cell, Finished, Store

__all__ = [
    "Cell",
    "Cells",
    "Experiment",
    "Figure",
    "Finished",
    "Page",
    "Progress",
    "Section",
    "Signals",
    "Store",
    "Table",
    "run_experiment",
]
