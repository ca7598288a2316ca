"""The simulated cohort: the paper's Table 1 with volumes whose truth is known."""
