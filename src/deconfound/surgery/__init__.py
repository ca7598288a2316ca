"""Attaching layers to a network: select → plan → insert → remove, and carrying metadata to what was inserted."""

from deconfound.surgery.attach import normalize
from deconfound.surgery.model import NormalizedModel
from deconfound.surgery.plan import Place, Plan

__all__ = ["NormalizedModel", "Place", "Plan", "normalize"]
