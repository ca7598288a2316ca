"""`Run`: what a run folder holds, finished or not."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import nan
from pathlib import Path
from types import UnionType
from typing import Any, Self, Union, get_args, get_origin, get_type_hints

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from deconfound.auditing import Audit, scores_by_measure
from deconfound.errors import DeconfoundError, OptionError, StateError, nearest_names
from deconfound.metrics import HonestScore
from deconfound.runs.config import Config
from deconfound.runs.folder import FoldFolder, RunFolder, StorageError, storage_errors
from deconfound.table import read_columns
from deconfound.training import FittedModel, Task


@dataclass(eq=False)
class Run:
    """A run on disk: its models, its predictions for people they have not seen, and its results.

    Attributes:
        folder: Its folder.
        config: Its config.
        task: What is predicted.
        folds: The names of all folds.
        predictions: The test rows of the finished folds: id, fold, person, labels, confounds, and
            one column for each output. Empty before a fold is finished.
        metrics: For each label what the models are worth; empty before the results are written.
        failures: From folds that failed to the reason. They are tried again by the next `fit`.
        audit: What is left of the confounds; None if it was not asked for, or cannot be made.
        notes: Sentences about the table, the folds and the audit.
    """

    folder: Path
    config: Config
    task: Task
    folds: tuple[str, ...]
    predictions: pd.DataFrame
    metrics: dict[str, HonestScore]
    failures: dict[str, str]
    audit: Audit | None
    notes: tuple[str, ...]

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Return the run of a folder, also of one that is not finished.

        Raises:
            OptionError: There is no run.
            StateError: A file is damaged or cannot be read.
        """
        place = RunFolder(folder)
        about, results = place.description(), place.results()
        if about.get("command") != "fit":
            raise OptionError(
                f"{str(folder)!r} is no run of `fit`. Name a folder that `fit` has made, or one of "
                f"those below {str(place.path / 'variants')!r}."
            )
        try:
            names = tuple(fold["name"] for fold in about["folds"])
            folds = [FoldFolder(place.path, name) for name in names]
            finished = [fold for fold in folds if fold.is_finished]
            if results.get("folds") != [fold.name for fold in finished]:
                # They were written before other folds were finished.
                results = {}
            task = Task.from_dict(about["task"])
            return cls(
                folder=place.path,
                config=Config.model_validate(about["config"]),
                task=task,
                folds=names,
                predictions=read_predictions(finished, task),
                metrics=restore(dict[str, HonestScore], results.get("metrics", {})),
                failures={fold.name: fold.failure for fold in folds if fold.failure is not None},
                audit=restore(Audit | None, results.get("audit")),
                notes=tuple(dict.fromkeys([*about["notes"], *results.get("notes", ())])),
            )
        except DeconfoundError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StorageError(
                f"The run in {str(folder)!r} is damaged, or of another release ({error!r}). "
                "Restore it, or start anew: force=True."
            ) from error

    @property
    def finished(self) -> tuple[str, ...]:
        """The names of the folds that have results."""
        return tuple(name for name in self.folds if FoldFolder(self.folder, name).is_finished)

    @property
    def is_finished(self) -> bool:
        """True if each fold has a result."""
        return self.finished == self.folds

    @cached_property
    def models(self) -> dict[str, FittedModel]:
        """The models of the finished folds; see `model` for runs of other people."""
        return {name: self.model(name) for name in self.finished}

    def model(self, fold: str, trust: bool = False) -> FittedModel:
        """Return the model of a fold.

        Args:
            fold: The name of the fold.
            trust: Whether code of a network of your own, or a pickled estimator of scikit-learn,
                may run. The file of a stranger can do anything then.
        """
        path = FoldFolder(self.folder, fold).path / "model.pt"
        if fold not in self.finished:
            raise OptionError(
                f"The run has no finished fold {fold!r}. {nearest_names(fold, self.finished)}"
            )
        with storage_errors(path):
            try:
                state = torch.load(path, map_location="cpu", weights_only=True)
                return FittedModel.from_state(state, trust=trust)
            except (OSError, DeconfoundError):
                raise
            except Exception as error:
                raise StateError(
                    f"{str(path)!r} is not a model that a run wrote, and is not opened: other "
                    "files could execute code. Train the fold again."
                ) from error

    def history(self, fold: str) -> pd.DataFrame:
        """Return the validations of a fold: epoch, step, training_loss and validation_loss."""
        path = FoldFolder(self.folder, fold).path / "history.csv"
        with storage_errors(path):
            text = path.read_text()
        return pd.read_csv(path) if text.strip() else pd.DataFrame()

    def features(self) -> NDArray[np.float32] | None:
        """Return the features of the rows of `predictions`, shape `(n, d)`, or None."""
        paths = [FoldFolder(self.folder, name).path / "features.npy" for name in self.finished]
        if not paths or not all(path.exists() for path in paths):
            return None
        with storage_errors(self.folder):
            return np.concatenate([np.load(path, allow_pickle=False) for path in paths])

    @property
    def summary(self) -> tuple[str, ...]:
        """The answer in three lines; empty without an audit."""
        return () if self.audit is None else self.audit.summary

    def to_frame(self) -> pd.DataFrame:
        """Return one row of scores for each label; empty before the results are written."""
        rows = [{"label": label, **list_scores(one)} for label, one in self.metrics.items()]
        return pd.DataFrame(rows)

    def __str__(self) -> str:
        lines = [f"{len(self.finished)} of {len(self.folds)} folds in {self.folder}"]
        lines += [f"Fold {name} failed: {reason}" for name, reason in self.failures.items()]
        return "\n".join([*lines, *([str(self.audit)] if self.audit else [])])


