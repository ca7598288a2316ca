"""Dementia against control on the real scans of OASIS-1, with age and sex as confounds."""
