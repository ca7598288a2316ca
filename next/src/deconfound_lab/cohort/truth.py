"""The best accuracy that any classifier of the cohort can have."""

from __future__ import annotations

import numpy as np
from scipy.stats import norm

from deconfound_lab.cohort.people import GROUPS, SEPARATION, TABLE_ONE

# The integral over severities reaches this far beyond their means.
REACH, POINTS = 8.0, 801


def bayes_accuracy(confounds: bool = False) -> float:
    """Return the best accuracy: both labels right, averaged over the four groups.

    Without confounds both severities are cut halfway between the groups, Φ(2.5 / 2)². With them the
    site shows which groups are likely:

        ¼ Σ_site ∫ max_group p(site | group) p(severities | group)

    Age and sex add nothing, because within a site they are independent of the group.

    Args:
        confounds: True for a classifier that uses the site, tested on people of Table 1.

    Example:
        >>> round(bayes_accuracy(), 3), round(bayes_accuracy(confounds=True), 3)
        (0.8, 0.869)
    """
    if not confounds:
        return float(norm.cdf(SEPARATION / 2) ** 2)
    points, step = np.linspace(-REACH, SEPARATION + REACH, POINTS, retstep=True)
    densities = [norm.pdf(points, SEPARATION * label) for label in (0, 1)]
    counts = np.array([site.counts for site in TABLE_ONE.values()])
    pairs = [np.outer(densities[hiv], densities[mci]) for hiv, mci in GROUPS.values()]
    shares = counts / counts.sum(axis=0) / len(GROUPS)
    best = [np.max(site[:, None, None] * pairs, axis=0).sum() for site in shares]
    return float(np.sum(best) * step**2)
