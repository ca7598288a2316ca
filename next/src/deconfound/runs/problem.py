"""From a config to a problem: samples, task and folds, after all checks and before any training."""

from __future__ import annotations

import hashlib
import re
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from deconfound.data import OnProgress, Samples, open_samples
from deconfound.design import Design, source_columns
from deconfound.errors import DeconfoundError, DeconfoundWarning, OptionError, nearest_names
from deconfound.methods import METHODS, method_options
from deconfound.networks import build
from deconfound.runs.config import Config, make_term
from deconfound.table import check_table, format_names, format_rows, read_columns, read_table
from deconfound.training import Architecture, Augment, Fold, Task, read_task, split_folds

# Files that may hold columns of their own.
ARRAY_ENDINGS = (".npy", ".npz", ".pt", ".safetensors")
# Keys that name columns of the table.
ROLES = (
    *("data.labels", "design.confounds", "design.keep", "data.controls"),
    *("data.id", "data.person", "design.stratum", "splits.column"),
)

DATA_OPTIONS = ("size", "reader", "skip_bad", "cache")

# Where the config has what an argument in Python is called.
_SECTIONS = {
    **dict.fromkeys(("types", "positive", "features", "id", "person"), "data"),
    **dict.fromkeys(DATA_OPTIONS, "data.options"),
    **dict.fromkeys(("column", "kind"), "splits"),
    "unseen": "design",
    "at": "method",
}
_ARGUMENT = re.compile(rf"\b({'|'.join(_SECTIONS)})=('[^']*'|\[[^]]*\]|\{{[^}}]*\}}|\([^)]*\)|\w+)")


@dataclass(frozen=True, eq=False)
class Problem:
    """Everything that folds are trained on.

    Attributes:
        config: The config.
        samples: All samples, also those without a label, which are in no fold.
        task: The labels.
        folds: The folds, as rows of the samples.
        notes: Sentences for the report: rows that were left out, and what the table lacks.
        fingerprints: Digests of the samples and of files that the config names.
        is_from_files: False if the samples were given in Python.
    """

    config: Config
    samples: Samples
    task: Task
    folds: tuple[Fold, ...]
    notes: tuple[str, ...]
    fingerprints: dict[str, str]
    is_from_files: bool


def prepare(
    config: Config, data: Samples | None = None, on_progress: OnProgress | None = None
) -> Problem:
    """Open the samples of a config, check them, and divide them into folds.

    Args:
        config: The config.
        data: The samples, if they do not come from `config.data.source`.
        on_progress: Called while files are decoded.

    Raises:
        OptionError: Lists all faults of the config: columns, methods, networks, their options.
        TableError: Lists all faults of the table.
    """
    with config_words():
        _refuse(find_faults(config, data))
        samples = open_config(config, on_progress) if data is None else data
        return _Preparation(config, samples).make(is_from_files=data is None)


def vary(problem: Problem, config: Config) -> Problem:
    """Return the problem of a config with the same data and design, and another model.

    Raises:
        OptionError: Lists all faults of the model.
    """
    samples = problem.samples
    with config_words():
        _refuse(_find_model_faults(config))
        _make_model_once(config, samples, problem.task, problem.folds[0])
    return replace(problem, config=config, fingerprints=_take_fingerprints(config, samples))


def open_config(config: Config, on_progress: OnProgress | None = None) -> Samples:
    """Return the samples that a config names."""
    section = config.data
    assert section.source is not None
    return open_samples(
        section.source,
        section.table,
        id=section.id,
        features=section.features,
        roles=list(column_roles(config)),
        types=section.types,
        on_progress=on_progress,
        **section.options,
    )


def column_roles(config: Config) -> dict[str, str]:
    """Return the columns of the table that a config names, with the key that names each."""
    roles: dict[str, str] = {}
    for key in ROLES:
        value = attrgetter(key)(config) or ()
        terms = [value] if isinstance(value, str) else value
        for name in source_columns(map(make_term, terms)):
            roles.setdefault(name, key)
    return roles


def find_faults(config: Config, data: Samples | None = None) -> list[str]:
    """Return what can be known to be wrong before samples are decoded: columns, names, options."""
    faults: list[str] = []
    columns = None
    with _collect(faults):
        columns = _list_columns(config) if data is None else [*map(str, data.table)]
    roles = column_roles(config) | dict.fromkeys(config.data.types, "data.types")
    for name, key in roles.items():
        if columns is not None and name not in columns:
            faults.append(f"{key}: there is no column {name!r}. {nearest_names(name, columns)}")
    faults += _find_unknown("data.options:", config.data.options, DATA_OPTIONS)
    return faults + _find_model_faults(config)


