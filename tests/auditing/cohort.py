"""A small cohort in which it is known what each model has left."""

import numpy as np


def cohort(n=240, seed=0):
    """Label, age, sex and site, and three models: clean, one that leans on site, one that leans on age."""
    rng = np.random.default_rng(seed)
    dx = rng.integers(0, 2, n)
    table = {
        "dx": np.array(["control", "patient"])[dx],
        "age": 60 + 10 * rng.normal(size=n) + 3 * dx,
        "sex": np.array(["F", "M"])[rng.integers(0, 2, n)],
        "site": np.array(["SRI", "UCSD", "UCSF"])[rng.integers(0, 3, n)],
        "scan": np.array([f"{row:04d}" for row in range(n)]),
    }
    signal = 2 * dx - 1 + rng.normal(size=n)
    outputs = {
        "clean": signal,
        "by site": signal + 3 * (table["site"] == "UCSF"),
        "by age": signal + 0.1 * (table["age"] - 60),
    }
    return outputs, table
