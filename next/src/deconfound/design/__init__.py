"""Designs: from the columns of a table to whitened metadata, and weights that break associations."""

from deconfound.design.balance import Balance, LabelBalance, balance
from deconfound.design.design import Column, Design
from deconfound.design.diagnosis import Diagnosis
from deconfound.design.terms import Interaction, Spline

__all__ = [
    "Balance",
    "Column",
    "Design",
    "Diagnosis",
    "Interaction",
    "LabelBalance",
    "Spline",
    "balance",
]
