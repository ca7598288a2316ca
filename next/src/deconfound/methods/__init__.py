"""Ways of training a network that keep confounds out of it.

`METHODS` lists them by name, and `make_method` puts a network under one of them. A method of your
own is a subclass of `Method`, or of `LayeredMethod` for another kind of layer.
"""

from deconfound.methods.base import (
    Batch,
    Batches,
    Criterion,
    MakeOptimizer,
    Method,
    Setting,
    Update,
    default_modules,
)
from deconfound.methods.layered import LayeredMethod
from deconfound.methods.registry import METHODS, find_method, make_method, method_options

__all__ = [
    "METHODS",
    "Batch",
    "Batches",
    "Criterion",
    "LayeredMethod",
    "MakeOptimizer",
    "Method",
    "Setting",
    "Update",
    "default_modules",
    "find_method",
    "make_method",
    "method_options",
]
