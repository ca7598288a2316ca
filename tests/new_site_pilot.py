"""Adapting to sites that training never saw, as `docs/decisions/0017-sites-left-out.md` plans it.

`python -m tests.new_site_pilot abide FOLDER` reads the runs of `tests.left_out_pilot` in this folder, `… cohort FOLDER`
simulates cohorts with a fourth site, and both write their part of the results;
`docs/results/left-out.md` has the tables that `markdown` makes of them, and a test compares the two.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import avg_pool3d

import deconfound as dc
from deconfound.data.sources import ArraySource
from deconfound.methods import Setting, method
from deconfound.networks import build_network
from deconfound.training import Samples, Schedule, bce, interval, predict, train_in_memory
from deconfound.training.config import Config
from deconfound.training.origin import provenance
from deconfound.training.problem import open_problem
from deconfound_lab.cohort.cohort import simulate_cohort
from tests import balance_pilot, left_out_pilot

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results" / "methods" / "new-sites.json"
LAYERS = ("mdn", "pmdn", "rmdn")
WAYS = ("the mean", "adapted, controls known", "adapted, no labels")
MEASURES = {"auc": "AUC", "accuracy": "accuracy at ½", "loss": "log loss", "offset": "offset of controls, sd"}
LABELS = ("hiv", "mci")
KEPT = ("deconfound", "commit", "python", "platform", "packages", "data")


# ABIDE: real sites, each left out once.


def site_sums(layer, seed, folder):
    """`(sites, ways, sums)` of every left-out site with ten or more rows: what `figures` makes measures of."""
    config = left_out_pilot.config_of("abide", layer, seed, folder)
    problem = open_problem(Config.model_validate(config), check=False)
    frame = left_out_pilot.scored("abide", layer, seed, folder)
    held = frame[(frame["part"] == "validation") & ~frame["case"]].groupby("fold")["logit"]
    found, known = [], 0
    for number, division in enumerate(problem.folds):
        if len(division.test) >= 10:
            usual, sd = held.mean()[division.name], held.std()[division.name]
            parts, enough = _halves(Path(config["run"]["folder"]), problem, number, usual)
            found.append([[*sums[:-1], (sums[-1] / sums[-2] / sd) ** 2] for sums in parts])
            known += enough
    return np.array(found), known


def _halves(run, problem, number, usual):
    """Sums over halves of a site: wins, pairs, right, log losses, rows, controls, their logits beyond the usual."""
    rows = problem.folds[number].test
    case = problem.codes[rows, 0] > 0
    logits = {"the mean": _scored(run, problem, number, None, "mean")}
    logits["adapted, no labels"] = _scored(run, problem, number, None, "adapt")
    sums, enough = np.zeros((len(WAYS), 7)), 0
    for halving in range(2):
        first = np.random.default_rng(halving).permutation(len(rows)) < len(rows) / 2
        for marked in (first, ~first):
            enough += int((marked & ~case).sum() >= 10)
            logits["adapted, controls known"] = _scored(run, problem, number, marked & ~case, "adapt")
            for place, way in enumerate(WAYS):
                z, up = logits[way][~marked], case[~marked]
                sums[place] += _sums(z, up, usual)
    return sums, enough / 4


def _sums(z, up, usual):
    wins = (z[up][:, None] > z[~up]).sum() + (z[up][:, None] == z[~up]).sum() / 2
    losses = np.logaddexp(0, np.where(up, -z, z))
    return [
        wins,
        up.sum() * (~up).sum(),
        ((z > 0) == up).sum(),
        losses.sum(),
        len(z),
        (~up).sum(),
        (z[~up] - usual).sum(),
    ]


def _scored(run, problem, number, marked, unseen):
    """Logits of a fold's left-out site, whose table holds the label of the marked rows alone."""
    rows, label = problem.folds[number].test, problem.task.labels[0]
    table = {name: np.asarray(values)[rows] for name, values in problem.source.table.items() if name != label}
    if marked is not None:
        table[label] = np.where(marked, np.asarray(problem.source.table[label], dtype=object)[rows], None)
    source = ArraySource(problem.source.read(rows), table, "a site")
    return torch.logit(predict(run, source, fold=number, unseen=unseen).scores[:, 0]).numpy()


