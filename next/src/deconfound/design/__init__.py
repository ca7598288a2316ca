"""Designs: from columns of a table to white metadata, and weights that break associations."""

from deconfound.design.balance import Balance, LabelBalance, balance
from deconfound.design.design import Design
from deconfound.design.diagnosis import Diagnosis
from deconfound.design.fitting import Column
from deconfound.design.terms import Interaction, Spline, Term, source_columns

__all__ = [
    "Balance",
    "Column",
    "Design",
    "Diagnosis",
    "Interaction",
    "LabelBalance",
    "Spline",
    "Term",
    "balance",
    "source_columns",
]
