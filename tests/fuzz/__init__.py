"""Hostile input without end: `python -m tests.fuzz --seconds 600` for all targets, and a short part of it in the suite.

The rule for every target: a `DeconfoundError`, or a right number. A raw exception, a warning of another library, or a
wrong number is a failure. A target is a function that takes hypothesis' `data`; what it returns is how the input was
taken ("refused" or "read"), so that a target that only ever refuses is noticed.
"""

from tests.fuzz import audits, files, layers, measures, tables  # noqa: F401 - each registers its targets
from tests.fuzz.harness import TARGETS, fuzz

__all__ = ["TARGETS", "fuzz"]
