"""Removal of confounds from fixed features, without a network."""

from deconfound.adjust.residualize import Residualizer

__all__ = ["Residualizer"]
