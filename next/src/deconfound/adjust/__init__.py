"""Removal of confounds from fixed features, without a network."""

from deconfound.adjust.combat import ComBat, SiteEffects
from deconfound.adjust.residualize import Residualizer
from deconfound.adjust.wscores import ControlNorms, WScores

__all__ = ["ComBat", "ControlNorms", "Residualizer", "SiteEffects", "WScores"]
