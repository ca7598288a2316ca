"""From a config to a problem: samples, task and folds, after all checks and before any training."""

from __future__ import annotations

import hashlib
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from deconfound.data import OnProgress, Samples, open_samples
from deconfound.design import Design, source_columns
from deconfound.errors import DeconfoundError, DeconfoundWarning, OptionError, nearest_names
from deconfound.methods import METHODS, method_options
from deconfound.networks import build
from deconfound.table import check_table, format_names, format_rows, read_columns, read_table
from deconfound.training import Architecture, Augment, Fold, Task, read_task, split_folds

if TYPE_CHECKING:
    from deconfound.runs.config import Config

TABLE_ENDINGS = (".csv", ".tsv", ".txt", ".parquet", ".xlsx", ".xlsm", ".gz")
# Shapes for which options of a network can be checked before the samples are open.
EXAMPLE_SHAPES = {"mlp": (4,), "convnet": (1, 16, 16)}

# Advice for Python, and the same for a config.
_REWRITES = (
    (r"\btypes=\{'([^']*)': '([^']*)'\}", r"data.types: {\1: \2}"),
    (r"\bpositive=\{'([^']*)': '([^']*)'\}", r"data.positive: {\1: \2}"),
    (r"\bpositive='([^']*)'", r"data.positive: \1"),
    (r"\bfeatures=(\[[^\]]*\])", r"data.features: \1"),
    (r"\b(?:Design\(…, )?unseen='(mean|error)'\)?", r"design.unseen: \1"),
    (r"\b(id|person)='([^']*)'", r"data.\1: \2"),
    (r"\b(column|kind)='([^']*)'", r"splits.\1: \2"),
    (r"\b(size|reader|skip_bad|cache)=(\S+?)(?=[.,;]?(\s|$))", r"data.options: {\1: \2}"),
    (r"\bat=", "method.at="),
    (r"^at must", "method.at must"),
)


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
        faults = find_faults(config, data)
        if faults:
            raise OptionError("\n".join(faults))
        samples = open_config(config, on_progress) if data is None else data
        return _Preparation(config, samples).make(data is None)


def vary(problem: Problem, config: Config) -> Problem:
    """Return the problem of a config with the same data and design, and another model.

    Raises:
        OptionError: Lists all faults of the model.
    """
    with config_words():
        faults = list(_find_name_faults(config))
        if faults:
            raise OptionError("\n".join(faults))
        _make_model_once(config, problem.samples, problem.task, problem.folds[0])
    prints = {"data": problem.samples.fingerprint, **_digest_files(config)}
    return replace(problem, config=config, fingerprints=prints)


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
    pairs = [("data.labels", name) for name in config.data.labels]
    for key in ("confounds", "keep"):
        pairs += [(f"design.{key}", name) for name in source_columns(config.terms(key))]
    pairs += [("data.controls", name) for name in config.data.controls or ()]
    singles = {
        "data.id": config.data.id,
        "data.person": config.data.person,
        "design.stratum": config.design.stratum,
        "splits.column": config.splits.column,
    }
    pairs += [(key, name) for key, name in singles.items() if name is not None]
    return {name: key for key, name in reversed(pairs)}


def find_faults(config: Config, data: Samples | None = None) -> list[str]:
    """Return what can be known to be wrong before samples are decoded: columns, names, options."""
    faults = []
    try:
        columns = _list_columns(config) if data is None else [*map(str, data.table)]
    except DeconfoundError as error:
        columns = None
        faults.append(str(error))
    roles = {}
    try:
        roles = column_roles(config) | dict.fromkeys(config.data.types, "data.types")
    except (OptionError, TypeError) as error:
        faults.append(f"design.confounds or design.keep: {error}")
    for name, key in roles.items():
        if columns is not None and name not in columns:
            faults.append(f"{key}: there is no column {name!r}. {nearest_names(name, columns)}")
    return [*faults, *_find_name_faults(config)]


