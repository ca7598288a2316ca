"""Table → metadata: which columns are removed and which are kept, and how they become numbers. Numpy only."""

from deconfound.design.balance_report import Balance, LabelReport, NoOverlap, effective_size
from deconfound.design.codecs import Kind, Policy
from deconfound.design.design import Design
from deconfound.design.diagnosis import Diagnosis
from deconfound.design.fitted import Column
from deconfound.design.notes import Assumed, DesignNote
from deconfound.design.table import Table
from deconfound.design.terms import Interaction, Polynomial, Spline, Term, as_term, sources

__all__ = [
    "Assumed",
    "Balance",
    "Column",
    "Design",
    "DesignNote",
    "Diagnosis",
    "Interaction",
    "Kind",
    "LabelReport",
    "NoOverlap",
    "Policy",
    "Polynomial",
    "Spline",
    "Table",
    "Term",
    "as_term",
    "effective_size",
    "sources",
]
