"""Dementia against control on the real scans of OASIS-1, with age and sex as confounds."""

from deconfound_lab.oasis.people import Scanned, read_people, write_people

__all__ = ["Scanned", "read_people", "write_people"]
