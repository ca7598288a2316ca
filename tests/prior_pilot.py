"""For how many held-out rows the β of training counts: `docs/decisions/0019-how-long-coefficients-count.md` plans it.

`python -m tests.prior_pilot` trains (about a quarter of an hour on one core) and writes the results; the record has the
table that `markdown` makes of them, and a test compares the two.
"""

import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

import deconfound as dc
from deconfound.metrics import u_distance_correlation_sqr
from deconfound.training import commit, interval
from tests.balance_pilot import DATA, rounded

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "balance" / "prior.json"
PRIORS = (100, 30, 10, 0)
ARMS = ("as trained", *map(str, PRIORS))
SEEDS, HELD_OUT, EPOCHS = 8, (45, 180), (10, 100)
MEASURES = ("left", "independent")


def heart(confounds):
    table = pd.read_csv(dc.example("heart")).rename(columns={"dataset": "hospital", "Age": "age"})
    label = (table["HeartDisease"] > 0).to_numpy(float)
    features = table.drop(columns=["id", "HeartDisease", "hospital", "age", "sex"])
    return pd.get_dummies(features.astype({"fbs": str, "exang": str}), dtype=float), label, table[confounds]


def abide(confounds):
    people, features = (
        pd.read_csv(DATA / "abide1" / name, sep=None, engine="python") for name in ("participants.tsv", "features.csv")
    )
    table = people.merge(features, on="participant_id")
    label = (table["diagnosis"] == "asd").to_numpy(float)
    return table[features.columns[1:]], label, table[confounds]


SETS = {
    "heart, age and sex": (heart, ["age", "sex"]),
    "heart, hospital too": (heart, ["age", "sex", "hospital"]),
    "ABIDE, age, sex and site": (abide, ["age", "sex", "site"]),
}


def trained(name, seed, held_out, epochs):
    """What each prior leaves on test rows, for one network and one draw of rows."""
    read, confounds = SETS[name]
    features, label, known = read(confounds)
    order = np.random.default_rng(seed).permutation(len(label))
    test, held, train = np.split(order, [len(order) // 3, len(order) // 3 + held_out])

    def table(rows):
        return {**{column: known[column].to_numpy()[rows] for column in confounds}, "label": label[rows]}

    design = dc.Design(confounds=confounds, keep=["label"], unseen="mean").fit(table(train))
    x, encoded = scaled(features.to_numpy(float), train), torch.from_numpy(design.encode(table(np.arange(len(label)))))
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
    model = dc.normalize(network, design, at=["0", "2", "4"])
    optimizer, target = torch.optim.Adam(model.parameters(), 1e-3), torch.from_numpy(label).float()
    for _ in range(epochs):
        for rows in torch.from_numpy(train)[torch.randperm(len(train))].split(32):
            logits = model(x[rows], metadata=encoded[rows]).squeeze(1)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, target[rows])
            optimizer.zero_grad(), loss.backward(), optimizer.step()
    model.eval()
    found = {"share": len(test) / len(train), "as trained": measured(model, x, encoded, test, table)}
    for prior in PRIORS:
        with model.refitted([(x[held], encoded[held])], prior * design.confound_directions):
            found[str(prior)] = measured(model, x, encoded, test, table)
    return found


def scaled(values, train):
    """Features in standard deviations of the training rows; an empty cell is their mean."""
    spread = np.nanstd(values[train], axis=0)
    values = (values - np.nanmean(values[train], axis=0)) / np.where(spread > 0, spread, 1)
    return torch.from_numpy(np.nan_to_num(values).clip(-6, 6)).float()


@torch.no_grad()
def measured(model, x, encoded, test, table):
    """dcor² of score and confounds within labels, and the AUC where label and confounds are independent."""
    score, rows = model(x[test], metadata=encoded[test]).squeeze(1).double(), table(test)
    confounds = [name for name in rows if name != "label"]
    columns = pd.get_dummies(pd.DataFrame({name: rows[name] for name in confounds}), dtype=float)
    columns = torch.from_numpy((columns / columns.std()).fillna(0).to_numpy())
    parts = [torch.from_numpy(rows["label"] == value) for value in (0, 1)]
    left = [float(u_distance_correlation_sqr(score[part][:, None], columns[part])) for part in parts]
    weight = dc.balance(rows, ["label"], confounds).row_weight
    return {"left": sum(left) / 2, "independent": roc_auc_score(rows["label"], score.numpy(), sample_weight=weight)}


def estimate(values, share):
    """The mean over draws of rows, with the corrected interval: test rows of one draw train another."""
    found = interval(list(enumerate(values)), test_share=share)
    return rounded(found.mean, found.low, found.high)


def main():
    content = {"format": "deconfound-prior", "commit": commit(), "seeds": SEEDS, "cells": []}
    for name in SETS:
        for epochs in EPOCHS:
            for held_out in HELD_OUT:
                with warnings.catch_warnings(action="ignore"):
                    runs = [trained(name, seed, held_out, epochs) for seed in range(SEEDS)]
                share = runs[0]["share"]
                lines = {
                    arm: {
                        key: {
                            **estimate([run[arm][key] for run in runs], share),
                            "difference": estimate([run[arm][key] - run["100"][key] for run in runs], share),
                        }
                        for key in MEASURES
                    }
                    for arm in ARMS
                }
                content["cells"].append({"set": name, "epochs": epochs, "held_out": held_out, "lines": lines})
                RESULTS.write_text(json.dumps(content, indent=1) + "\n")
                print(markdown({"cells": content["cells"][-1:]}).splitlines()[-1], flush=True)


def markdown(content):
    """What is left / the independent AUC, for each prior; bold where it differs measurably from 100 rows."""
    lines = [f"| | epochs | held-out rows | {' | '.join(ARMS)} |", "|---" * (len(ARMS) + 3) + "|"]
    for cell in content["cells"]:
        shown = [" / ".join(_shown(cell["lines"][arm][key]) for key in MEASURES) for arm in ARMS]
        lines.append(f"| {cell['set']} | {cell['epochs']} | {cell['held_out']} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _shown(item):
    text = f"{item['mean']:.3f}".replace("-", "−")
    change = item["difference"]
    return f"**{text}**" if change["low"] > 0 or change["high"] < 0 else text


if __name__ == "__main__":
    main()
