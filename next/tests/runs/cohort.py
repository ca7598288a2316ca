"""A small cohort on disk, and configs for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from deconfound.runs import Run, fit

N = 60


def make_cohort(n: int = N, seed: int = 0) -> pd.DataFrame:
    """Return people from three sites: features follow the label, the age and the site."""
    rng = np.random.default_rng(seed)
    is_ill = np.arange(n) % 2
    site = rng.integers(3, size=n)
    age = rng.normal(60, 9, n) + 4 * is_ill
    features = rng.normal(size=(n, 3)) + np.outer(is_ill, [1, 0, 0.5]) + np.outer(site, [0, 0.7, 0])
    frame = pd.DataFrame(features.round(4), columns=["f1", "f2", "f3"])
    return frame.assign(
        pid=[f"{row:03d}" for row in range(n)],
        age=age.round(2),
        site=np.array(["A", "B", "C"])[site],
        dx=np.array(["CN", "AD"])[is_ill],
    )


def make_config(folder: Path, frame: pd.DataFrame | None = None, **sections: Any) -> dict[str, Any]:
    """Write the cohort into a folder and return a config that trains quickly.

    Args:
        folder: Where people.csv and the run lie.
        frame: The people; None takes those of `make_cohort`.
        **sections: Keys that differ, by section.
    """
    (make_cohort() if frame is None else frame).to_csv(folder / "people.csv", index=False)
    config: dict[str, Any] = {
        "data": {
            "source": str(folder / "people.csv"),
            "labels": ["dx"],
            "positive": "AD",
            "id": "pid",
        },
        "design": {"confounds": ["age", "site"]},
        "network": {"name": "mlp", "options": {"hidden": [8]}},
        "method": {"name": "none"},
        "training": {"epochs": 2, "batch_size": 32},
        "splits": {"folds": 2},
        "run": {"folder": str(folder / "run"), "features": False},
    }
    for section, keys in sections.items():
        config[section] = config.get(section, {}) | keys
    return config


def train(config: Any, *overrides: str, **options: Any) -> Run:
    """Fit without an audit."""
    return fit(config, *overrides, **({"audit": False} | options))


def assert_same_predictions(run: Run, other: Run, tolerance: float = 1e-5) -> None:
    """Assert that two runs predict the same people alike."""
    names = run.task.column_names()
    first, second = (one.predictions.set_index("id") for one in (run, other))
    assert sorted(first.index) == sorted(second.index)
    np.testing.assert_allclose(first[names], second.loc[first.index, names], rtol=0, atol=tolerance)