def figures(sums):
    """`(ways, measures)` of some sites."""
    wins, pairs, right, losses, rows, _, offsets = np.moveaxis(sums, 2, 0)
    return np.stack(
        [wins.sum(0) / pairs.sum(0), right.sum(0) / rows.sum(0), losses.sum(0) / rows.sum(0), np.sqrt(offsets.mean(0))],
        1,
    )


def abide(folder):
    """Every way to score a left-out site, with intervals over sites, also of the difference to the mean."""
    seeds = [
        seed for seed in range(3) if (left_out_pilot.run_folder("abide", "rmdn", seed, folder) / "scored.csv").exists()
    ]
    lines, with_controls = {}, {}
    for layer in LAYERS:
        runs = [site_sums(layer, seed, folder) for seed in seeds]
        sites = len(runs[0][0])
        drawn = np.random.default_rng(0).integers(sites, size=(left_out_pilot.DRAWS, sites))
        values = np.mean([[figures(sums[own]) for own in (np.arange(sites), *drawn)] for sums, _ in runs], 0)
        lines[layer] = _lines(values, balance_pilot.of_draws)
        with_controls[layer] = runs[0][1]
    origin = balance_pilot.provenance(left_out_pilot.run_folder("abide", "pmdn", 0, folder))
    about = {"seeds": seeds, "sites": sites, "sites with ten controls in a half": with_controls["pmdn"]}
    return {**about, "lines": lines, "provenance": origin}


# Simulated cohorts: region means of small volumes, three sites in training, a fourth that is new.


