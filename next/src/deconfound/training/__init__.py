"""Training: one loop for all methods, and the way of one fold from samples to test outputs."""

from deconfound.training.augment import Augment
from deconfound.training.estimators import EstimatorMethod
from deconfound.training.fold import FittedFold, fit_fold, fit_model
from deconfound.training.inputs import Inputs
from deconfound.training.launcher import Launcher, Plain, fabric
from deconfound.training.loop import OnValidation, Progress, outputs, train
from deconfound.training.losses import (
    Focal,
    binary_cross_entropy,
    cross_entropy,
    make_criterion,
    mean_squared_error,
)
from deconfound.training.model import Architecture, FittedModel
from deconfound.training.part import Part
from deconfound.training.ranking import Ranking
from deconfound.training.recipe import Recipe
from deconfound.training.schedule import Schedule
from deconfound.training.splits import Fold, split_folds
from deconfound.training.tasks import Task, Units, read_task

__all__ = [
    "Architecture",
    "Augment",
    "EstimatorMethod",
    "FittedFold",
    "FittedModel",
    "Focal",
    "Fold",
    "Inputs",
    "Launcher",
    "OnValidation",
    "Part",
    "Plain",
    "Progress",
    "Ranking",
    "Recipe",
    "Schedule",
    "Task",
    "Units",
    "binary_cross_entropy",
    "cross_entropy",
    "fabric",
    "fit_fold",
    "fit_model",
    "make_criterion",
    "mean_squared_error",
    "outputs",
    "read_task",
    "split_folds",
    "train",
]