def _list_columns(config: Config) -> list[str] | None:
    """Return the columns that source and table have, or None if other files may have more."""
    source, table = config.data.source, config.data.table
    if source is None or source.lower().endswith(ARRAY_ENDINGS):
        return None
    if Path(source, "participants.tsv").exists():
        return None
    tables = [path for path in (source, table) if path is not None and not Path(path).is_dir()]
    return [name for path in tables for name in read_columns(path)] or None


def _find_model_faults(config: Config) -> list[str]:
    """Return what is wrong with names and options of method, network and augmentation."""
    method, network, faults = config.method, config.network, list[str]()
    with _collect(faults, "method.name: "):
        known = method_options(method.name)
        if method.name in METHODS:
            faults += _find_unknown(f"method.options: {method.name} has", method.options, known)
    # Networks of other code are made once the samples are open.
    if network.name is not None and ":" not in network.name and network.name != "huggingface":
        shape = (1, 16, 16) if network.name == "convnet" else (4,)
        with _collect(faults, "network: "):
            build(network.name, shape, 1, network.options)
    if network.weights is not None and not Path(network.weights).is_file():
        faults.append(f"network.weights: there is no file {network.weights!r}. Correct the path.")
    augment = config.training.augment
    unknown = _find_unknown("training.augment:", augment, [one.name for one in fields(Augment)])
    with _collect(faults, "training.augment: "):
        Augment(**({} if unknown else augment))
    return faults + unknown


def _find_unknown(place: str, options: Iterable[str], known: Collection[str]) -> list[str]:
    """Return a sentence for each option that is unknown."""
    advice = {name: nearest_names(name, known) if known else "Leave it out." for name in options}
    return [f"{place} no option {name!r}. {advice[name]}" for name in options if name not in known]


class _Preparation:
    """Gathers the faults of a table over all steps from samples to folds."""

    def __init__(self, config: Config, samples: Samples) -> None:
        self.config, self.samples = config, samples
        self.confounds = source_columns(config.terms("confounds"))
        self.faults: list[str] = []
        self.notes = [*samples.notes]

    def make(self, is_from_files: bool) -> Problem:
        """Return the problem, or raise an error with all faults."""
        config, samples, faults = self.config, self.samples, self.faults
        data = config.data
        columns, task, folds = None, None, None
        rows = np.arange(len(samples))
        with _collect(faults):
            # Numbers that may be codes need a type.
            columns = read_table(samples.table, [*data.labels, *self.confounds], types=data.types)
            rows = np.flatnonzero(columns[list(data.labels)].notna().all(axis=1))
            self._check_columns(columns, rows)
        with _collect(faults):
            task = read_task(samples.table.iloc[rows], data.labels, data.positive, data.types)
        self._check_features(rows)
        if columns is not None and task is not None:
            with _collect(faults):
                folds = self._split(task, columns, rows)
        if task is not None and folds is not None and not faults:
            with _collect(faults):
                _make_model_once(config, samples, task, folds[0])
        _refuse(faults)
        assert task is not None
        assert folds is not None
        notes = (*self.notes, *(f"Fold {fold.name}: {fold.note}" for fold in folds if fold.note))
        prints = _take_fingerprints(config, samples)
        return Problem(config, samples, task, folds, notes, prints, is_from_files)

    def _check_columns(self, columns: pd.DataFrame, rows: NDArray[np.intp]) -> None:
        """Add what `check_table` finds in the rows with labels.

        Args:
            columns: Labels and confounds with their kinds.
            rows: The rows with labels.
        """
        data, samples = self.config.data, self.samples
        if len(rows) < len(samples):
            self.notes.append(f"{len(samples) - len(rows)} rows without a label are left out.")
        features = [] if samples.features is None else list(samples.features.columns)
        table = samples.table.assign(**columns).iloc[rows]
        for note in check_table(table, data.labels, self.confounds, data.person, features):
            if note.kind == "missing" and note.column in self.confounds:
                # `check_table` counts the rows of the table that it gets.
                where = format_rows(rows[list(note.rows)].tolist())
                text = f"Confound {note.column!r} is empty in {where}."
                self._add_empty_cells(text, "design.unseen", self.config.design.unseen)
            elif note.is_error:
                self.faults.append(str(note))
            elif note.kind != "person":
                self.notes.append(note.text)

    def _check_features(self, rows: NDArray[np.intp]) -> None:
        """Add a fault or a note if cells of features are empty."""
        if self.samples.features is None:
            return
        is_empty = np.isnan(self.samples.x[rows])
        names = np.array(self.samples.features.names)[is_empty.any(axis=0)].tolist()
        if names:
            text = f"{is_empty.sum()} cells of features are empty, in {format_names(names)}."
            self._add_empty_cells(text, "data.missing", self.config.data.missing)

    def _add_empty_cells(self, text: str, key: str, rule: str) -> None:
        if rule == "error":
            self.faults.append(f"{text} Fill in these cells, or write {key}: mean.")
        else:
            self.notes.append(f"{text} These count as the mean of the training rows.")

    def _split(self, task: Task, columns: pd.DataFrame, rows: NDArray[np.intp]) -> tuple[Fold, ...]:
        """Return the folds of the rows that have labels, as rows of all samples."""
        config, splits = self.config, self.config.splits
        categorical = [name for name in self.confounds if columns[name].dtype == "category"]
        stratum = config.design.stratum or next(iter(categorical), None)
        if stratum is not None and stratum not in categorical:
            advice = f"Write one of {categorical}, or null."
            raise OptionError(f"design.stratum: {stratum!r} is no confound with levels. {advice}")
        folds = split_folds(
            self.samples.table.iloc[rows],
            task,
            kind=splits.kind,
            folds=splits.folds,
            column=splits.column,
            stratum=stratum,
            person=config.data.person,
            ids=self.samples.ids[rows].tolist(),
            validation=splits.validation,
            seed=config.run.seed if splits.seed is None else splits.seed,
        )
        parts = ("train", "validation", "test")
        return tuple(
            replace(fold, **{part: rows[getattr(fold, part)] for part in parts}) for fold in folds
        )


