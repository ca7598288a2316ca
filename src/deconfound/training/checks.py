"""What can be wrong with a config beyond the types of its values: columns, methods, networks, numbers out of range."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from deconfound.data import Source, check_finite
from deconfound.design.table import absent, is_missing, level_text
from deconfound.design.units import reads_as_number
from deconfound.errors import DeconfoundError, TableError
from deconfound.methods import METHODS, method
from deconfound.methods.base import unknown_options
from deconfound.networks import network_faults
from deconfound.training.sources import GIVEN, open_source
from deconfound.training.splits import Fold
from deconfound.training.tasks import CODES, Task
from deconfound.training.terms import columns_of, read_terms

if TYPE_CHECKING:
    from deconfound.training.config import Config

# Kinds of splits that read a column.
BY_COLUMN = ("leave-one-out", "column")
RENAMED_OPTIONS = {"settle": "refit"}


def listed_faults(what: str, faults: Sequence[str]) -> str:
    """One fault in a sentence, several in a list."""
    if len(faults) == 1:
        return f"{what}: {faults[0]}"
    return f"{what} has {len(faults)} faults:\n" + "\n".join(f"- {fault}" for fault in faults)


def roles(config: Config) -> dict[str, list[str]]:
    """The columns that a config names, by the key that names them."""
    splits, data, design = config.splits, config.data, config.design
    return {
        "data.label": list(data.labels),
        "design.confounds": design.confound_columns,
        "design.keep": columns_of(read_terms(design.keep or (), "")[0]),
        "data.person": [data.person] if data.person else [],
        "data.controls": list(data.controls or {}),
        "data.types": list(data.types),
        "splits.column": [splits.column] if splits.column and splits.kind in BY_COLUMN else [],
        "splits.stratify": list(splits.stratify or ()),
        "design.site": [design.site] if design.site else [],
        "training.within": [config.training.within] if config.training.within else [],
    }


def open_data(config: Config) -> Source:
    """The source of a config."""
    return open_source(config.data, named_columns(config), design_columns(config))


def design_columns(config: Config) -> list[str]:
    """The columns of confounds and keep."""
    return roles(config)["design.confounds"] + roles(config)["design.keep"]


def named_columns(config: Config) -> list[str]:
    """The columns that a config names, each once."""
    named = [name for names in roles(config).values() for name in names]
    return list(dict.fromkeys([*named, *([config.data.id] if config.data.id else [])]))


def validate_config(config: Config) -> list[str]:
    """Every fault of a config and of its data."""
    faults = setting_faults(config)
    if config.data.source == GIVEN:
        return faults
    try:
        source = open_data(config)
    except DeconfoundError as fault:
        return [*faults, *str(fault).split("\n")]
    return [*faults, *column_faults(config, source)]


def setting_faults(config: Config) -> list[str]:
    """What is wrong without looking at the data."""
    design, training, splits, labels = config.design, config.training, config.splits, config.data.labels
    faults = read_terms(design.confounds, "design.confounds")[1] + read_terms(design.keep or (), "design.keep")[1]
    faults += [] if design.confounds else ["design.confounds must name at least one column; got none."]
    faults += role_faults(labels, design.confound_columns, "data.label")
    for name in dict.fromkeys([config.method.name, *config.method.options]):
        faults += _method_faults(config, name)
    faults += network_faults(config.network.name, config.network.options)
    if training.devices == 0:
        faults.append("training.devices must be at least 1, or -1 for all; got 0.")
    cores = os.cpu_count() or 1
    on_cpu = training.accelerator == "cpu" or not torch.cuda.is_available()
    if on_cpu and isinstance(training.devices, int) and training.devices > cores:
        faults.append(
            f"training.devices must not exceed the {cores} cores of this machine, for each is a process; got "
            f"{training.devices}."
        )
    if (training.loss == "within") != (training.within is not None):
        faults.append(
            f"training.within must name a column with loss within, and with no other; got {training.within!r}."
        )
    if splits.kind in BY_COLUMN and splits.column is None:
        faults.append(f"splits.column must be given with splits.kind {splits.kind!r}; got none.")
    return faults


def role_faults(labels: Sequence[str], confounds: Sequence[str], option: str) -> list[str]:
    """Labels that are absent, named twice, or confounds as well."""
    faults = [] if labels else [f"{option} must name at least one column; got none."]
    twice = [name for name in dict.fromkeys(labels) if list(labels).count(name) > 1]
    faults += [f"{option} must name each column once; got {name!r} twice." for name in twice]
    both = [name for name in dict.fromkeys(confounds) if name in labels]
    return faults + [f"a column must be a label or a confound; got {name!r} as both." for name in both]


def _method_faults(config: Config, name: str) -> list[str]:
    """A method that does not exist, options that it does not have, and a batch that is too small for it."""
    try:
        kind = method(name)
    except DeconfoundError as fault:
        return [str(fault)]
    options, known = config.method.options.get(name, {}), kind.options()
    renamed = {key: new for key, new in RENAMED_OPTIONS.items() if key in options and new in known}
    faults = [
        f"option {key!r} of method {name!r} is called {new!r} since 0.2; rename it." for key, new in renamed.items()
    ]
    faults += unknown_options(kind, [key for key in options if key not in renamed])
    faults += [
        f"option {key!r} of method {name!r} must be true or false; got {value!r}."
        for key, value in options.items()
        if isinstance(known.get(key), bool) and not isinstance(value, bool)  # any text would count as true
    ]
    if options.get("controls_only") is True and not config.data.controls:
        faults.append(f"data.controls must be given with option 'controls_only' of method {name!r}; got none.")
    weighted = config.training.balance != "none" and config.training.balance_by == "weight"
    if name == config.method.name and weighted and not kind.takes_weights:
        faults.append(
            f"training.balance_by must be sample for method {name!r}, which cannot be fitted under weights; got weight."
        )
    size = config.training.batch_size
    if name == config.method.name and size < kind.smallest_batch:
        faults.append(f"training.batch_size must be at least {kind.smallest_batch} for method {name!r}; got {size}.")
    return faults


def method_faults(names: Sequence[str]) -> list[str]:
    """One sentence for each name that is no method."""
    faults = [] if names else [f"methods must name at least one of {', '.join(METHODS)}; got none."]
    for name in names:
        try:
            method(name)
        except DeconfoundError as fault:
            faults.append(str(fault))
    return faults


def column_faults(config: Config, source: Source) -> list[str]:
    """Columns that the table lacks, levels that its columns lack, and cells of the features that cannot be used."""
    available, named = list(source.table), roles(config)
    faults = [fault for role, names in named.items() for fault in absent(names, available, role)]
    for name, level in (config.data.controls or {}).items():
        cells = np.asarray(source.table.get(name, ())).tolist()
        found = sorted({level_text(value) for value in cells if not is_missing(value)})
        if name in available and level_text(level) not in found:
            faults.append(f"data.controls must name a level of {name!r}; got {level!r}. It has: {', '.join(found)}.")
    if config.design.site and config.design.site not in named["design.confounds"]:
        faults.append(f"design.site must be one of the confounds; got {config.design.site!r}.")
    faults += number_faults(source.table, [n for n in named["design.confounds"] if n not in config.data.types])
    if config.training.augment and len(source.shape) not in (3, 4):
        shape = tuple(source.shape)
        faults.append(f"training.augment must be left out but for images and scans; got samples of shape {shape}.")
    try:
        check_finite(source, config.data.missing_features, "data.missing_features")
    except TableError as error:
        faults += str(error).split("\n")
    return faults


def class_faults(task: Task, codes: NDArray[np.float64], fold: Fold) -> list[str]:
    """Labels of which a fold's training rows do not show enough to learn and to validate them."""
    if task.kind == "regression":
        return []
    faults = []
    for place, (label, levels) in enumerate(zip(task.labels, task.levels, strict=True)):
        there = {*codes[fold.train, place].tolist()}
        lacking = [levels[int(code)] for code in sorted({*codes[fold.validation, place].tolist()} - there)]
        advice = "Use other or fewer folds, or leave rare levels out."
        if len(there) < 2:
            alone = ", ".join(repr(levels[int(code)]) for code in there) or "none"
            faults.append(
                f"fold {fold.name}: the training rows must hold two levels of {label!r} or more; got {alone}. {advice}"
            )
        elif lacking:
            shown = ", ".join(map(repr, lacking[:5])) + (f" and {len(lacking) - 5} more" if len(lacking) > 5 else "")
            faults.append(
                f"fold {fold.name}: the training rows must hold every level of {label!r} that the validation rows "
                f"hold; got none of {shown}. {advice}"
            )
    return faults


def number_faults(table: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Confounds that are numeric but for a few cells: one typing error would make a category of each value."""
    faults = []
    for name in dict.fromkeys(names):
        row = first_non_numeric_row(np.asarray(table[name])) if name in table else None
        if row is not None:
            faults.append(
                f"column {name!r} must be numbers throughout, or names; got {np.asarray(table[name])[row]!r} in row "
                f"{row} among numbers. Fix or empty that cell, or set data.types: {{{name}: categorical}}."
            )
    return faults


def first_non_numeric_row(values: NDArray[Any]) -> int | None:
    """The first row that is no number in a column where nine cells in ten are numbers of many values, or None."""
    if values.dtype.kind not in "OUST":
        return None
    filled = [(row, str(value)) for row, value in enumerate(values.tolist()) if not is_missing(value)]
    wrong = [row for row, text in filled if not reads_as_number(text)]
    numbers = {text for _, text in filled if reads_as_number(text)}
    return wrong[0] if wrong and len(numbers) > CODES and len(wrong) <= 0.1 * len(filled) else None
