"""A tiny cohort on disk, and the config of a run on it."""

from __future__ import annotations

import numpy as np
import pandas as pd

from deconfound.training.config_file import read_config
from deconfound.training.fitting import fit as fit_config


def cohort(n=72, seed=0, scans=1):
    """Six features that know label, age and site; `scans` rows for each person."""
    rng = np.random.default_rng(seed)
    people = n // scans
    dx = np.arange(people) % 2
    age = rng.normal(60, 9, people) + 4 * dx
    site = np.array(["A", "B", "C"])[rng.permutation(np.arange(people) % 3)]
    sex = np.where(rng.random(people) < 0.5, "F", "M")
    names = [f"p{i:03d}" for i in range(people)]
    base = {"person": names, "dx": np.where(dx, "asd", "control"), "age": age, "sex": sex, "site": site}
    frame = pd.DataFrame(base).loc[np.repeat(np.arange(people), scans)].reset_index(drop=True)
    frame.insert(0, "id", [f"{i:04d}" for i in range(len(frame))])
    signal = np.repeat(dx, scans) * 1.2
    drift = (frame["age"].to_numpy() - 60) / 9 + 1.5 * (frame["site"] == "B").to_numpy()
    for k in range(6):
        frame[f"f{k}"] = rng.normal(size=len(frame)) + (signal if k < 2 else drift if k < 4 else 0)
    return frame


def write(folder, frame=None, name="table.csv"):
    path = folder / name
    (cohort() if frame is None else frame).to_csv(path, index=False)
    return path


def settings(path, folder, **sections):
    """A config as a mapping; keyword arguments replace keys of its sections."""
    data = {
        "data": {"source": str(path), "label": "dx", "id": "id", "person": None},
        "design": {"confounds": ["age", "sex", "site"]},
        "network": {"name": "mlp", "options": {"hidden": [8], "dropout": 0.2}},
        "method": {"name": "pmdn"},
        "training": {"epochs": 4, "patience": None, "batch_size": 16, "accelerator": "cpu"},
        "splits": {"folds": 2, "validation": 0.2},
        "run": {"folder": str(folder), "seed": 3, "audit": False},
    }
    for section, values in sections.items():
        data[section] = {**data.get(section, {}), **values}
    return data


def config(path, folder, **sections):
    return read_config(settings(path, folder, **sections))


def fit(config, **options):
    """The content of `results.json` of a run."""
    return dict(fit_config(config, **options).results)
