"""The paper's MRI experiment (Section 3.2) on the simulated cohort."""
