"""The problem of a run: its data opened, its task known, its rows divided."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from deconfound.auditing.table_checks import SITES
from deconfound.data import Source
from deconfound.design import Design
from deconfound.design.table import is_missing
from deconfound.design.terms import Term
from deconfound.errors import DeconfoundError, DeconfoundWarning, OptionError, TableError
from deconfound.methods import method
from deconfound.methods.confounds import confounds_of
from deconfound.training.balancing import FoldBalance, balance_fold
from deconfound.training.checks import class_faults, column_faults, listed_faults, open_data, setting_faults
from deconfound.training.config import Config
from deconfound.training.isolated import isolated_test_rows
from deconfound.training.losses import criterion
from deconfound.training.sources import ID_COLUMNS, PERSON_COLUMN
from deconfound.training.splits import (
    Fold,
    RowNumbers,
    kfold,
    level_test_rows,
    person_codes,
    stratum_codes,
    with_validation,
)
from deconfound.training.tasks import Task, read_task
from deconfound.training.terms import columns_of, read_terms
from deconfound.training.w_scores import w_score_faults


@dataclass(frozen=True)
class Problem:
    """Data, task and folds of a run; its config has every default resolved.

    `codes` are the labels `(n, labels)`, NaN where a row has none. The folds divide the rows that have every label.
    """

    config: Config
    source: Source
    task: Task
    codes: NDArray[np.float64]
    folds: tuple[Fold, ...]
    _designs: dict[int, Design] = field(default_factory=dict, repr=False, compare=False)
    _balances: dict[int, FoldBalance] = field(default_factory=dict, repr=False, compare=False)

    @property
    def terms(self) -> tuple[list[Term], list[Term]]:
        """Confounds and keep."""
        design = self.config.design
        keep = self.task.labels if design.keep is None else design.keep
        return read_terms(design.confounds, "design.confounds")[0], read_terms(keep, "design.keep")[0]

    @property
    def confounds(self) -> list[str]:
        """The columns that are removed."""
        return self.config.design.confound_columns

    def new_design(self) -> Design:
        """The design, not yet fitted."""
        confounds, keep = self.terms
        named = {*columns_of(confounds), *columns_of(keep)}
        types = self.config.data.types_of(named)
        if self.task.kind == "multiclass":
            types |= dict.fromkeys((label for label in self.task.labels if label in named), "categorical")
        unseen = self.config.design.unseen or "error"
        return Design(confounds, keep, types=types, missing=self.config.design.missing, unseen=unseen)

    def design(self, number: int) -> Design:
        """The design of a fold, fitted once on its training rows, after all its other rows have been read by it."""
        if number not in self._designs:
            fold = self.folds[number]
            with warnings.catch_warnings(action="ignore", category=DeconfoundWarning):  # `init` and audits say it
                weights = self.balance(number)
                weight = None if weights is None else weights.train.row_weight
                design = self.new_design().fit(self.table_at(fold.train), weight=weight)
            design.encode(self.table_at(np.concatenate([fold.validation, fold.test]), labels=False))
            self._designs[number] = design
        return self._designs[number]

    def balance(self, number: int) -> FoldBalance | None:
        """The weights of a fold's rows under which labels and confounds are independent; None without balance."""
        kind = self.config.training.balance
        if kind == "none":
            return None
        if number not in self._balances:
            self._balances[number] = balance_fold(self, self.folds[number], kind)
        return self._balances[number]

    def table_at(self, rows: RowNumbers, labels: bool = True) -> dict[str, Any]:
        """The design's columns at these rows; without labels, as a new person's."""
        names = self.confounds + (columns_of(self.terms[1]) if labels else [])
        return {name: np.asarray(self.source.table[name])[rows] for name in dict.fromkeys(names)}

    def id_of(self, rows: RowNumbers) -> list[str]:
        """A name for each row: its id, or its number in the table."""
        return names_in(ids_in(self.source, id_column(self.config, self.source))[rows])


def id_column(config: Config, source: Source) -> str | None:
    """The column that names the rows of a source: the config's, one that is called so, or that of its files."""
    names = (config.data.id, *ID_COLUMNS, getattr(source, "path_column", None))
    return next((name for name in names if name and name in source.table), None)


def ids_in(source: Source, column: str | None) -> NDArray[Any]:
    """The names of all rows in this column as the table given has them; without a column their numbers there."""
    if column is None:
        return row_numbers(source)
    if column == getattr(source, "path_column", None):  # the source adds endings to the names of images
        return np.array(getattr(source, "file_names", ()), dtype=object)
    return np.asarray(source.table[column])


def row_numbers(source: Source) -> NDArray[Any]:
    """The row of each sample in the table as given, which may have more rows than the source."""
    numbers: NDArray[Any] | None = getattr(source, "row_numbers", None)
    return np.arange(len(source)) if numbers is None else numbers


def names_in(column: Any) -> list[str]:
    """The names of rows or people in a column, as text; empty where there is none."""
    return ["" if is_missing(value) else str(value) for value in np.asarray(column).tolist()]


