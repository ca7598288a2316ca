"""Balance on two real tables, as `docs/decisions/0011-balance-on-tables.md` plans it.

`python -m tests.balance_pilot train FOLDER` trains what is not there yet, and `… measure FOLDER` writes the results;
`docs/guides/balance.md` has the tables that `markdown` makes of them, and a test compares the two.
"""

import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from deconfound.training import fit

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("DECONFOUND_DATA", ROOT.parent / "shared" / "data"))
RESULTS = ROOT / "docs" / "results" / "balance" / "tables.json"
BOOTSTRAPS = 400
LAYERS = ("mdn", "pmdn", "rmdn")
ARMS = {
    "none": {},
    "none + W-scores": {"w_scores": True},
    "none + overlap": {"balance": "overlap"},
    "none, loss within": {"loss": "within"},
    **{name: {} for name in LAYERS},
    **{f"{name} + overlap": {"balance": "overlap"} for name in LAYERS},
}
SETS = {"abide": ("site", {"5-fold": 2, "site left out": 1}), "heart": ("hospital", {"5-fold": 3, "site left out": 3})}
MEASURES = {
    "within": "AUC within sites",
    "left out": "AUC within sites that were left out",
    "independent": "AUC, label and confounds independent",
    "dcor": "dcor² of score and site among controls",
}


def data_of(name, folder):
    """The section `data` and `design` of a table's config."""
    if name == "abide":
        source = {"source": str(DATA / "abide1" / "features.csv"), "table": str(DATA / "abide1" / "participants.tsv")}
        design = {"confounds": ["site", "spline(age, 4)", "sex"]}
        return {**source, "id": "participant_id", "label": "diagnosis"}, design
    table = pd.read_csv(DATA / "heart" / "heart_disease_uci.csv").rename(columns={"dataset": "hospital"})
    table["disease"] = np.where(table["HeartDisease"] > 0, "yes", "no")
    path = folder / "heart.csv"
    if not path.exists():
        table.drop(columns="HeartDisease").to_csv(path, index=False)
    source = {"source": str(path), "id": "id", "label": "disease", "missing_features": "mean"}
    return source, {"confounds": ["hospital", "Age", "sex"]}


def config_of(name, split, arm, seed, folder):
    site = SETS[name][0]
    data, design = data_of(name, folder)
    training = {"epochs": 60, "patience": 12, "accelerator": "cpu", **ARMS[arm]}
    if training.get("loss") == "within":
        training["within"] = site
    splits = {"folds": 5, "stratify": [data["label"], site]}
    if split != "5-fold":
        splits = {"kind": "leave-one-out", "column": site}
    return {
        "data": data,
        "design": design,
        "network": {"name": "mlp", "options": {"hidden": [64, 32], "dropout": 0.2}},
        "method": {"name": arm.split(" +")[0].split(",")[0], "options": {each: {"refit": True} for each in LAYERS}},
        "training": training,
        "splits": splits,
        "run": {"folder": str(run_folder(name, split, arm, seed, folder)), "seed": seed, "features": False},
    }


def run_folder(name, split, arm, seed, folder):
    return folder / f"{name}-{split}-{arm}-{seed}".replace(" ", "-").replace(",", "")


def train(folder):
    """Every cell of the plan, those that are finished left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (_, splits) in SETS.items():
        for split, seeds in splits.items():
            for seed in range(seeds):
                for arm in ARMS:
                    fit(config_of(name, split, arm, seed, folder), audit=False)
                    print(name, split, seed, arm, flush=True)


if __name__ == "__main__":
    train(Path(sys.argv[2]))
