"""The paper's MRI experiment on the simulated cohort."""

from deconfound_lab.mri.plan import ARMS, FULL, QUICK, Plan
from deconfound_lab.mri.results import Results
from deconfound_lab.mri.running import run_mri

__all__ = ["ARMS", "FULL", "QUICK", "Plan", "Results", "run_mri"]
