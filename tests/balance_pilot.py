"""Balance on two real tables, as `docs/decisions/0011-balance-on-tables.md` plans it.

`python -m tests.balance_pilot train FOLDER` trains what is not there yet, and `… measure FOLDER` writes the results;
`docs/guides/balance.md` has the tables that `markdown` makes of them, and a test compares the two.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from deconfound.design.balance import balance
from deconfound.metrics import u_distance_correlation_sqr
from deconfound.metrics.performance import weighted_auc
from deconfound.training import fit, interval, read_run_outputs, stratum_codes

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
        "method": {"name": method_of(arm), "options": {each: {"refit": True} for each in LAYERS}},
        "training": training,
        "splits": splits,
        "run": {"folder": str(run_folder(name, split, arm, seed, folder)), "seed": seed, "features": False},
    }


def method_of(arm):
    return arm.split(" +")[0].split(",")[0]


def with_arm(config, name, arm, folder):
    """A config with the method and the weights of an arm, in this folder."""
    method = method_of(arm)
    places = {"at": ["fc1"]} if (name, method) == ("abide", "erase") else {}
    return {
        **config,
        "method": {"name": method, **places},
        "training": {**config["training"], "balance": "overlap" if "overlap" in arm else "none"},
        "run": {**config["run"], "folder": str(folder)},
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


def measure(folder):
    """The content of the results: every measure of every arm, with intervals, also of the difference to the first."""
    content = {"format": "deconfound-balance-tables", "plan": "docs/decisions/0011-balance-on-tables.md", "sets": {}}
    for name, (_, splits) in SETS.items():
        found = {arm: _measured(name, splits, arm, folder) for arm in ARMS}
        lines = {arm: {key: _estimate(found[arm][key], found["none"][key]) for key in MEASURES} for arm in ARMS}
        seconds = sum(
            sum(json.loads((path / "results.json").read_text())["seconds"].values())
            for path in folder.glob(f"{name}-*")
            if path.is_dir()
        )
        origin = provenance(run_folder(name, "5-fold", "none", 0, folder))
        content["sets"][name] = {"lines": lines, "seconds": round(seconds), "seeds": splits, "provenance": origin}
    return content


def provenance(run):
    """Code, machine and data of a run."""
    known = json.loads((run / "run.json").read_text())["provenance"]
    return {key: known[key] for key in ("deconfound", "commit", "python", "platform", "packages", "data")}


def _measured(name, splits, arm, folder):
    """For each measure its value and its bootstrap replicates over people, or for dcor² one value per test set."""
    found = {}
    for split, seeds in splits.items():
        runs = [_read(name, run_folder(name, split, arm, seed, folder)) for seed in range(seeds)]
        draws = np.random.default_rng(0).multinomial(len(runs[0]), np.full(len(runs[0]), 1 / len(runs[0])), BOOTSTRAPS)
        weights = torch.from_numpy(np.concatenate([np.ones((1, len(runs[0]))), draws]))
        found["within" if split == "5-fold" else "left out"] = _mean([_within(run, weights) for run in runs])
        if split == "5-fold":
            found["independent"] = _mean([_independent(run, weights) for run in runs])
            tested = [run[run["fold"] == fold] for run in runs for fold in range(5)]
            found["dcor"] = [(number, _left(rows)) for number, rows in enumerate(tested)]
    return found


def _read(name, path):
    """Score, case, site, confounds and test fold of every row, in the order of the table."""
    said = read_run_outputs(path)
    frame = pd.DataFrame({**said.table, "fold": said.table[said.fold], "score": said.outputs[:, 0]})
    frame["case"] = (frame[said.labels[0]] == said.positive[said.labels[0]]).astype(float)
    frame["site"] = frame[SETS[name][0]]
    frame.attrs["confounds"] = said.confounds
    return frame


def _within(run, weights):
    """AUC over all pairs of a case and a control that one model scored, of one site."""
    codes = stratum_codes([run["site"].to_numpy(), run["fold"].to_numpy().astype(str)])
    wins = pairs = 0.0
    for code in np.unique(codes):
        rows = torch.from_numpy(np.flatnonzero(codes == code))
        w, up = weights[:, rows], torch.from_numpy(run["case"].to_numpy())[rows]
        both = (w @ up) * (w @ (1 - up))
        wins = wins + torch.where(both > 0, _auc(run, rows, w).nan_to_num() * both, 0.0)
        pairs = pairs + both
    return wins / pairs


def _independent(run, weights):
    """The mean over test sets of the AUC under overlap weights of all tested rows."""
    names = run.attrs["confounds"]
    own = balance({**{name: run[name] for name in names}, "case": run["case"]}, ["case"], names).row_weight
    own = weights * torch.from_numpy(own)
    parts = [torch.from_numpy(np.flatnonzero(run["fold"] == fold)) for fold in np.unique(run["fold"])]
    return torch.stack([_auc(run, rows, own[:, rows]) for rows in parts]).mean(0)


def _auc(run, rows, weights):
    score, case = (torch.from_numpy(run[name].to_numpy())[rows] for name in ("score", "case"))
    return weighted_auc(torch.unique(score, return_inverse=True)[1], case, weights)


def _left(rows):
    """dcor² of score and site among the controls of a test set."""
    controls = rows[rows["case"] == 0]
    site = pd.get_dummies(controls["site"]).to_numpy(float)
    return float(u_distance_correlation_sqr(torch.tensor(controls["score"].to_numpy())[:, None], torch.tensor(site)))


def _mean(values):
    return torch.stack(values).mean(0)


def _estimate(own, plain):
    if isinstance(own, list):
        change = [(number, value - other) for (number, value), (_, other) in zip(own, plain, strict=True)]
        return {**_of_sets(own), "difference": _of_sets(change)}
    return {**of_draws(own), "difference": of_draws(own - plain)}


def _of_sets(values):
    found = interval(values, test_share=0.25 / 0.85)
    return rounded(found.mean, found.low, found.high)


def of_draws(values):
    """A value and its interval from the value and its bootstrap replicates."""
    value, drawn = float(values[0]), np.asarray(values[1:])
    return rounded(value, *np.quantile(drawn - drawn.mean() + value, [0.025, 0.975]))


def rounded(mean, low, high):
    return {key: round(float(value), 4) for key, value in (("mean", mean), ("low", low), ("high", high))}


def seconds_of(run):
    """Of one fold, on average."""
    folds = [json.loads(file.read_text())["seconds"] for file in sorted(run.glob("fold-*/result.json"))]
    return round(float(np.mean(folds)), 1)


def cell(arm, item):
    """A value with its interval, or with its difference to the plain network."""
    change = item["difference"]
    text = f"{item['mean']:.3f}"
    if arm == "none":
        text += f" ({item['low']:.3f} to {item['high']:.3f})"
    else:
        words = f"{change['mean']:+.3f} ({change['low']:+.3f} to {change['high']:+.3f})"
        text += f", **{words}**" if change["low"] > 0 or change["high"] < 0 else f", {words}"
    return text.replace("-", "−")


def markdown(content, name, seconds=None, measures=MEASURES):
    """The table of one set of data, with the seconds of each arm if given; "–" where an arm was not trained.

    A difference to the plain network is bold where its interval does not include 0.
    """
    heads = [*measures.values(), *(["seconds a fold"] if seconds else [])]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for arm, values in content["sets"][name]["lines"].items():
        cells = [cell(arm, values[key]) if key in values else "–" for key in measures]
        cells += [f"{seconds[arm]:g}"] if seconds else []
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(train, measure, results, markdown):
    """`train FOLDER`, or `measure FOLDER`, which writes the results and shows their tables."""
    verb, folder = sys.argv[1], Path(sys.argv[2])
    if verb == "train":
        train(folder)
    else:
        content = measure(folder)
        results.parent.mkdir(parents=True, exist_ok=True)
        results.write_text(json.dumps(content, indent=1) + "\n")
        print(*(markdown(content, name) for name in content["sets"]), sep="\n")


if __name__ == "__main__":
    main(train, measure, RESULTS, markdown)
