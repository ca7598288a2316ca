"""A confounded cohort: patients are older, come more often from site B, and site B's scanner reads larger heads."""

import numpy as np
import pandas as pd

CONFOUNDS = ["age", "site", "head"]


def make_people(n, seed=0):
    """X with eight features and the three confounds, of very different means and scales, and the diagnosis."""
    rng = np.random.default_rng(seed)
    dx = rng.integers(0, 2, n)
    age = rng.normal(60 + 8 * dx, 8)
    site = np.where(rng.random(n) < 0.25 + 0.5 * dx, "B", "A")
    head = rng.normal(1500 + 60 * (site == "B"), 100)
    values = rng.normal(size=(n, 8))
    values[:, 0] += dx
    values[:, 1] += 1.5 * (age - 64) / 8
    values[:, 2] += 1.5 * (site == "B")
    values[:, 3] += (head - 1530) / 100
    values[:, 4] += 0.5 * dx + 0.7 * (age - 64) / 8
    X = pd.DataFrame(values, columns=[f"f{place}" for place in range(8)])
    return X.assign(age=age, site=site, head=head), dx


def within(score, dx, confound):
    """The mean over the groups of the absolute correlation of score and confound."""
    return np.mean([abs(np.corrcoef(score[dx == group], confound[dx == group])[0, 1]) for group in np.unique(dx)])
