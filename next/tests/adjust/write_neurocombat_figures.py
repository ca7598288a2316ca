"""Write `neurocombat_figures.json`: what neuroCombat 0.2.12 makes of the data in that file.

It needs an environment with neuroCombat, which the tests themselves do not:

    pip install neuroCombat==0.2.12
    python tests/adjust/write_neurocombat_figures.py

neuroCombat stops its iteration at a relative change of 1e-4. Here it goes on to 1e-12, so that
digits can be compared.
"""

from __future__ import annotations

import json
import pathlib
import sys
from importlib import import_module

import numpy as np
import pandas as pd


def make_data() -> tuple[np.ndarray, pd.DataFrame]:
    """Return 48 people at three sites of unlike size, and seven features of unlike scale."""
    rng = np.random.default_rng(20260101)
    site = np.repeat([0, 1, 2], [24, 15, 9])
    n, d = len(site), 7
    is_case = rng.random(n) < np.array([0.3, 0.5, 0.7])[site]
    is_male = rng.random(n) < 0.5
    # Halves are exact in single precision, to which neuroCombat rounds numeric covariates.
    age = np.round(2 * (60 + 8 * rng.normal(size=n) + 3 * site)) / 2
    noise = rng.normal(size=(n, d)) * np.array([1.0, 1.6, 0.6])[site][:, None]
    features = noise + rng.normal(size=(3, d))[site] + np.outer(is_case, rng.normal(size=d))
    features += np.outer((age - 60) / 8, rng.normal(size=d)) + np.outer(is_male, rng.normal(size=d))
    features = 10 + features * 10.0 ** np.arange(-2, 5)
    table = {"site": np.array(["A", "B", "C"])[site], "age": age}
    table |= {"sex": np.where(is_male, "M", "F"), "dx": np.where(is_case, "AD", "CN")}
    return features.round(6), pd.DataFrame(table)


def harmonise(features: np.ndarray, table: pd.DataFrame, categorical: list[str]) -> dict:
    """Return neuroCombat's adjusted features and its estimates, as lists."""
    result = import_module("neuroCombat").neuroCombat(
        features.T.copy(),
        table,
        batch_col="site",
        categorical_cols=categorical,
        continuous_cols=["age"] if categorical else None,
    )
    estimates = result["estimates"]
    sigma = np.sqrt(estimates["var.pooled"]).ravel()
    return {
        "adjusted": result["data"].T.tolist(),
        "location": (np.array(estimates["gamma.star"]) * sigma).tolist(),
        "scale": np.sqrt(np.array(estimates["delta.star"])).tolist(),
    }


def main() -> None:
    import_module("neuroCombat")
    # The package's function of the same name hides the module.
    sys.modules["neuroCombat.neuroCombat"].it_sol.__defaults__ = (1e-12,)
    features, table = make_data()
    figures = {
        "features": features.tolist(),
        "table": table.to_dict(orient="list"),
        "site": harmonise(features, table, []),
        "site, sex, dx, age": harmonise(features, table, ["sex", "dx"]),
    }
    path = pathlib.Path(__file__).with_name("neurocombat_figures.json")
    path.write_text(json.dumps(figures, indent=0) + "\n")


if __name__ == "__main__":
    main()
