"""What can be wrong with a config beyond its words: columns, methods, networks, numbers out of range."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from deconfound.data.sources import Source
from deconfound.design.table import absent, is_missing
from deconfound.errors import DeconfoundError
from deconfound.methods import METHODS, method
from deconfound.methods.base import unknown_options
from deconfound.networks import network_faults
from deconfound.training.config import Config
from deconfound.training.sources import open_source
from deconfound.training.splits import Fold
from deconfound.training.tasks import CODES, Task
from deconfound.training.terms import columns_of, read_terms

LOGGERS = ("tensorboard", "mlflow")
SITES = ("site", "scanner", "center", "centre", "source")


def roles(config: Config) -> dict[str, list[str]]:
    """The columns that a config names, by the key that names them."""
    splits, data, design = config.splits, config.data, config.design
    return {
        "data.label": list(data.labels),
        "design.confounds": columns_of(read_terms(design.confounds, "")[0]),
        "design.keep": columns_of(read_terms(design.keep or (), "")[0]),
        "data.person": [data.person] if data.person else [],
        "data.controls": list(data.controls or {}),
        "data.types": list(data.types),
        "splits.column": [splits.column] if splits.column and splits.kind != "kfold" else [],
        "splits.stratify": list(splits.stratify or ()),
        "design.site": [design.site] if design.site else [],
    }


def open_data(config: Config) -> Source:
    """The source of a config."""
    named = [name for names in roles(config).values() for name in names]
    return open_source(config.data, [*named, *([config.data.id] if config.data.id else [])])


def look(config: Config) -> list[str]:
    """Every fault of a config and its data."""
    faults = setting_faults(config)
    try:
        source = open_data(config)
    except DeconfoundError as fault:
        return [*faults, *str(fault).split("\n")]
    return [*faults, *column_faults(config, source)]


def setting_faults(config: Config) -> list[str]:
    """What is wrong without looking at the data."""
    design, training, splits = config.design, config.training, config.splits
    faults = read_terms(design.confounds, "design.confounds")[1] + read_terms(design.keep or (), "design.keep")[1]
    if not design.confounds:
        faults.append("design.confounds must name at least one column; got none.")
    labels = config.data.labels
    faults += [] if labels else ["data.label must name at least one column; got none."]
    faults += [f"data.label must name each column once; got {n!r} twice." for n in {*labels} if labels.count(n) > 1]
    both = sorted(set(columns_of(read_terms(design.confounds, "")[0])) & set(config.data.labels))
    faults += [f"a column must be a label or a confound; got {name!r} as both." for name in both]
    for name in dict.fromkeys([config.method.name, *config.method.options]):
        try:
            kind = method(name)
            options = config.method.options.get(name, {})
            faults += unknown_options(kind, options) + _switch_faults(name, kind.options(), options)
            if name == config.method.name and 1 <= training.batch_size < kind.smallest_batch:
                faults.append(
                    f"training.batch_size must be at least {kind.smallest_batch} for method {name!r}; got "
                    f"{training.batch_size}."
                )
        except DeconfoundError as fault:
            faults.append(str(fault))
    faults += network_faults(config.network.name, config.network.options)
    sizes = config.compare.batch_sizes or ()
    ranges: list[tuple[str, Any, bool, str]] = [
        ("training.epochs", training.epochs, training.epochs >= 1, "at least 1"),
        ("training.batch_size", training.batch_size, training.batch_size >= 1, "at least 1"),
        ("training.lr", training.lr, training.lr > 0, "above 0"),
        ("training.patience", training.patience, training.patience is None or training.patience >= 1, "at least 1"),
        ("training.accumulate", training.accumulate, training.accumulate >= 1, "at least 1"),
        ("training.weight_decay", training.weight_decay, training.weight_decay >= 0, "at least 0"),
        ("training.focal_gamma", training.focal_gamma, training.focal_gamma >= 0, "at least 0"),
        ("training.threads", training.threads, training.threads is None or training.threads >= 1, "at least 1"),
        ("splits.validation", splits.validation, 0 < splits.validation <= 0.5, "above 0 and at most 0.5"),
        ("splits.folds", splits.folds, splits.folds >= 2, "at least 2"),
        ("splits.seed", splits.seed, splits.seed is None or splits.seed >= 0, "at least 0"),
        ("run.seed", config.run.seed, config.run.seed >= 0, "at least 0"),
        ("compare.seeds", list(config.compare.seeds), all(seed >= 0 for seed in config.compare.seeds), "at least 0"),
        ("compare.batch_sizes", list(sizes), all(size >= 1 for size in sizes), "at least 1"),
        ("training.devices", training.devices, training.devices != 0, "at least 1, or -1 for all"),
    ]
    faults += [f"{name} must be {rule}; got {value}." for name, value, right, rule in ranges if not right]
    cores = os.cpu_count() or 1
    on_cpu = training.accelerator == "cpu" or not torch.cuda.is_available()
    if on_cpu and isinstance(training.devices, int) and training.devices > cores:
        faults.append(
            f"training.devices must not exceed the {cores} cores of this machine, for each is a process; got "
            f"{training.devices}."
        )
    faults += [
        f"training.loggers must be among {', '.join(LOGGERS)}; got {name!r}."
        for name in training.loggers
        if name not in LOGGERS
    ]
    if splits.kind != "kfold" and splits.column is None:
        faults.append(f"splits.column must be given with splits.kind {splits.kind!r}; got none.")
    return faults


def _switch_faults(name: str, known: Mapping[str, Any], options: Mapping[str, Any]) -> list[str]:
    """Options that are on or off, and given as something else: any text would count as on."""
    return [
        f"option {key!r} of method {name!r} must be true or false; got {value!r}."
        for key, value in options.items()
        if isinstance(known.get(key), bool) and not isinstance(value, bool)
    ]


def method_faults(names: Sequence[str]) -> list[str]:
    """One sentence for each name that is no method."""
    faults = []
    for name in names:
        try:
            method(name)
        except DeconfoundError as fault:
            faults.append(str(fault))
    if not names:
        faults.append(f"methods must name at least one of {', '.join(METHODS)}; got none.")
    return faults


def column_faults(config: Config, source: Source) -> list[str]:
    """Columns that the table lacks, levels that its columns lack, and empty cells among the features."""
    available = list(source.table)
    faults = [fault for role, names in roles(config).items() for fault in absent(names, available, role)]
    for name, level in (config.data.controls or {}).items():
        if name in available and str(level) not in (found := _levels(source.table, name)):
            faults.append(f"data.controls must name a level of {name!r}; got {level!r}. It has: {', '.join(found)}.")
    design = config.design
    if design.site and design.site not in columns_of(read_terms(design.confounds, "")[0]):
        faults.append(f"design.site must be one of the confounds; got {design.site!r}.")
    faults += number_faults(source.table, [n for n in roles(config)["design.confounds"] if n not in config.data.types])
    values, names = getattr(source, "values", None), getattr(source, "names", ())
    if values is not None and names and np.isinf(values).any():
        row, place = np.argwhere(np.isinf(values))[0]
        faults.append(
            f"features must be finite; got an infinite {names[place]!r} in row {row}. Mend or leave out such cells."
        )
    if values is not None and names and config.data.missing_features == "error":
        empty = np.isnan(values).sum(0)
        if empty.any():
            worst = ", ".join(f"{names[i]} ({empty[i]})" for i in np.argsort(-empty)[:5] if empty[i])
            faults.append(
                f"features must be filled in every row; got empty cells in {int((empty > 0).sum())} columns: {worst}. "
                "Set data.missing_features: mean, or leave these columns out."
            )
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
    """Confounds that are quantities but for a few cells: one slip of the pen would make a category of each value."""
    faults = []
    for name in dict.fromkeys(names):
        row = slip(np.asarray(table[name])) if name in table else None
        if row is not None:
            faults.append(
                f"column {name!r} must be numbers throughout, or names; got {np.asarray(table[name])[row]!r} in row "
                f"{row} among numbers. Mend or empty that cell, or set data.types: {{{name}: categorical}}."
            )
    return faults


def slip(values: Any) -> int | None:
    """The first row that is no number in a column that nine times in ten is a number of many values, or None."""
    if values.dtype.kind not in "OUST":
        return None
    filled = [(row, str(value)) for row, value in enumerate(values.tolist()) if not is_missing(value)]
    wrong = [row for row, text in filled if not _is_number(text)]
    numbers = {text for _, text in filled if _is_number(text)}
    return wrong[0] if wrong and len(numbers) > CODES and len(wrong) <= 0.1 * len(filled) else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _levels(table: Mapping[str, Any], name: str) -> list[str]:
    return sorted({str(value) for value in np.asarray(table[name]).tolist()})