def _make_model_once(config: Config, samples: Samples, task: Task, fold: Fold) -> None:
    """Make network and method, so that wrong modules and levels are known before jobs start."""
    recipe = config.recipe(samples.kind)
    design = Design(
        recipe.confounds, [*task.labels, *recipe.keep], types=recipe.types, unseen=recipe.unseen
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconfoundWarning)
        design.fit(samples.table.iloc[fold.train])
    strata = [name for name in source_columns(recipe.confounds) if name in design.levels]
    example = torch.from_numpy(np.nan_to_num(samples.x[fold.train[:2]].astype(np.float32)))
    architecture = Architecture.from_recipe(
        recipe, samples.shape, recipe.stratum or next(iter(strata), None)
    )
    with torch.random.fork_rng():
        method = architecture.make(task, design, example)
    if method.needs_confounds:
        design.encode(samples.table.iloc[fold.test])


def _take_fingerprints(config: Config, samples: Samples) -> dict[str, str]:
    """Return digests of the samples, and of files that decide the numbers: weights, own code."""
    paths = {"network.weights": config.network.weights}
    for key, name in (("network.name", config.network.name), ("method.name", config.method.name)):
        module = str(name).partition(":")[0]
        if not module.startswith("sklearn."):
            paths[key] = getattr(sys.modules.get(module), "__file__", None)
    prints = {"data": samples.fingerprint}
    for key, path in paths.items():
        if path is not None:
            prints[key] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return prints


@contextmanager
def _collect(faults: list[str], place: str = "") -> Iterator[None]:
    """Add the faults of an error that the context raises; the code behind the context goes on."""
    try:
        yield
    except DeconfoundError as error:
        faults += [place + line for line in str(error).splitlines()]


def _refuse(faults: list[str]) -> None:
    if faults:
        raise OptionError("\n".join(dict.fromkeys(faults)))


@contextmanager
def config_words() -> Iterator[None]:
    """Let errors inside this context advise keys of a config, instead of arguments in Python."""
    try:
        yield
    except DeconfoundError as error:
        raise type(error)(name_keys(str(error))) from error


def name_keys(message: str) -> str:
    """Return a message with keys of a config instead of arguments in Python.

    Example:
        >>> name_keys("Write types={'site': 'categorical'}, positive='AD' or size=(64, 48).")
        'Write data.types: {site: categorical}, data.positive: AD or data.options.size: [64, 48].'
    """

    def name_key(match: re.Match[str]) -> str:
        value = match[2].translate(str.maketrans("()", "[]", "'"))
        return f"{_SECTIONS[match[1]]}.{match[1]}: {'null' if value == 'None' else value}"

    return _ARGUMENT.sub(name_key, message)
