"""Training: one definition of step, validation and best epoch, two drivers over it, and runs on disk.

`train_in_memory` and what belongs to it need torch alone; a run on disk (`fit`, `compare`, `predict`) needs the `train`
extra. All names are imported when they are first used.
"""

from typing import TYPE_CHECKING

from deconfound.renamed import imported_when_used

if TYPE_CHECKING:
    from deconfound.training.checks import listed_faults
    from deconfound.training.choosing import train_choosing_weight
    from deconfound.training.comparison import Comparison, compare
    from deconfound.training.config import Config
    from deconfound.training.config_file import read_config
    from deconfound.training.fitting import FitResult, fit
    from deconfound.training.in_memory import InMemoryTrainer, train_in_memory
    from deconfound.training.intervals import Interval, difference, interval
    from deconfound.training.jobs import Progress
    from deconfound.training.losses import bce, cross_entropy, focal, mse
    from deconfound.training.origin import commit, provenance
    from deconfound.training.outputs import RunOutputs, read_run_outputs
    from deconfound.training.predicting import RunPredictions, predict
    from deconfound.training.samples import Predictions, Samples, predict_in_memory
    from deconfound.training.schedule import Epoch, Schedule, TrainingResult
    from deconfound.training.splits import Fold, deal, kfold, stratum_codes
    from deconfound.training.start import Start, start_config
    from deconfound.training.step import BestEpoch, threads
    from deconfound.training.workers import Cluster

_FILES = {
    "checks": "listed_faults",
    "choosing": "train_choosing_weight",
    "comparison": "Comparison compare",
    "config": "Config",
    "config_file": "read_config",
    "fitting": "FitResult fit",
    "in_memory": "InMemoryTrainer train_in_memory",
    "intervals": "Interval difference interval",
    "jobs": "Progress",
    "losses": "bce cross_entropy focal mse",
    "origin": "commit provenance",
    "outputs": "RunOutputs read_run_outputs",
    "predicting": "RunPredictions predict",
    "samples": "Predictions Samples predict_in_memory",
    "schedule": "Epoch Schedule TrainingResult",
    "splits": "Fold deal kfold stratum_codes",
    "start": "Start start_config",
    "step": "BestEpoch threads",
    "workers": "Cluster",
}
__getattr__, __dir__ = imported_when_used(__name__, _FILES)

__all__ = [
    "BestEpoch",
    "Cluster",
    "Comparison",
    "Config",
    "Epoch",
    "FitResult",
    "Fold",
    "InMemoryTrainer",
    "Interval",
    "Predictions",
    "Progress",
    "RunOutputs",
    "RunPredictions",
    "Samples",
    "Schedule",
    "Start",
    "TrainingResult",
    "bce",
    "commit",
    "compare",
    "cross_entropy",
    "deal",
    "difference",
    "fit",
    "focal",
    "interval",
    "kfold",
    "listed_faults",
    "mse",
    "predict",
    "predict_in_memory",
    "provenance",
    "read_config",
    "read_run_outputs",
    "start_config",
    "stratum_codes",
    "threads",
    "train_choosing_weight",
    "train_in_memory",
]