def _list_columns(config: Config) -> list[str] | None:
    """Return the columns that source and table have, or None if other files may have more."""
    source, table = config.data.source, config.data.table
    columns: list[str] = []
    for path in filter(None, (source, table)):
        if path.lower().endswith(TABLE_ENDINGS):
            columns += read_columns(path)
        elif path == source and (
            Path(path, "participants.tsv").exists() or not Path(path).is_dir()
        ):
            return None
    return columns or None


def _find_name_faults(config: Config) -> Iterator[str]:
    """Yield what is wrong with names and options of method, network and augmentation."""
    method, network = config.method, config.network
    try:
        options = method_options(method.name)
        for name in method.options if method.name in METHODS else ():
            if name not in options:
                advice = nearest_names(name, options) if options else "It has no options."
                yield f"method.options: {method.name} has no option {name!r}. {advice}"
    except OptionError as error:
        yield f"method.name: {error}"
    name = network.name or "mlp"
    try:
        if name in EXAMPLE_SHAPES and network.name is not None:
            build(name, EXAMPLE_SHAPES[name], 1, network.options)
        elif ":" not in name and name != "huggingface" and network.name is not None:
            build(name, (4,), 1)
    except OptionError as error:
        yield from (f"network: {line}" for line in str(error).splitlines())
    known = [field.name for field in fields(Augment)]
    for option in config.training.augment:
        if option not in known:
            yield f"training.augment: no option {option!r}. {nearest_names(option, known)}"


