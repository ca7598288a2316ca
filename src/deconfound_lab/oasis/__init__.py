"""Dementia against control on the real scans of OASIS-1, with age and sex as confounds."""

from deconfound_lab.oasis.people import Scanned, read_people, write_people
from deconfound_lab.oasis.plan import ARMS, FULL, QUICK, Plan
from deconfound_lab.oasis.running import run_oasis

__all__ = ["ARMS", "FULL", "QUICK", "Plan", "Scanned", "read_people", "run_oasis", "write_people"]