def region_means(cohort):
    """`(n, 512)`: the means of cubes of 4 × 4 × 4 voxels."""
    parts = np.array_split(np.arange(len(cohort)), max(1, len(cohort) // 100))
    return torch.cat([avg_pool3d(torch.from_numpy(cohort.read(rows)), 4).flatten(1) for rows in parts])


def people(cohort, rows=slice(None), **changes):
    table = {name: np.asarray(values)[rows] for name, values in cohort.table.items()}
    return {**table, **{name: np.full(len(table["age"]), value, dtype=object) for name, value in changes.items()}}


def target(table):
    return np.column_stack([table[name] for name in LABELS])


def trained(seed, layer):
    """A model of the three sites, and what brings new region means to its scale."""
    cohort = simulate_cohort(size=32, seed=seed)
    x, order = region_means(cohort), np.random.default_rng(seed).permutation(len(cohort))
    held, used = order[: len(order) // 4], order[len(order) // 4 :]
    brain = x[used].mean(0) > 0.1
    mean, sd = x[used][:, brain].mean(0), x[used][:, brain].std(0)
    design = dc.Design(confounds=["age", "sex", "site"], keep=list(LABELS), unseen="mean").fit(people(cohort, used))

    def scale(values):
        return (values[:, brain] - mean) / sd

    def samples(rows):
        table = people(cohort, rows)
        return Samples(scale(x[rows]), torch.from_numpy(design.encode(table)), torch.from_numpy(target(table)).float())

    torch.manual_seed(seed)
    network = build_network("mlp", (int(brain.sum()),), len(LABELS), {"hidden": [64, 32], "dropout": 0.2})
    train = samples(used)
    made = method(layer).prepare(network, Setting(design, None, lambda: train.batches(64)), refit=True)
    schedule = Schedule(epochs=60, patience=12, lr=0.001, weight_decay=0.01)
    train_in_memory(made, train, samples(held), bce, schedule, seed=seed)
    return made.eval().model, scale


@torch.no_grad()
def new_scanner(model, scale, seed):
    """Measures of each way on 400 people of a new scanner; offsets are paired with the same people at known ones."""
    usual = simulate_cohort(size=32, seed=1000 + seed, independent=True, people=400)
    cohort = simulate_cohort(size=32, seed=1000 + seed, independent=True, people=400, variant="unseen-site")
    up = target(people(cohort)) > 0
    control = ~up.any(1)
    at_known = _logits(model, scale(region_means(usual)), people(usual))
    x, table = scale(region_means(cohort)), people(cohort)
    hidden = {name: values for name, values in table.items() if name not in LABELS}
    logits = {"the mean": _logits(model, x, hidden)}
    unlabelled = model.adapt([(x, model.design.encode(hidden))])
    logits["adapted, no labels"] = _logits(unlabelled.model, x, hidden)
    known = np.empty_like(at_known)
    first = np.random.default_rng(seed).permutation(len(x)) < len(x) / 2
    for marked in (first, ~first):
        given = {name: np.where(marked & control, table[name].astype(float), np.nan) for name in LABELS}
        adapted = model.adapt([(x, model.design.encode({**hidden, **given}))])
        known[~marked] = _logits(adapted.model, x[~marked], {name: values[~marked] for name, values in hidden.items()})
    logits["adapted, controls known"] = known
    return [[*np.mean([_measured(logits[way], up, at_known, k) for k in range(2)], 0)] for way in WAYS]


def _logits(model, x, table):
    hidden = {name: values for name, values in table.items() if name not in LABELS}
    return model(x, metadata=model.design.encode(hidden)).double().numpy()


def _measured(logits, up, at_known, label):
    z, own, before = logits[:, label], up[:, label], at_known[:, label]
    wins, pairs, right, losses, rows, _, beyond = _sums(z, own, 0.0)
    offset = (beyond - before[~own].sum()) / (~own).sum() / before[~own].std()
    return wins / pairs, right / rows, losses / rows, abs(offset)


@torch.no_grad()
def no_offset(model, scale, seed):
    """Known scanners under a new name, 80 % with each label: in how many features of each layer 0 is inside."""
    cohort = simulate_cohort(size=32, seed=2000 + seed, independent=True)
    group = np.asarray(cohort.table["group"])
    wanted = {"HAND": 192, "MCI": 48, "HIV": 48, "CTRL": 12}
    rows = np.concatenate([np.flatnonzero(group == name)[:count] for name, count in wanted.items()])
    hidden = {name: values for name, values in people(cohort, rows, site="NEW").items() if name not in LABELS}
    x, metadata = scale(region_means(cohort)[rows]), model.design.encode(hidden)
    found = {}
    for key, span in (("prevalence .05 to .95", (0.05, 0.95)), ("prevalence .3 to .5", (0.3, 0.5))):
        offsets = model.adapt([(x, metadata)], prevalence=span).offsets
        found[key] = [float(((each.low <= 0) & (each.high >= 0)).double().mean()) for each in offsets.values()]
    return found


def cohort(seeds=range(5)):
    """Both questions on cohorts of five seeds; intervals over seeds."""
    lines, inside = {}, {}
    for layer in LAYERS:
        models = [trained(seed, layer) for seed in seeds]
        values = np.array([new_scanner(*each, seed) for each, seed in zip(models, seeds, strict=True)])
        lines[layer] = _lines(values, _over)
        shares = [no_offset(*each, seed) for each, seed in zip(models, seeds, strict=True)]
        inside[layer] = {key: np.mean([share[key] for share in shares], 0).round(3).tolist() for key in shares[0]}
    about = provenance(0, simulate_cohort(size=32, seed=0).fingerprint)
    return {"seeds": len(seeds), "lines": lines, "zero inside": inside, "provenance": {key: about[key] for key in KEPT}}


def _lines(values, estimate):
    """Each measure of each way, and its difference to the first way; `values` is `(n, ways, measures)`."""
    return {
        way: {
            key: {
                **estimate(values[:, place, column]),
                "difference": estimate(values[:, place, column] - values[:, 0, column]),
            }
            for column, key in enumerate(MEASURES)
        }
        for place, way in enumerate(WAYS)
    }


def _over(values):
    if not np.ptp(values):
        return balance_pilot.rounded(values[0], values[0], values[0])
    found = interval(list(enumerate(values)), test_share=0.0)
    return balance_pilot.rounded(found.mean, found.low, found.high)


def markdown(lines):
    """A table; a difference to the mean is bold where its interval does not include 0."""
    rows = [f"| layer | new site | {' | '.join(MEASURES.values())} |", "|---" * (len(MEASURES) + 2) + "|"]
    for layer, ways in lines.items():
        for way, values in ways.items():
            cells = [balance_pilot.cell("none" if way == WAYS[0] else way, values[key]) for key in MEASURES]
            rows.append(f"| `{layer}` | {way} | {' | '.join(cells)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    content = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    content |= {"format": "deconfound-new-sites", "plan": "docs/decisions/0017-sites-left-out.md"}
    content[sys.argv[1]] = abide(Path(sys.argv[2])) if sys.argv[1] == "abide" else cohort()
    RESULTS.write_text(json.dumps(content, indent=1) + "\n")
    print(markdown(content[sys.argv[1]]["lines"]))
