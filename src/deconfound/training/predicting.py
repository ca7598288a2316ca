"""`predict`: what a finished run says about people it has never seen."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deconfound.data import Source, check_finite, csv_text, write_text
from deconfound.data.features import check_same_features
from deconfound.design import Assumed, Design
from deconfound.design.table import level_text
from deconfound.errors import DeconfoundError, OptionError, RunError, TableError
from deconfound.methods import WScores
from deconfound.methods import method as method_named
from deconfound.methods.base import Method
from deconfound.networks import NETWORKS, build_network
from deconfound.networks.packages import search_modules_in
from deconfound.training.checks import design_columns, named_columns
from deconfound.training.config import Config
from deconfound.training.dry_run import blank_setting
from deconfound.training.jobs import OnProgress, Progress
from deconfound.training.new_sites import Unseen, methods_for_rows, predicted, with_policy
from deconfound.training.problem import id_column, ids_in, names_in, row_numbers
from deconfound.training.run_folder import (
    CHECKPOINT,
    NEVER_TESTED,
    PREDICTIONS,
    FoldFolder,
    RunFolder,
    load_tensors,
    open_run,
)
from deconfound.training.scaling import Scaler, in_units
from deconfound.training.sources import (
    as_in_training,
    given_source,
    open_source,
    skipping_bad_scans,
    text_columns,
    without_label,
)
from deconfound.training.splits import without_zeros
from deconfound.training.tasks import Task, classes_of, has_score, scores_of
from deconfound.training.w_scores import standardised


@dataclass(frozen=True)
class RunPredictions:
    """What a run says about new rows.

    Attributes:
        ids: A name for each row.
        task: What is predicted.
        scores: `(n, outputs)`: probabilities or predicted numbers, the mean over the folds' models.
        spread: `(n, outputs)`: their standard deviation over these models; NaN for one model.
        id_column: What these names are called.
        seen: How many rows carry an id, or are of a person, that the run was trained or tested on.
        without_score: How many rows have no finite score, and so no class.
        assumed: One sentence for each value of a confound that folds did not know, and took as the mean of their
            training rows, and for each new site that they adapted to.
    """

    ids: tuple[str, ...]
    task: Task
    scores: Tensor
    spread: Tensor
    id_column: str
    seen: int
    without_score: int
    assumed: tuple[str, ...] = ()

    def to_csv(self, path: str | Path | None = None, *, guard_formulas: bool = False) -> str:
        """One line per row, as a text and, if a path is given, as a file.

        Args:
            path: The file.
            guard_formulas: Put an apostrophe before cells that a spreadsheet would take for a formula (=, +, -, @).
        """
        kind = "prediction" if self.task.kind == "regression" else "score"
        columns: dict[str, Sequence[Any]] = {self.id_column: self.ids}
        for prefix, values in ((kind, self.scores), (f"{kind}_sd", self.spread)):
            for place, name in enumerate(self.task.output_names):
                columns[f"{prefix}_{name}"] = [None if v != v else v for v in values[:, place].tolist()]
        columns |= {f"predicted_{label}": levels for label, levels in classes_of(self.task, self.scores).items()}
        text = csv_text(columns, guard_formulas)
        if path is not None:
            write_text(Path(path), text)
        return text


def predict(
    run: str | Path,
    table: Any,
    images: str | Path | None = None,
    *,
    fold: int | None = None,
    unseen: Unseen | None = None,
    trust: bool = False,
    skip_bad: bool = False,
    progress: OnProgress | None = None,
) -> RunPredictions:
    """Predict new rows with the models of a run's folds.

    A run folder is data: unless you say that you trust it, no code that it names is imported or executed.

    Args:
        run: The folder that `fit` wrote.
        table: The new rows, a file or a DataFrame, with the confounds that the method reads; labels are not needed. Or
            a source or dataset of samples with these columns, as `fit` takes it.
        images: Where the samples are, if not in `table`: features, an array, or a folder of scans.
        fold: Use this fold's model alone; the mean over all folds if None.
        unseen: What a site (or another level) is that the run has not seen: "error"; "mean", the average of the known
            ones; "adapt", that and an offset that is estimated from its rows (`NormalizedModel.adapt`), from those with
            labels where there are ten or more. None is the run's own `design.unseen`.
        trust: Import the network of the run where it is not one of the library's own (`module:callable`).
        skip_bad: Leave out scans that cannot be read or have no row of the table, and warn.
        progress: Called with a `Progress` after each fold.

    Raises:
        RunError: The folder holds no finished run, or files that were changed.
        TableError: The new rows cannot be read as the run's were.

    Example:
        >>> predict("runs/none", "new.csv")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        deconfound.errors.RunError: runs/none must be the folder of a run; got no run.json there. Give the folder ...
    """
    opened = open_run(run)
    config, about = opened.config, opened.about
    _check_trust(opened, trust)
    folds = _chosen(opened, fold)
    designs = [with_policy(Design.from_dict(json.loads(each.read("design.json"))), unseen) for each in folds]
    source = _new_rows(config, about, table, images, skip_bad, text_columns(designs, about["inputs"]))
    shape = tuple(about["shape"])
    if tuple(source.shape) != shape:
        beside = " Say where the samples are: --images (images=)." if len(source.shape) < len(shape) else ""
        raise TableError(f"samples must have the shape {shape} of the run's; got {tuple(source.shape)}.{beside}")
    task = Task.from_dict(about["task"])
    scores = []
    unknown: dict[Assumed, list[int]] = {}
    adapted: list[str] = []
    for done, (each, design) in enumerate(zip(folds, designs, strict=True)):
        score, told = _fold_scores(config, each, design, source, task, unseen == "adapt")
        scores.append(score)
        adapted += [f"fold {each.number}, {sentence}" for sentence in told]
        if method_named(config.method.name).reads_confounds or config.training.w_scores:
            for found in design.assumed(as_in_training(source.table, design, labels=False)):
                value = replace(found, rows=tuple(row_numbers(source)[list(found.rows)].tolist()))
                unknown.setdefault(value, []).append(each.number)
        if progress is not None:
            progress(Progress("predicting", done + 1, len(folds), f"fold {each.number}"))
    stacked = torch.stack(scores)
    mean = stacked.mean(0)
    spread = stacked.std(0) if len(scores) > 1 else torch.full_like(mean, float("nan"))
    key = id_column(config, source)
    ids = tuple(names_in(ids_in(source, key)))
    seen = _seen(opened, source, [name for name in (key, config.data.person) if name])  # row numbers are no ids
    asked = [each.number for each in folds]
    assumed = (*(_assumption(value, numbers, asked) for value, numbers in unknown.items()), *adapted)
    return RunPredictions(ids, task, mean, spread, key or "id", seen, int((~has_score(mean)).sum()), assumed)


def _check_trust(run: RunFolder, trust: bool) -> None:
    name = run.config.network.name
    if name in NETWORKS:
        return
    if not trust:
        raise RunError(
            f"{run.path} must have a network of the library, or be trusted; got {name!r}, which is code that would be "
            "executed. If you know where the folder comes from, add --trust (in Python trust=True)."
        )
    folder = run.about.get("network_folder")
    if isinstance(folder, str):
        search_modules_in(folder)


def _assumption(value: Assumed, folds: Sequence[int], asked: Sequence[int]) -> str:
    where = "" if folds == asked else f" of fold{'s' * (len(folds) > 1)} {', '.join(map(str, folds))}"
    return f"{value}{where}: the mean of the training rows is used"


def _chosen(run: RunFolder, fold: int | None) -> list[FoldFolder]:
    folds = run.folds
    if fold is not None and not 0 <= fold < len(folds):
        raise OptionError(f"--fold must be between 0 and {len(folds) - 1}; got {fold}.")
    chosen = folds if fold is None else [folds[fold]]
    missing = [str(each.number) for each in chosen if not each.finished()]
    if missing:
        raise RunError(
            f"{run.path} must have its folds finished; got none of {', '.join(missing)}. Give the command that "
            "started the run again, or choose a finished fold with --fold."
        )
    return chosen


def _seen(run: RunFolder, source: Source, columns: Sequence[str]) -> int:
    """How many rows have in one of the columns, of ids and of people, what a row of the run has there."""
    seen = np.zeros(len(source), dtype=bool)
    for column in columns:
        names = {*run.about.get(NEVER_TESTED, {}).get(column, ())}
        for fold in run.folds:
            if fold.finished():
                names |= {line[column] for line in fold.lines(PREDICTIONS) if line.get(column)}
        known = {without_zeros(name) for name in names}
        if column in source.table:
            # Runs of earlier versions name images with their endings.
            for cells in (ids_in(source, column).tolist(), np.asarray(source.table[column]).tolist()):
                found = [{without_zeros(text) for text in (str(cell), level_text(cell))} for cell in cells]
                seen |= [not known.isdisjoint(texts) for texts in found]
    return int(seen.sum())


def _new_rows(
    config: Config, about: Mapping[str, Any], table: Any, images: str | Path | None, skip_bad: bool, text: Sequence[str]
) -> Source:
    known = {"features": tuple(about["inputs"]) or None, "exclude": ()}  # the inputs are known by name
    if isinstance(table, str | Path):
        where = {"source": str(table if images is None else images), "table": None if images is None else str(table)}
        data = config.data.model_copy(update=known | where)
        source = open_source(skipping_bad_scans(data) if skip_bad else data, [], design_columns(config), text)
    elif images is not None or (hasattr(table, "iloc") and not about["inputs"]):
        raise OptionError(
            "table must be a file, or be opened with its samples, where these are no columns of it; got "
            f"{type(table).__name__}. Save it, or pass what deconfound.data.open_dataset makes of both."
        )
    else:
        source = given_source(table, named_columns(config), config.data.model_copy(update=known), text)
    if not len(source):
        raise TableError("table must have at least one row to predict; got none. Check how its rows were chosen.")
    check_same_features(about["inputs"], getattr(source, "names", ()))
    check_finite(source, config.data.missing_features, "data.missing_features")
    return source


def _fold_scores(
    config: Config, fold: FoldFolder, design: Design, source: Source, task: Task, adapt: bool
) -> tuple[Tensor, list[str]]:
    """The scores of one fold's model, and what it says of new sites."""
    scaling = json.loads(fold.read("scaling.json"))
    scaler = Scaler.from_dict(scaling["inputs"])
    method = restored(config, fold, design, tuple(source.shape), task).eval()
    metadata, table, reads = None, source.table, type(method).reads_confounds
    with _worded():
        if reads or scaling["w_scores"] is not None:
            table = as_in_training(source.table, design, labels=adapt)
        if reads:
            metadata = torch.from_numpy(design.encode(table))
        if adapt and metadata is not None:
            metadata[without_label(table, design), len(design.confound_columns) :] = float("nan")

    def x(rows: NDArray[np.intp]) -> Tensor:
        return torch.from_numpy(scaler(source.read(rows)))

    groups, told = [(np.arange(len(source)), method)], list[str]()
    if adapt:
        groups, told = methods_for_rows(method, design, table, x, metadata)
    whole = in_units(predicted(groups, x, metadata), scaling)
    if scaling["w_scores"] is not None:
        norm = WScores.from_dict(scaling["w_scores"])
        with _worded():
            whole = standardised(norm, whole, table)
    return scores_of(task, whole), told


# How the options of a design are set where a run predicts.
_WAYS = {"missing": "train with design.missing: mean", "unseen": "pass unseen='mean' (--unseen mean)"}


@contextmanager
def _worded() -> Iterator[None]:
    """Faults of a table in the words of a config and of the command."""
    try:
        yield
    except TableError as error:
        faults = [fault.worded(_WAYS.get(fault.option or "", "")) for fault in error.faults]
        raise TableError("\n".join(faults) or str(error)) from error


def restored(config: Config, fold: FoldFolder, design: Design, shape: tuple[int, ...], task: Task) -> Method:
    """The trained method of a finished fold, after its file has been checked against the digest of the result."""
    path = fold.path / CHECKPOINT
    state = load_tensors(path, fold.read(CHECKPOINT))
    network = build_network(config.network.name, shape, task.outputs, config.network.options)
    setting = blank_setting(config, design, shape, task)
    try:
        return method_named(config.method.name).restore(network, setting, state, **config.method.own_options)
    except (RuntimeError, TypeError, AttributeError) as error:
        if isinstance(error, DeconfoundError):
            raise
        raise RunError(f"{path} must fit the network of its config; got {error}") from error
