"""Attaching layers to a network: select → plan → insert → remove; carrying metadata; collecting features."""

from deconfound.surgery.adapt import Adaptation, SiteOffset
from deconfound.surgery.attach import normalize
from deconfound.surgery.collect import Collector, collect, last_linear
from deconfound.surgery.model import NormalizedModel
from deconfound.surgery.norms import insert_norms
from deconfound.surgery.plan import Place, Plan

__all__ = [
    "Adaptation",
    "Collector",
    "NormalizedModel",
    "Place",
    "Plan",
    "SiteOffset",
    "collect",
    "insert_norms",
    "last_linear",
    "normalize",
]
