"""The paper's MRI experiment on the simulated cohort."""

from deconfound.experiments.mri.plan import ARMS, FULL, QUICK, Plan
from deconfound.experiments.mri.results import Results
from deconfound.experiments.mri.running import run_mri

__all__ = ["ARMS", "FULL", "QUICK", "Plan", "Results", "run_mri"]
