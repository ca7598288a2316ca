"""Remove known confounds from neural networks, and measure what is left.

This page is the whole public interface. Names are imported when they are first used, so that
`import deconfound` takes no longer than an empty module.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deconfound.attach import NormalizedModel as NormalizedModel
    from deconfound.attach import normalize as normalize
    from deconfound.auditing import Audit as Audit
    from deconfound.auditing import audit as audit
    from deconfound.data import example as example
    from deconfound.design import Balance as Balance
    from deconfound.design import Design as Design
    from deconfound.design import Interaction as Interaction
    from deconfound.design import Spline as Spline
    from deconfound.design import balance as balance
    from deconfound.layers import MDN as MDN
    from deconfound.layers import PMDN as PMDN
    from deconfound.layers import RMDN as RMDN
    from deconfound.metrics import Resampling as Resampling
    from deconfound.runs import compare as compare
    from deconfound.runs import fit as fit
    from deconfound.runs import predict as predict
    from deconfound.table import read_table as read_table

_PACKAGE_OF_NAME = {
    # Describe the table of people.
    "read_table": "table",
    "Design": "design",
    "Spline": "design",
    "Interaction": "design",
    "balance": "design",
    "Balance": "design",
    # Put layers into a network.
    "normalize": "attach",
    "NormalizedModel": "attach",
    "MDN": "layers",
    "RMDN": "layers",
    "PMDN": "layers",
    # Train with cross-validation, from a config.
    "fit": "runs",
    "compare": "runs",
    "predict": "runs",
    # Measure what is left.
    "audit": "auditing",
    "Audit": "auditing",
    "Resampling": "metrics",
    # Try it on real data.
    "example": "data",
}
_PACKAGES = (
    "adjust",
    "attach",
    "auditing",
    "data",
    "design",
    "errors",
    "layers",
    "methods",
    "metrics",
    "networks",
    "runs",
    "sklearn",
    "table",
    "training",
)

__all__ = [*_PACKAGE_OF_NAME]
__version__ = "1.0.0.dev0"


def __getattr__(name: str) -> Any:
    if name in _PACKAGE_OF_NAME:
        value = getattr(import_module(f"deconfound.{_PACKAGE_OF_NAME[name]}"), name)
        globals()[name] = value
        return value
    if name in _PACKAGES:
        return import_module(f"deconfound.{name}")
    raise AttributeError(f"module 'deconfound' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_PACKAGE_OF_NAME, *_PACKAGES, "__version__"])
