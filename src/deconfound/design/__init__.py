"""Table → metadata: which columns are removed and which are kept, and how they become numbers. Numpy only."""

from deconfound.design.design import Design
from deconfound.design.diagnosis import Diagnosis
from deconfound.design.fitted import Column
from deconfound.design.terms import Interaction, Polynomial, Spline

__all__ = ["Column", "Design", "Diagnosis", "Interaction", "Polynomial", "Spline"]
