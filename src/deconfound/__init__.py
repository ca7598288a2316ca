"""deconfound: networks whose features do not carry known confounders, and a measure of what is left.

Attach with `normalize`, train with your own loop, `audit` what is left; or let `fit` and `compare` train. Importing the
package loads nothing heavy; each name below loads its room when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deconfound.auditing import Audit, audit
    from deconfound.data import example
    from deconfound.design import Balance, Design, Interaction, Polynomial, Spline
    from deconfound.design.balance import balance
    from deconfound.layers import (
        MDN,
        PMDN,
        RMDN,
        AlternatingPMDN,
        Erase,
        JointPMDN,
        alternating_step,
        frozen_statistics,
        split_parameters,
    )
    from deconfound.surgery import NormalizedModel, normalize
    from deconfound.training.comparison import compare
    from deconfound.training.fitting import fit
    from deconfound.training.predicting import predict

__version__ = "0.2.0"

_HOMES = {
    "audit": "deconfound.auditing",
    "Audit": "deconfound.auditing",
    "Balance": "deconfound.design",
    "balance": "deconfound.design.balance",
    "compare": "deconfound.training.comparison",
    "example": "deconfound.data",
    "fit": "deconfound.training.fitting",
    "predict": "deconfound.training.predicting",
    "Design": "deconfound.design",
    "Interaction": "deconfound.design",
    "Polynomial": "deconfound.design",
    "Spline": "deconfound.design",
    "MDN": "deconfound.layers",
    "PMDN": "deconfound.layers",
    "RMDN": "deconfound.layers",
    "AlternatingPMDN": "deconfound.layers",
    "Erase": "deconfound.layers",
    "JointPMDN": "deconfound.layers",
    "alternating_step": "deconfound.layers",
    "frozen_statistics": "deconfound.layers",
    "split_parameters": "deconfound.layers",
    "normalize": "deconfound.surgery",
    "NormalizedModel": "deconfound.surgery",
}

_ROOMS = (
    "auditing",
    "data",
    "design",
    "errors",
    "layers",
    "methods",
    "metrics",
    "networks",
    "sklearn",
    "surgery",
    "training",
)

__all__ = [
    "MDN",
    "PMDN",
    "RMDN",
    "AlternatingPMDN",
    "Audit",
    "Balance",
    "Design",
    "Erase",
    "Interaction",
    "JointPMDN",
    "NormalizedModel",
    "Polynomial",
    "Spline",
    "alternating_step",
    "audit",
    "balance",
    "compare",
    "example",
    "fit",
    "frozen_statistics",
    "normalize",
    "predict",
    "split_parameters",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES and name not in _ROOMS:
        from deconfound.renamed import no_attribute

        raise no_attribute("deconfound", name)
    value = import_module(f"deconfound.{name}") if name in _ROOMS else getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
