"""Every method in sites that were left out, as `docs/decisions/0017-sites-left-out.md` plans it.

`python -m tests.left_out_pilot train FOLDER SEED TABLES…` trains what is not there yet, and `… measure FOLDER` writes
the results; `docs/results/left-out.md` has the tables that `markdown` makes of them, and a test compares the two.
"""

import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from deconfound.training import fit, predict
from deconfound.training.config import Config
from deconfound.training.problem import open_problem
from tests import balance_pilot

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results" / "methods" / "left-out.json"
SPLIT = "site left out"
DRAWS = 1000
METHODS = ("none", "mdn", "pmdn", "rmdn", "erase", "dependence", "adversarial", "last-layer", "group-dro")
ARMS = tuple(arm + word for arm in (*METHODS, "none, loss within", "none, W-scores") for word in ("", " + overlap"))
MEASURES = {"auc": "AUC in the left-out site", "offset": "offset of its controls, sd"}


def config_of(name, arm, seed, folder):
    site = balance_pilot.SETS[name][0]
    plain = balance_pilot.config_of(name, SPLIT, "none", seed, folder)
    config = balance_pilot.with_arm(plain, name, arm, run_folder(name, arm, seed, folder))
    options, method = {**plain["method"]["options"]}, config["method"]["name"]
    if name == "abide" and method in ("dependence", "adversarial"):
        options[method] = {"weight": 1.0}
    loss = {"loss": "within", "within": site} if "within" in arm else {}
    return {
        **config,
        "design": {**config["design"], "site": site},
        "method": {**config["method"], "options": options},
        "training": {**config["training"], **loss, "w_scores": "W-scores" in arm},
    }


def run_folder(name, arm, seed, folder):
    return balance_pilot.run_folder(name, SPLIT, arm, seed, folder)


def train(folder, seed, names):
    """Every cell of a seed and these tables, those that are finished left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        for arm in ARMS:
            start = time.process_time()
            fit(config_of(name, arm, seed, folder), audit=False)
            scored(name, arm, seed, folder)
            print(seed, name, arm, f"{time.process_time() - start:.1f} s", flush=True)


def scored(name, arm, seed, folder):
    """Logit, case and site of the test and the validation rows of every fold; kept beside the run."""
    path = run_folder(name, arm, seed, folder) / "scored.csv"
    if not path.exists():
        problem = open_problem(Config.model_validate(config_of(name, arm, seed, folder)), check=False)
        case, site = problem.codes[:, 0] > 0, np.asarray(problem.source.table[balance_pilot.SETS[name][0]])
        parts = []
        for number, division in enumerate(problem.folds):
            logit = torch.logit(predict(path.parent, problem.source, fold=number, unseen="mean").scores[:, 0]).numpy()
            for part, rows in (("test", division.test), ("validation", division.validation)):
                about = {"row": rows, "fold": division.name, "part": part, "site": site[rows]}
                parts.append(pd.DataFrame({**about, "case": case[rows], "logit": logit[rows]}))
        pd.concat(parts).to_csv(path, index=False)
    return pd.read_csv(path)


def drawn(frame, seed=0):
    """The people of each left-out site and the known controls of its fold: as they are, then `DRAWS` times drawn.

    Every arm of a table has the same rows in the same order, so that equal seeds pair them.
    """
    rng = np.random.default_rng(seed)
    tested = frame[frame["part"] == "test"]
    sites = [np.flatnonzero(tested["fold"] == name) for name in pd.unique(tested["fold"])]
    chosen = rng.integers(len(sites), size=(DRAWS, len(sites)))
    return tested, sites, [np.arange(len(sites)), *chosen], rng


def estimates(frame):
    """`(1 + DRAWS, 2)`: AUC and offset, of all sites and of each draw of sites and of people in them."""
    tested, sites, chosen, rng = drawn(frame)
    held = frame[(frame["part"] == "validation") & ~frame["case"]].groupby("fold")["logit"]
    mean, sd = held.mean(), held.std()
    logit, case = tested["logit"].to_numpy(), tested["case"].to_numpy()
    usual, scale = tested["fold"].map(mean).to_numpy(), tested["fold"].map(sd).to_numpy()
    found = []
    for number, own in enumerate(chosen):
        wins = pairs = 0.0
        offsets = []
        for site in own:
            rows = sites[site] if number == 0 else rng.choice(sites[site], len(sites[site]))
            up, down = logit[rows[case[rows]]], logit[rows[~case[rows]]]
            if len(up) and len(down):
                order = np.sort(down)
                wins += (np.searchsorted(order, up, "left") + np.searchsorted(order, up, "right")).sum() / 2
                pairs += len(up) * len(down)
            if len(down):
                offsets.append(((down.mean() - usual[rows[0]]) / scale[rows[0]]) ** 2)
        found.append((wins / pairs, np.sqrt(np.mean(offsets))))
    return np.array(found)


def measure(folder):
    """The content of the results: both measures of every arm, with intervals, also of the difference to the first."""
    content = {"format": "deconfound-left-out", "plan": "docs/decisions/0017-sites-left-out.md", "sets": {}}
    for name in ("heart", "abide"):
        seeds = [seed for seed in range(3) if (run_folder(name, ARMS[-1], seed, folder) / "scored.csv").exists()]
        values = {arm: np.mean([estimates(scored(name, arm, seed, folder)) for seed in seeds], 0) for arm in ARMS}
        content["sets"][name] = {
            "seeds": seeds,
            "lines": {arm: _line(own, values["none"]) for arm, own in values.items()},
            "by chance": round(float(_by_chance(scored(name, "none", 0, folder))), 4),
            "seconds": {arm: balance_pilot.seconds_of(run_folder(name, arm, 0, folder)) for arm in ARMS},
            "provenance": balance_pilot.provenance(run_folder(name, "none", 0, folder)),
        }
    return content


def _line(own, plain):
    of_draws = balance_pilot.of_draws
    return {
        key: {**of_draws(own[:, place]), "difference": of_draws(own[:, place] - plain[:, place])}
        for place, key in enumerate(MEASURES)
    }


def _by_chance(frame):
    """The root mean square offset of controls that score as those of known sites do."""
    counts = frame[~frame["case"]].groupby(["fold", "part"]).size().unstack()
    return np.sqrt((1 / counts["test"] + 1 / counts["validation"]).mean())


def markdown(content, name):
    """The table of one set of data, as that of balance, with the seconds of a fold."""
    return balance_pilot.markdown(content, name, content["sets"][name]["seconds"], MEASURES)


if __name__ == "__main__":
    balance_pilot.main(lambda folder: train(folder, int(sys.argv[3]), sys.argv[4:]), measure, RESULTS, markdown)