class _Preparation:
    """Gathers the faults of a table over all steps from samples to folds."""

    def __init__(self, config: Config, samples: Samples) -> None:
        self.config, self.samples = config, samples
        self.confounds = source_columns(config.terms("confounds"))
        self.faults: list[str] = []
        self.notes = list(samples.notes)

    def make(self, is_from_files: bool) -> Problem:
        """Return the problem, or raise an error with all faults."""
        config, samples = self.config, self.samples
        task = self._attempt(self._read_task, samples.table)
        rows = np.arange(len(samples))
        if task is not None:
            rows = self._find_labelled(task)
            # Of several labels, a level may occur only in rows that lack another label.
            task = self._attempt(self._read_task, samples.table.iloc[rows])
        self._check_table(samples.table.iloc[rows])
        self._check_features(rows)
        self._check_left_out()
        folds = task and self._attempt(self._split, task, rows)
        if folds and not self.faults:
            self._attempt(_make_model_once, config, samples, task, folds[0])
        if self.faults:
            raise OptionError("\n".join(dict.fromkeys(self.faults)))
        notes = [*self.notes, *(f"Fold {fold.name}: {fold.note}" for fold in folds if fold.note)]
        prints = {"data": samples.fingerprint, **_digest_files(config)}
        return Problem(config, samples, task, folds, tuple(notes), prints, is_from_files)

    def _attempt(self, step: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a step returns; or None, after adding its faults."""
        try:
            return step(*arguments)
        except DeconfoundError as error:
            self.faults += str(error).splitlines()
            return None

    def _read_task(self, table: pd.DataFrame) -> Task:
        data = self.config.data
        return read_task(table, data.labels, data.positive, data.types)

    def _find_labelled(self, task: Task) -> NDArray[np.intp]:
        """Return the rows that have all labels, with a note on the others."""
        codes = task.encode(self.samples.table, allow_missing=True)
        missing = codes < 0 if task.kind == "classes" else np.isnan(codes).any(axis=1)
        if missing.any():
            self.notes.append(f"{missing.sum()} rows without a label are left out.")
        return np.flatnonzero(~missing)

    def _check_table(self, table: pd.DataFrame) -> None:
        """Add what `check_table` finds. An empty confound is a fault unless it may be the mean."""
        data, encoder = self.config.data, self.samples.features
        features = list(encoder.columns) if encoder is not None else []
        typed = self._attempt(self._read_roles, table)
        if typed is None:
            return
        people = table.assign(**typed)
        is_strict = self.config.design.unseen == "error"
        for note in check_table(people, data.labels, self.confounds, data.person, features):
            if note.kind == "missing" and note.column in self.confounds:
                # `check_table` counts the rows of the table that it gets.
                where = format_rows(table.index[list(note.rows)].tolist())
                text = f"Confound {note.column!r} is empty in {where}."
                if is_strict:
                    self.faults.append(f"{text} Fill in these cells, or write design.unseen: mean.")
                else:
                    self.notes.append(f"{text} These count as the mean of the training rows.")
            elif note.kind == "id" and note.column in features:
                fix = f"Write data.id: {note.column} or data.features: [-{note.column}]."
                self.faults.append(f"{note.text} {fix}")
            elif note.is_error:
                self.faults.append(str(note))
            elif note.kind != "person":
                self.notes.append(note.text)

    def _read_roles(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return labels and confounds with their kinds. Numbers that may be codes need a type."""
        names = list(dict.fromkeys([*self.config.data.labels, *self.confounds]))
        types = {name: kind for name, kind in self.config.data.types.items() if name in names}
        return read_table(table[names], names, types=types)

    def _check_features(self, rows: NDArray[np.intp]) -> None:
        """Add a fault or a note if cells of features are empty."""
        samples = self.samples
        if samples.features is None:
            return
        is_empty = np.isnan(samples.x[rows])
        names = format_names(np.array(samples.features.names)[is_empty.any(axis=0)].tolist())
        text = f"{is_empty.sum()} cells of features are empty, in {names}."
        if is_empty.any() and self.config.data.missing == "error":
            self.faults.append(f"{text} Fill them in, or write data.missing: mean.")
        elif is_empty.any():
            self.notes.append(f"{text} They count as the mean of the training rows.")

    def _check_left_out(self) -> None:
        """Add a fault if the test rows of a fold have a level that the design refuses."""
        splits, design = self.config.splits, self.config.design
        is_left_out = splits.kind in ("leave-one-out", "column") and splits.column in self.confounds
        if is_left_out and design.unseen == "error":
            self.faults.append(
                f"Each fold of splits.kind: {splits.kind} tests a level of {splits.column!r} that "
                "it is not trained on, and design.unseen is error. Write design.unseen: mean, or "
                f"leave {splits.column!r} out of design.confounds."
            )

    def _split(self, task: Task, rows: NDArray[np.intp]) -> tuple[Fold, ...]:
        """Return the folds of the rows that have labels, as rows of all samples."""
        config, table = self.config, self.samples.table.iloc[rows]
        splits = config.splits
        kinds = self._read_roles(table)[list(self.confounds)].dtypes
        categorical = [str(name) for name, kind in kinds.items() if kind == "category"]
        folds = split_folds(
            table,
            task,
            kind=splits.kind,
            folds=splits.folds,
            column=splits.column,
            stratum=config.design.stratum or next(iter(categorical), None),
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
    """Make the network and its method, so that wrong modules are known before jobs start."""
    recipe = config.recipe(samples.kind)
    kept = [*task.labels, *recipe.keep]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconfoundWarning)
        design = Design(recipe.confounds, kept, types=recipe.types, unseen=recipe.unseen)
        design.fit(samples.table.iloc[fold.train])
    strata = [name for name in source_columns(recipe.confounds) if name in design.levels]
    example = torch.from_numpy(np.nan_to_num(samples.x[fold.train[:2]].astype(np.float32)))
    with torch.random.fork_rng():
        stratum = recipe.stratum or next(iter(strata), None)
        Architecture.from_recipe(recipe, samples.shape, stratum).make(task, design, example)


def _digest_files(config: Config) -> dict[str, str]:
    """Return digests of the files whose contents decide the numbers: weights and own code."""
    paths = {"network.weights": config.network.weights}
    for key, name in (("network.name", config.network.name), ("method.name", config.method.name)):
        module = sys.modules.get((name or "").partition(":")[0])
        if module is not None and not (module.__name__ or "").startswith("sklearn"):
            paths[key] = getattr(module, "__file__", None)
    return {
        key: hashlib.sha256(Path(path).read_bytes()).hexdigest()
        for key, path in paths.items()
        if path
    }


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
        >>> name_keys("Write types={'site': 'categorical'} or positive='AD'.")
        'Write data.types: {site: categorical} or data.positive: AD.'
    """
    for pattern, replacement in _REWRITES:
        message = re.sub(pattern, replacement, message, flags=re.MULTILINE)
    return message
