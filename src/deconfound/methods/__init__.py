"""Methods: whole ways to train a network, one file each. A new method is one file and one line here."""

from __future__ import annotations

import difflib
from importlib import import_module

from deconfound.errors import OptionError
from deconfound.methods.base import Loss, Method, Setting, TrainingBatch

METHODS: dict[str, str] = {
    "none": "none:Plain",
    "batchnorm": "batchnorm:Batch",
    "adversarial": "adversarial:Adversarial",
    "mdn": "mdn:BatchFit",
    "pmdn": "pmdn:OnePass",
    "pmdn-alternating": "pmdn_alternating:Alternating",
    "rmdn": "rmdn:Recursive",
    "input-residualize": "input_residualize:InputResidualize",
    "covariate": "covariate:Covariate",
    "combat": "combat:ComBat",
}


def method(name: str) -> type[Method]:
    """The class of a method by its name."""
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise OptionError(f"method must be one of {', '.join(METHODS)}; got {name!r}.{hint}")
    module, kind = METHODS[name].split(":")
    found: type[Method] = getattr(import_module(f"deconfound.methods.{module}"), kind)
    return found


__all__ = ["METHODS", "Loss", "Method", "Setting", "TrainingBatch", "method"]
