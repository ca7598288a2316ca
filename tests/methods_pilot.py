"""The new methods on two real tables, as `docs/decisions/0012-methods-on-tables.md` plans it.

`python -m tests.methods_pilot train FOLDER` trains what is not there yet, and `… measure FOLDER` writes the results;
`docs/concepts/methods.md` has the tables that `markdown` makes of them, and a test compares the two.
"""

import json
from pathlib import Path

from deconfound.training import fit
from tests import balance_pilot

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results" / "methods" / "tables.json"
ALL = tuple(method + word for method in ("none", "erase", "dependence", "adversarial") for word in ("", " + overlap"))
CELLS = {"heart": {"5-fold": ALL, "site left out": ALL}, "abide": {"5-fold": ALL[:5]}}


def config_of(name, split, arm, folder):
    config = balance_pilot.config_of(name, split, "none", 0, folder)
    return balance_pilot.with_arm(config, name, arm, run_folder(name, split, arm, folder))


def train(folder):
    """Every cell of the plan, those that are finished left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, splits in CELLS.items():
        for split, arms in splits.items():
            for arm in arms:
                fit(config_of(name, split, arm, folder), audit=False)
                print(name, split, arm, flush=True)


def measure(folder):
    """The content of the results: every measure of every arm that was trained, and the weights that were chosen."""
    content = {"format": "deconfound-methods-tables", "plan": "docs/decisions/0012-methods-on-tables.md", "sets": {}}
    for name, splits in CELLS.items():
        found, chosen = {}, {}
        for arm in splits["5-fold"]:
            trained = {split: 1 for split, arms in splits.items() if arm in arms}
            found[arm] = balance_pilot._measured(name, trained, arm, folder)
            chosen |= {f"{arm}, {split}": _chosen(run_folder(name, split, arm, folder)) for split in trained}
        lines = {
            arm: {key: balance_pilot._estimate(values[key], found["none"][key]) for key in values}
            for arm, values in found.items()
        }
        content["sets"][name] = {
            "lines": lines,
            "chosen": {key: value for key, value in chosen.items() if value},
            "seconds": {arm: balance_pilot.seconds_of(run_folder(name, "5-fold", arm, folder)) for arm in found},
            "provenance": balance_pilot.provenance(run_folder(name, "5-fold", "none", folder)),
        }
    return content


def run_folder(name, split, arm, folder):
    return balance_pilot.run_folder(name, split, arm, 0, folder)


def _chosen(path):
    """The weight of each fold, and whether outputs collapsed at a weight that was tried."""
    folds = [json.loads(file.read_text()) for file in sorted(path.glob("fold-*/result.json"))]
    told = [result["chosen"] for result in folds if result["chosen"]]
    return [
        {"weight": each["weight"], "tried": len(each["tried"]), "collapsed": _collapsed(each["tried"])} for each in told
    ]


def _collapsed(tried):
    return any(each["gain"] <= each["gain_error"] for each in tried)


def markdown(content, name):
    """The table of one set of data, as that of balance, with the seconds of a fold."""
    return balance_pilot.markdown(content, name, content["sets"][name]["seconds"])


if __name__ == "__main__":
    balance_pilot.main(train, measure, RESULTS, markdown)
