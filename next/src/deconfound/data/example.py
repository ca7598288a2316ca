"""A real table to try deconfound on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from deconfound.errors import OptionError

if TYPE_CHECKING:
    from torch import Tensor


def example(name: str = "heart") -> tuple[Tensor, Tensor, pd.DataFrame]:
    """Return a real data set: features, target, and a table of people.

    "heart" holds 920 patients of four hospitals (Janosi, Steinbrunn, Pfisterer and Detrano, 1989;
    CC BY 4.0) in random order. The hospital is a confound: it differs in how many of its patients
    are ill (36 % to 93 %) and in how it measured them.

    Args:
        name: "heart" is the only data set.

    Returns:
        The standardised features (asymptomatic chest pain, angina on exercise, maximal heart rate,
        ST depression; missing values are means), shape `(920, 4)`; the target, 1.0 for ill, shape
        `(920,)`; and a DataFrame with the columns age, sex, hospital and ill.

    Example:
        >>> import deconfound as dc
        >>> features, target, people = dc.example("heart")
        >>> features.shape, round(target.mean().item(), 2)
        (torch.Size([920, 4]), 0.55)
        >>> people["hospital"].value_counts().to_dict()
        {'Cleveland': 304, 'Hungary': 293, 'VA Long Beach': 200, 'Switzerland': 123}
    """
    import torch

    if name != "heart":
        raise OptionError(f"name={name!r} is no example. Write dc.example('heart').")
    table = pd.read_csv(Path(__file__).with_name("heart.csv"))
    # The file is sorted by hospital. The order is fixed, so that examples repeat.
    table = table.iloc[np.random.default_rng(0).permutation(len(table))].reset_index(drop=True)
    measured = pd.DataFrame(
        {
            "asymptomatic": table["cp"] == "asymptomatic",
            "exercise_angina": table["exang"].map({True: 1.0, False: 0.0}),
            "heart_rate": table["thalch"],
            "st_depression": table["oldpeak"],
        }
    ).astype(np.float64)
    standardised = (measured - measured.mean()) / measured.std()
    is_ill = table["HeartDisease"] > 0
    people = table.rename(columns={"Age": "age", "dataset": "hospital"})
    people = people[["age", "sex", "hospital"]].astype({"age": np.float64}).assign(ill=is_ill)
    features = torch.from_numpy(standardised.fillna(0.0).to_numpy(np.float32))
    return features, torch.from_numpy(is_ill.to_numpy(np.float32)), people
