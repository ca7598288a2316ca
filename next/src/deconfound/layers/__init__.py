"""Layers that subtract from features what confounds explain: MDN, R-MDN, PMDN.

All layers compute `r = f − C β_C`; they differ in how they estimate β while the network trains.
`PMDN` is the paper's method in one pass, `AlternatingPMDN` has the two passes of Algorithm 1.
"""

from deconfound.layers.alternating import AlternatingPMDN, alternating_step, split_parameters
from deconfound.layers.arithmetic import Moments
from deconfound.layers.base import MetadataLayer, frozen_statistics
from deconfound.layers.batch import Metadata, WhitenedBatch, check_metadata, check_weight
from deconfound.layers.environment import backward_id, is_recomputing
from deconfound.layers.mdn import MDN
from deconfound.layers.pmdn import PMDN
from deconfound.layers.rmdn import RMDN

__all__ = [
    "MDN",
    "PMDN",
    "RMDN",
    "AlternatingPMDN",
    "Metadata",
    "MetadataLayer",
    "Moments",
    "WhitenedBatch",
    "alternating_step",
    "backward_id",
    "check_metadata",
    "check_weight",
    "frozen_statistics",
    "is_recomputing",
    "split_parameters",
]
