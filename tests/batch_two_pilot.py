"""Layers at batch 2 with and without weights, in small: the whole cells of the synthetic experiment are for a GPU.

Plan, before the run: three seeds of 2,500 steps at the learning rate of the quick grid, judged as the whole experiment
judges. Asked is whether weights let a layer be at the ceiling where two images make a batch, as at 20 and 200; it is
where the interval of its accuracy on images with an independent confound holds 83.3 %.

`python -m tests.batch_two_pilot FOLDER` trains what is missing there and writes the results (ten minutes on one core).
"""

import json
import sys
from pathlib import Path

from deconfound_lab.harness import run_experiment
from deconfound_lab.synthetic.experiment import SyntheticExperiment
from deconfound_lab.synthetic.plan import Setup
from deconfound_lab.synthetic.tables import Results, footing_table

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "balance" / "batch-2.json"
METHODS = ("none", "mdn", "rmdn", "pmdn-alternating", "pmdn")
SETUPS = [
    Setup(method, 2, lr=5e-4, steps=2500, balanced=balanced, seeds=(0, 1, 2))
    for balanced in (False, True)
    for method in METHODS
]


def markdown(content):
    """The table on the page."""
    return footing_table(Results(content)).markdown()


if __name__ == "__main__":
    experiment = SyntheticExperiment(setups=SETUPS, test_per_group=2000)
    done = run_experiment(experiment, Path(sys.argv[1]), progress=lambda *state: print(*state, flush=True))
    RESULTS.write_text(json.dumps(done.results, indent=1) + "\n")
