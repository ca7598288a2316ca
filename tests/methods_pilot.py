"""The new methods on two real tables, as `docs/decisions/0012-methods-on-tables.md` plans it.

`python -m tests.methods_pilot train FOLDER` trains what is not there yet, and `… measure FOLDER` writes the results;
`docs/concepts/methods.md` has the tables that `markdown` makes of them, and a test compares the two.
"""

import sys
from pathlib import Path

from deconfound.training import fit
from tests import balance_pilot

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results" / "methods" / "tables.json"
WEIGHTS = {"": {}, " + overlap": {"balance": "overlap"}}
FEW, SOME, ALL = ("none", "erase"), ("none", "erase", "dependence"), ("none", "erase", "dependence", "adversarial")
CELLS = {
    "heart": {"5-fold": ALL, "site left out": ALL},
    "abide": {"5-fold": SOME, "site left out": FEW},
}


def arms(methods):
    return {method + word: options for method in methods for word, options in WEIGHTS.items()}


def config_of(name, split, arm, folder):
    config = balance_pilot.config_of(name, split, "none", 0, folder)
    method = arm.split(" +")[0]
    places = {"at": ["fc1"]} if (name, method) == ("abide", "erase") else {}
    path = balance_pilot.run_folder(name, split, arm, 0, folder)
    return {
        **config,
        "method": {"name": method, **places},
        "training": {**config["training"], **arms([method])[arm]},
        "run": {**config["run"], "folder": str(path)},
    }


def train(folder):
    """Every cell of the plan, those that are finished left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, splits in CELLS.items():
        for split, methods in splits.items():
            for arm in arms(methods):
                fit(config_of(name, split, arm, folder), audit=False)
                print(name, split, arm, flush=True)


if __name__ == "__main__":
    train(Path(sys.argv[2]))
