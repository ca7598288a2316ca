"""The text of a first config: YAML with the meaning of each key beside it, taken from the models."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from deconfound.errors import need
from deconfound.training.config import Config, DataOptions, sections
from deconfound.training.tasks import Task

FOLDS = 5
_OPTIONS: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": [64, 32], "dropout": 0.2},
    "resnet3d": {"hidden": [128, 16]},
    "package.module:callable": {},
}


@dataclass(frozen=True)
class FirstConfig:
    """What a look at the data has shown; with rare levels a fold may be trained without some of them."""

    data: DataOptions
    task: Task
    shape: tuple[int, ...]
    confounds: Sequence[str]
    person: str | None
    site: str | None
    folder: str
    missing_confounds: bool
    missing_features: bool
    rare_levels: bool

    def text(self, schema: str = "") -> str:
        """The YAML; its first line names the schema for editors, if there is one."""
        head = f"# yaml-language-server: $schema={schema}\n" if schema else ""
        head += (
            "# What `deconfound fit` and `deconfound compare` train. Any key can be changed on the command:\n"
            "# deconfound fit config.yaml training.lr=0.0003 method=mdn\n"
        )
        return "\n".join([head, *(_section(name, lines) for name, lines in self._sections().items())])

    def _sections(self) -> dict[str, list[tuple[str, Any, bool]]]:
        """Keys of each section with their value, and whether they are in force or only shown as a comment."""
        data, task = self.data, self.task
        label: Any = list(task.labels) if len(task.labels) > 1 else task.labels[0]
        network = {1: "mlp", 2: "cnn1d", 3: "cnn2d", 4: "resnet3d"}.get(len(self.shape), "package.module:callable")
        return {
            "data": [
                ("source", data.source, True),
                ("table", data.table, data.table is not None),
                ("options", data.options, bool(data.options)),
                ("id", data.id or "participant_id", data.id is not None),
                ("label", label, True),
                ("positive", task.levels[0][1] if task.kind == "binary" else None, task.kind == "binary"),
                ("types", data.types, bool(data.types)),
                ("person", self.person, True),
                ("missing_features", "mean" if self.missing_features else "error", True),
                ("features", ["thickness_*"] if len(self.shape) == 1 else None, False),
            ],
            "design": [
                ("confounds", list(self.confounds), True),
                ("keep", label, False),
                ("missing", "mean" if self.missing_confounds else "error", True),
                ("unseen", "mean", self.rare_levels),
            ],
            "network": [
                ("name", network, True),
                ("options", _OPTIONS.get(network, {"hidden": 64, "dropout": 0.2}), network == "mlp"),
                ("weights", "weights.safetensors" if len(self.shape) > 1 else None, False),
            ],
            "method": [("name", "pmdn", True), ("at", ["fc1", "out"], False)],
            "training": [
                ("task", task.kind, False),
                ("epochs", 100, True),
                ("patience", 15, True),
                ("batch_size", 64, True),
                ("lr", 0.001, True),
                ("loss", "focal", False),
                ("augment", ["flip", "rotate", "shift"] if len(self.shape) in (3, 4) else None, False),
                ("workers", 2 if len(self.shape) > 1 else None, False),
                ("precision", "bf16-mixed", False),
            ],
            "splits": [
                ("kind", "kfold", True),
                ("folds", FOLDS, True),
                ("column", self.site or "site", False),
                ("stratify", [*task.labels, *([self.site] if self.site else [])], True),
                ("validation", 0.15, True),
            ],
            "run": [("folder", self.folder, True), ("seed", 0, True)],
            "compare": [
                ("methods", ["none", "input-residualize", "adversarial", "mdn", "pmdn"], True),
                ("seeds", [0], True),
            ],
        }


def schema_text() -> str:
    """The JSON schema of a config, by which an editor completes and checks keys."""
    return json.dumps(Config.model_json_schema(), indent=1, ensure_ascii=False) + "\n"


def reference() -> str:
    """Every key with its default and its meaning, as a table in Markdown."""
    lines = ["| key | default | meaning |", "|---|---|---|"]
    for name, kind in sections().items():
        for key, field in kind.model_fields.items():
            default = (
                "must be given" if field.is_required() else f"`{_shown(field.get_default(call_default_factory=True))}`"
            )
            meaning = (field.description or "").replace("|", "\\|")
            lines.append(f"| `{name}.{key}` | {default} | {meaning} |")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return f"{value:g}" if isinstance(value, float) and math.isfinite(value) else str(value)


def _section(name: str, lines: Iterable[tuple[str, Any, bool]]) -> str:
    fields = sections()[name].model_fields
    written = [f"{name}:"]
    for key, value, in_force in lines:
        if value or in_force:
            text = f"  {'' if in_force else '# '}{key}: {_yaml(value)}"
            written.append(f"{text:<38} # {fields[key].description}")
    return "\n".join(written) + "\n"


def _yaml(value: Any) -> str:
    text: str = need("yaml", "train").safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6)
    return text.split("\n...")[0].strip()
