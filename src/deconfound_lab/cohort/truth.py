"""What the best possible classifier of the simulated cohort can reach: its accuracy from the known latents.

A severity is `N(separation · label, 1)`, and accuracy is the paper's: both labels right, averaged over the four groups.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from deconfound_lab.cohort.people import GROUPS, LABELS, TABLE_ONE
from deconfound_lab.cohort.strengths import Strengths

_NODES = 801
_SPAN = 8.0


def bayes_accuracy(strengths: Strengths | None = None, *, confounds: bool = False) -> float:
    """The highest accuracy that any classifier can reach, if it could read the severities off the volumes.

    Without confounds both labels are cut halfway between the groups: `Φ(d_hiv / 2) · Φ(d_mci / 2)`, on people of
    Table 1 and on people in whom labels are independent of the confounds alike. With them, the site says which groups
    are likely: `¼ Σ_site ∫ max_group p(site | group) p(severities | group)`. Age and sex add nothing to the site, in
    which they are independent of the group. What is gained is lost, and more, where the labels are independent.

    Args:
        strengths: Those of the cohort.
        confounds: Whether the classifier also uses the site, and is judged on people of Table 1.

    Example:
        >>> round(bayes_accuracy(), 3), round(bayes_accuracy(confounds=True), 3)
        (0.8, 0.869)
    """
    s = strengths or Strengths()
    if not confounds:
        return NormalDist().cdf(s.hiv_separation / 2) * NormalDist().cdf(s.mci_separation / 2)
    hiv, step_hiv = _densities(s.hiv_separation)
    mci, step_mci = _densities(s.mci_separation)
    totals = np.sum([site.groups for site in TABLE_ONE.values()], axis=0)
    accuracy = 0.0
    for site in TABLE_ONE.values():
        joint = [
            count / total / len(GROUPS) * hiv[LABELS[group][0]][:, None] * mci[LABELS[group][1]]
            for group, count, total in zip(GROUPS, site.groups, totals, strict=True)
        ]
        accuracy += float(np.max(joint, axis=0).sum()) * step_hiv * step_mci
    return accuracy


def bayes_labels(
    severity: dict[str, NDArray[np.float64]], strengths: Strengths | None = None
) -> dict[str, NDArray[np.int64]]:
    """The labels that the best classifier without confounds gives to people of these severities."""
    s = strengths or Strengths()
    cuts = {"hiv": s.hiv_separation / 2, "mci": s.mci_separation / 2}
    return {name: (severity[name] > cut).astype(np.int64) for name, cut in cuts.items()}


def _densities(separation: float) -> tuple[list[NDArray[np.float64]], float]:
    """The density of a severity without and with the label, on points that span both."""
    points, step = np.linspace(-_SPAN, separation + _SPAN, _NODES, retstep=True)
    return [np.exp(-((points - mean) ** 2) / 2) / np.sqrt(2 * np.pi) for mean in (0.0, separation)], float(step)
