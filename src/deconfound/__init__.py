"""deconfound: networks whose features do not carry known confounders, and a measure of what is left.

Attach with `normalize`, train with your own loop, `audit` what is left; or let `fit` and `compare` train. Importing the
package loads nothing heavy; each name below loads its room when it is first used.
"""

from typing import TYPE_CHECKING

from deconfound.renamed import imported_when_used

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
    from deconfound.training import compare, fit, predict

__version__ = "0.2.0"

_ROOMS = "auditing data design errors layers methods metrics networks sklearn surgery training"
_FILES = {
    "auditing": "Audit audit",
    "data": "example",
    "design": "Balance Design Interaction Polynomial Spline",
    "design.balance": "balance",
    "layers": "MDN PMDN RMDN AlternatingPMDN Erase JointPMDN alternating_step frozen_statistics split_parameters",
    "surgery": "NormalizedModel normalize",
    "training": "compare fit predict",
}
__getattr__, __dir__ = imported_when_used(__name__, _FILES, _ROOMS)

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
