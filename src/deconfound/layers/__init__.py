"""The layers that remove confounds from features: state and nothing else; the arithmetic is in `functional`."""

from deconfound.layers.alternating import AlternatingPMDN, JointPMDN, alternating_step, split_parameters
from deconfound.layers.base import MetadataLayer
from deconfound.layers.erase import Erase, ErasureReport
from deconfound.layers.frozen import frozen_statistics
from deconfound.layers.mdn import MDN
from deconfound.layers.pmdn.layer import PMDN
from deconfound.layers.rmdn import RMDN

__all__ = [
    "MDN",
    "PMDN",
    "RMDN",
    "AlternatingPMDN",
    "Erase",
    "ErasureReport",
    "JointPMDN",
    "MetadataLayer",
    "alternating_step",
    "frozen_statistics",
    "split_parameters",
]
