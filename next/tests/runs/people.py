"""A small table of people whose features show both their label and their site."""

from __future__ import annotations

import numpy as np
import pandas as pd

FEATURES = ("volume", "thickness", "area")


def make_people(n: int = 160, agreement: float = 0.7, seed: int = 0) -> pd.DataFrame:
    """Return n people, of whom a share `agreement` has the site that goes with the label.

    The label moves each feature by .7 sd and the site by 2 sd.
    """
    random = np.random.default_rng(seed)
    is_case = np.arange(n) % 2
    is_b = np.where(random.random(n) < agreement, is_case, 1 - is_case)
    features = 0.7 * is_case[:, None] + 2 * is_b[:, None] + random.normal(size=(n, len(FEATURES)))
    return pd.DataFrame(
        {
            "id": [f"p{row:03d}" for row in range(n)],
            "dx": np.array(["CN", "AD"])[is_case],
            "site": np.array(["A", "B"])[is_b],
            "age": random.normal(70, 8, n).round(1),
            "mmse": (25 - 3 * is_case + random.normal(size=n)).round(2),
            **dict(zip(FEATURES, features.round(4).T, strict=True)),
        }
    )
