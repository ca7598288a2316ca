"""The commands of the experiments, found by `deconfound` through entry points."""

from deconfound_lab.cli.bench import bench
from deconfound_lab.cli.cohort import cohort
from deconfound_lab.cli.demo import demo
from deconfound_lab.cli.reproduce import reproduce

__all__ = ["bench", "cohort", "demo", "reproduce"]
