"""Training: one definition of step, validation and best epoch, and two drivers over it.

`train_in_memory` and what belongs to it need torch alone; a run on disk (`fit`, `compare`) needs the `train` extra. All
names are imported when they are first used.
"""

from importlib import import_module
from typing import Any

_EXPORTS = {
    "BestEpoch": "step",
    "Epoch": "schedule",
    "InMemoryTrainer": "in_memory",
    "Predictions": "samples",
    "Samples": "samples",
    "Schedule": "schedule",
    "TrainingResult": "schedule",
    "bce": "losses",
    "cross_entropy": "losses",
    "focal": "losses",
    "mse": "losses",
    "predict_in_memory": "samples",
    "train_in_memory": "in_memory",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)


def __dir__() -> list[str]:
    return __all__
