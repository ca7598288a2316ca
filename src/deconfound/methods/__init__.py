"""Methods: whole ways to train a network, a class each. A new method is one file and one line here."""

from __future__ import annotations

from importlib import import_module

from deconfound.errors import OptionError, did_you_mean
from deconfound.methods.base import (
    Criterion,
    Loss,
    Method,
    Setting,
    StratumCriterion,
    TrainingBatch,
    task_loss,
    weighted_mean,
)
from deconfound.methods.last_layer import refit_last_layer
from deconfound.methods.wscores import WScores

METHODS: dict[str, str] = {
    "none": "none:NoMethod",
    "batchnorm": "batchnorm:BatchNormMethod",
    "adversarial": "adversarial:AdversarialMethod",
    "mdn": "layered:MDNMethod",
    "pmdn": "layered:PMDNMethod",
    "pmdn-alternating": "pmdn_alternating:AlternatingPMDNMethod",
    "pmdn-joint": "layered:JointPMDNMethod",
    "rmdn": "layered:RMDNMethod",
    "dependence": "dependence:DependenceMethod",
    "erase": "erase:EraseMethod",
    "input-residualize": "input_residualize:InputResidualizeMethod",
    "covariate": "covariate:CovariateMethod",
    "combat": "combat:ComBatMethod",
    "group-dro": "group_dro:GroupDROMethod",
    "last-layer": "last_layer:LastLayerMethod",
}


def method(name: str) -> type[Method]:
    """The class of a method by its name."""
    if name not in METHODS:
        raise OptionError(f"method must be one of {', '.join(METHODS)}; got {name!r}.{did_you_mean(name, METHODS)}")
    module, kind = METHODS[name].split(":")
    found: type[Method] = getattr(import_module(f"deconfound.methods.{module}"), kind)
    return found


__all__ = [
    "METHODS",
    "Criterion",
    "Loss",
    "Method",
    "Setting",
    "StratumCriterion",
    "TrainingBatch",
    "WScores",
    "method",
    "refit_last_layer",
    "task_loss",
    "weighted_mean",
]
