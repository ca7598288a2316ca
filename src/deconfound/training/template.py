"""The text of a first config: YAML with a comment behind every key that one may want to change."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deconfound.training.config import Data
from deconfound.training.needs import need
from deconfound.training.tasks import Task

FOLDS = 5


@dataclass(frozen=True)
class Known:
    """What a look at the data has shown.

    Attributes:
        data: Where samples and table lie.
        task: What is predicted.
        shape: The shape of a sample.
        confounds: Columns or terms to remove.
        person: The column that names the person of a row, or None.
        site: The confound that says where a row comes from, or None.
        folder: Where the run will lie.
        missing_confounds: Whether cells of the confounds are empty.
        missing_features: Whether cells of the features are.
        rare_levels: Whether a fold may be trained without some level.
    """

    data: Data
    task: Task
    shape: tuple[int, ...]
    confounds: Sequence[str]
    person: str | None
    site: str | None
    folder: str
    missing_confounds: bool
    missing_features: bool
    rare_levels: bool

    @property
    def label(self) -> str:
        """The labels as YAML."""
        return _shown(list(self.task.labels) if len(self.task.labels) > 1 else self.task.labels[0])


def config_text(known: Known) -> str:
    """The config of a first run."""
    parts = [
        _data(known),
        _design(known),
        _network(known),
        _METHOD_AND_TRAINING,
        _splits(known),
        _compare_and_run(known),
    ]
    return _aligned(_HEAD + "\n".join(parts))


_HEAD = """# What `deconfound fit` and `deconfound compare` train. Any key can be changed on the command:
# deconfound fit config.yaml training.lr=0.0003 method=mdn

"""


def _data(known: Known) -> str:
    data, task = known.data, known.task
    positive = ""
    if task.kind == "binary":
        positive = f"  positive: {_shown(task.levels[0][1])} # the level that a high score stands for\n"
    features = "mean" if known.missing_features else "error"
    table = f"  table: {_shown(data.table)}\n" if data.table else ""
    options = f"  options: {_shown(data.options)}\n" if data.options else ""
    key = f"  id: {_shown(data.id)}\n" if data.id else "  # id: participant_id        # names rows in predictions\n"
    return f"""data:
  source: {_shown(data.source)}
{table}{options}{key}  label: {known.label}              # {task.kind}
{positive}  person: {_shown(known.person)}  # column that names the person of a row; kept in one fold
  missing_features: {features}  # what an empty cell is: error, or mean of the training rows
  # features: [thickness_*]   # columns or globs; all numeric columns without another role if left out
"""


def _design(known: Known) -> str:
    return f"""design:
  confounds: {_shown(list(known.confounds))}   # removed; also spline(age, 4), poly(age, 2), age:sex
  # keep: {known.label}              # what must survive; the label if left out
  missing: {"mean" if known.missing_confounds else "error"}              # what a missing confound is: error, or mean
  {"" if known.rare_levels else "# "}unseen: mean              # what a site that was not trained on is: error, or mean
"""


def _network(known: Known) -> str:
    name = {1: "mlp", 4: "resnet3d"}.get(len(known.shape), "package.module:callable")
    hidden = "\n  options: {hidden: [64, 32], dropout: 0.2}" if name == "mlp" else ""
    return f"""network:
  name: {name}                   # mlp, synthetic_cnn, resnet3d, or package.module:callable{hidden}
"""


_METHOD_AND_TRAINING = """method:
  name: pmdn                  # see docs/which-method.md
  # at: [fc1, out]            # modules to normalise; the library's choice if left out

training:
  epochs: 100
  patience: 15                # stop after so many epochs without a better validation loss
  batch_size: 64
  lr: 0.001
  # loss: focal               # for rare labels
  # precision: bf16-mixed     # devices, strategy, accumulate, clip go to Lightning as they are
"""


def _splits(known: Known) -> str:
    site = known.site
    leave = f"    # or leave-one-out with column: {_shown(site)}" if site else "    # or leave-one-out, or column"
    return f"""splits:
  kind: kfold                 {leave}
  folds: {FOLDS}
  stratify: {_shown([*known.task.labels, *([site] if site else [])])}
  validation: 0.15            # share of the training rows that chooses the epoch
"""


def _compare_and_run(known: Known) -> str:
    return f"""compare:
  methods: [none, input-residualize, adversarial, mdn, pmdn]
  seeds: [0]

run:
  folder: {_shown(known.folder)}
  seed: 0
"""


def _shown(value: Any) -> str:
    text: str = need("yaml", "train").safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6)
    return text.split("\n...")[0].strip()


def _aligned(text: str) -> str:
    """Put the comments behind values into one column."""
    lines = []
    for line in text.split("\n"):
        found = re.fullmatch(r"(\s*[^#\s].*?)\s+(# .*)", line)
        lines.append(f"{found[1]:<38} {found[2]}" if found else line)
    return "\n".join(lines)