def open_problem(config: Config, source: Source | None = None, *, check: bool = True) -> Problem:
    """Open the data, divide the rows, and check all that can be checked before training, all faults in one error.

    With `check` the design of every fold is fitted; a job on one fold leaves that to whoever sent it.
    """
    faults = setting_faults(config)
    source = open_data(config) if source is None else source
    faults += column_faults(config, source)
    if faults:
        raise OptionError(listed_faults("the config", faults))
    data = config.data
    task, codes = read_task(source.table, data.labels, config.training.task, data.audit_types, data.positive)
    criterion(config.training.loss, task.kind)
    whole = Problem(_resolved(config, source), source, task, codes, ())
    problem = replace(whole, folds=_divided(whole))
    if check:
        faults = _new_site_faults(problem.config)
        faults += [fault for fold in problem.folds for fault in class_faults(task, codes, fold)]
        if config.training.w_scores and not faults:
            faults += w_score_faults(problem)
        if faults:
            raise OptionError(listed_faults("the config", faults))
        for number in range(len(problem.folds)):
            try:
                problem.design(number)
            except DeconfoundError as fault:
                raise OptionError(_fold_fault(problem, problem.folds[number], fault)) from fault
        if faults := _site_faults(problem):
            raise OptionError(listed_faults("the config", faults))
    return problem


def _new_site_faults(config: Config) -> list[str]:
    """A site is left out, and the method refuses a new one: without this every fold would be trained first."""
    splits, name = config.splits, config.method.name
    if splits.kind != "leave-one-out" or splits.column != config.design.site or method(name).takes_new_sites:
        return []
    return [f"method.name must be one that takes a new site where {splits.column!r} is left out; got {name!r}."]


def _site_faults(problem: Problem) -> list[str]:
    """The method must know the site, and the config names none that has levels: every fold would say so by itself."""
    site, name = problem.config.design.site, problem.config.method.name
    levels = {confound.name: confound.levels for confound in confounds_of(problem.design(0))}
    if not method(name).needs_site or (site is not None and levels.get(site)):
        return []
    categories = ", ".join(each for each, found in levels.items() if found)
    advice = f"Set design.site to one of: {categories}." if categories else "Add a confound with levels."
    if site is None:
        got = f"none, and no confound is called {', '.join(SITES)}"
    elif site in levels:
        got = f"{site!r}, which holds amounts"
        advice = f"If its numbers are names, set data.types: {{{site}: categorical}}. {advice}"
    else:
        got = f"{site!r}, which is no confound by itself"
    return [f"design.site must name a confound with levels for method {name!r}; got {got}. {advice}"]


def _divided(problem: Problem) -> tuple[Fold, ...]:
    config, table, codes = problem.config, problem.source.table, problem.codes
    splits, labels = config.splits, problem.task.labels
    columns = [
        codes[:, labels.index(name)] if name in labels else np.asarray(table[name])
        for name in splits.stratify or labels
    ]
    strata, rows = stratum_codes(columns), np.flatnonzero(~np.isnan(codes).any(axis=1))
    people = person_codes(table, config.data.person, len(codes))
    seed = config.run.seed if splits.seed is None else splits.seed
    if splits.kind == "kfold":
        return kfold(strata, people, folds=splits.folds, validation=splits.validation, seed=seed, rows=rows)
    notes: list[str] = []
    if splits.kind == "isolated":
        confounds, numeric = _confound_matrix(problem, rows), problem.task.kind == "regression"
        tests, notes = isolated_test_rows(
            codes, confounds, people, rows, numeric=numeric, folds=splits.folds, seed=seed
        )
    else:
        assert splits.column is not None  # checked with the settings
        tests = level_test_rows(np.asarray(table[splits.column]), rows, splits.column)
    return with_validation(tests, rows, strata, people, splits.validation, seed, notes)


def _confound_matrix(problem: Problem, rows: RowNumbers) -> NDArray[np.float64]:
    """The confounds of all rows in numbers, empty cells being the mean; only to draw test rows by."""
    everyone = problem.table_at(np.arange(len(problem.codes)), labels=False)
    types = problem.config.data.types_of(everyone)
    with warnings.catch_warnings(action="ignore", category=DeconfoundWarning):
        design = Design(problem.terms[0], types=types, missing="mean", unseen="mean")
        return design.fit(problem.table_at(rows, labels=False)).encode(everyone, np.float64)


def _fold_fault(problem: Problem, fold: Fold, fault: DeconfoundError) -> str:
    """What a fold's design says, with the rows of the whole table and in the words of a config."""
    everyone = problem.table_at(np.arange(len(problem.codes)), labels=False)
    types = problem.config.data.types_of(everyone)
    with warnings.catch_warnings(action="ignore", category=DeconfoundWarning):
        try:
            Design(problem.terms[0], types=types, missing=problem.config.design.missing).fit(everyone)
            problem.new_design().fit(problem.table_at(fold.train)).encode(everyone)
        except DeconfoundError as same:
            fault = same
    text = fault.worded("set design.{option}: mean") if isinstance(fault, TableError) else str(fault)
    return f"fold {fold.name}: {text}"


def _resolved(config: Config, source: Source) -> Config:
    """The config with every "auto" decided, as it is written into the run's folder."""
    flat = len(source.shape) == 1
    confounds = config.design.confound_columns
    leaves_out = config.splits.kind in ("leave-one-out", "column") and config.splits.column in confounds
    site = config.design.site or next((name for name in confounds if name.lower() in SITES), None)
    unseen = config.design.unseen or ("mean" if leaves_out else "error")
    # Scans are brought to one scale when they are read.
    by_axes = {1: "columns", 2: "channels", 3: "channels"}.get(len(source.shape), "none")
    scale = by_axes if config.data.scale == "auto" else config.data.scale
    threads = config.training.threads or (1 if flat else torch.get_num_threads())
    # A reader of scans says whose they are.
    person = config.data.person or (PERSON_COLUMN if not flat and PERSON_COLUMN in source.table else None)
    return config.updated(
        data={"scale": scale, "person": person},
        design={"unseen": unseen, "site": site},
        training={"threads": threads},
    )