def list_scores(honest: HonestScore) -> dict[str, float]:
    """Return all scores by name: within strata, balanced, worst group, and last as sampled."""
    scores = {name: estimate.value for name, estimate in scores_by_measure(honest).items()}
    plain, worst = scores.pop("as sampled"), honest.worst_group
    return {
        **scores,
        "worst group": nan if worst is None else worst.score.value,
        "as sampled": plain,
    }


def read_predictions(folds: Sequence[FoldFolder], task: Task) -> pd.DataFrame:
    """Return the predictions of these folds: outputs as numbers, all other cells as written."""
    frames = [pd.DataFrame(read_columns(fold.path / "predictions.csv")) for fold in folds]
    names = task.column_names()
    if not frames:
        return pd.DataFrame(columns=["id", "fold", *task.labels, *names])
    frame = pd.concat(frames, ignore_index=True)
    return frame.assign(**{name: frame[name].astype(np.float64) for name in names})


def restore(kind: Any, data: Any) -> Any:
    """Return the dataclasses that `dataclasses.asdict` and JSON made plain.

    Args:
        kind: The type of the result: a dataclass, or a tuple, mapping or union of types.
        data: Plain data; null is NaN where a number belongs.

    Example:
        >>> from deconfound.metrics import Estimate
        >>> restore(tuple[Estimate, ...], [{"value": 0.5, "low": 0.4, "high": None}])
        (Estimate(value=0.5, low=0.4, high=nan, p=nan, n=0),)
    """
    origin, parts = get_origin(kind), get_args(kind)
    if data is None:
        return nan if kind is float else None
    if origin in (Union, UnionType):
        return restore(parts[0], data)
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        names = [field.name for field in dataclasses.fields(kind) if field.name in data]
        values = {name: restore(hints[name], data[name]) for name in names}
        return kind(**values)  # type: ignore[operator]
    if origin is tuple:
        kinds = [parts[0]] * len(data) if parts[-1] is Ellipsis else parts
        return tuple(map(restore, kinds, data))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {key: restore(parts[1], value) for key, value in data.items()}
    return data
