"""The way of one fold: weights, design, inputs, network, training, and outputs of the test rows.

Everything is fitted to training rows. Validation rows choose the epoch, and coefficients of
confounds and W-scores are fitted to them. No test row and no test label reaches any of it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from deconfound.adjust import WScores
from deconfound.data import Samples
from deconfound.design import Design, source_columns
from deconfound.errors import DeconfoundWarning, OptionError, StateError, TableError
from deconfound.table import read_columns, to_levels
from deconfound.training.augment import Augment
from deconfound.training.estimators import EstimatorMethod
from deconfound.training.inputs import Inputs
from deconfound.training.launcher import Launcher, Plain
from deconfound.training.loop import OnValidation, train
from deconfound.training.losses import make_criterion
from deconfound.training.model import Architecture, FittedModel, as_tensor
from deconfound.training.part import Part
from deconfound.training.pretrained import freeze, load_weights
from deconfound.training.recipe import Recipe
from deconfound.training.splits import Fold
from deconfound.training.tasks import Task, Units
from deconfound.training.weights import is_control, weigh_rows

Rows = NDArray[np.int64]
Weights = NDArray[np.float64] | None


@dataclass(frozen=True, eq=False)
class FittedFold:
    """What came out of one fold.

    Attributes:
        name: The fold.
        model: The model, for new rows.
        outputs: Logits (or numbers) of the test rows, shape `(n, k)`.
        features: What the network's last linear module reads of the test rows, shape `(n, d)`;
            None if not asked for.
        history: One entry per validation; empty for an estimator of scikit-learn.
        best: The entry of the state that was kept.
    """

    name: str
    model: FittedModel
    outputs: NDArray[np.float32]
    features: NDArray[np.float32] | None
    history: list[dict[str, float]]
    best: dict[str, float]


def fit_fold(  # noqa: PLR0913
    samples: Samples,
    task: Task,
    fold: Fold,
    recipe: Recipe,
    *,
    seed: int = 0,
    launcher: Launcher | None = None,
    checkpoint: Path | None = None,
    with_features: bool = False,
    on_validation: OnValidation | None = None,
) -> FittedFold:
    """Train one fold and return its model and the outputs of its test rows.

    Args:
        samples: All samples, with their table.
        task: What is predicted.
        fold: The rows of the three parts.
        recipe: How the fold is trained.
        seed: The seed of the first weights, the order of rows and dropout. All methods start from
            the same network if they have the same seed.
        launcher: Where the training runs; None takes the first GPU, or the CPU.
        checkpoint: A file from which a stopped training goes on.
        with_features: Whether features of the test rows are returned.
        on_validation: Called after each validation.

    Raises:
        StateError: A class is absent from the training rows, or the training diverged.

    Example:
        >>> import deconfound as dc
        >>> from deconfound.data import open_samples
        >>> from deconfound.training import Recipe, Schedule, fit_fold, read_task, split_folds
        >>> x, ill, people = dc.example("heart")
        >>> task = read_task(people, ["ill"])
        >>> folds = split_folds(people, task)
        >>> recipe = Recipe(["age", "sex", "hospital"], schedule=Schedule(epochs=2))
        >>> fit_fold(open_samples(x, people), task, folds[0], recipe).outputs.shape
        (184, 1)
    """
    model = fit_model(
        samples,
        task,
        fold.train,
        fold.validation,
        recipe,
        seed=seed,
        launcher=launcher,
        checkpoint=checkpoint,
        on_validation=on_validation,
    )
    # Without their labels, which nothing may read.
    tested = samples.x[fold.test], samples.table.iloc[fold.test].drop(columns=list(task.labels))
    # An estimator of scikit-learn has none.
    has_features = with_features and not isinstance(model.method, EstimatorMethod)
    features = model.features(*tested) if has_features else None
    return FittedFold(fold.name, model, model.outputs(*tested), features, model.history, model.best)


def fit_model(  # noqa: PLR0913
    samples: Samples,
    task: Task,
    train_rows: Rows,
    validation_rows: Rows,
    recipe: Recipe,
    *,
    seed: int = 0,
    launcher: Launcher | None = None,
    checkpoint: Path | None = None,
    on_validation: OnValidation | None = None,
) -> FittedModel:
    """Train a model on some rows, with other rows held out; arguments are those of `fit_fold`."""
    launcher = launcher or Plain()
    # Training rows first. Each column of the table is read once for both parts.
    rows, n = np.concatenate([train_rows, validation_rows]), len(train_rows)
    table = samples.table.iloc[rows]
    targets = task.encode(table)
    _check_classes(task, targets[:n])
    weights = weigh_rows(samples.table, task, train_rows, validation_rows, recipe)
    kept = [*task.labels, *recipe.keep]
    design = Design(recipe.confounds, kept, types=recipe.types, unseen=recipe.unseen)
    design.fit(table.iloc[:n], weights.design)
    inputs = Inputs.from_rows(samples.x, train_rows).to(launcher.device)
    units = Units.fit(targets[:n]) if task.kind == "numeric" else None
    stratum = _choose_stratum(design, recipe.stratum)
    architecture = Architecture.from_recipe(recipe, samples.shape, stratum)
    example = inputs(as_tensor(samples.x[train_rows[:2]]).to(launcher.device))
    # Equal seeds give all methods the same first weights.
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        method = architecture.make(task, design, example.cpu(), seed, partial(_prepare, recipe))
    model = FittedModel(task, design, inputs, method, architecture, units, weights.shift)
    data = _FoldRows(
        x=as_tensor(samples.x),
        rows=torch.from_numpy(rows),
        metadata=torch.from_numpy(design.encode(table)),
        target=torch.from_numpy(targets if units is None else units.to_units(targets)),
        stratum=None if stratum is None else _encode_stratum(table, design, stratum),
        is_control=is_control(table, recipe.controls) if recipe.controls else None,
        inputs=inputs,
        device=launcher.device,
    )
    if isinstance(method, EstimatorMethod):
        method.fit(data.part(slice(n), draw=weights.draw, weight=weights.draw).batches)
    else:
        held_out = data.part(slice(n, None), weight=weights.validation)
        augment = Augment(**recipe.augment) if recipe.augment else None
        progress = train(
            method,
            data.part(slice(n), draw=weights.draw, augment=augment),
            held_out if len(held_out) else None,
            make_criterion(recipe.loss, task, prevalence=_shares(task, targets[:n])),
            recipe.schedule,
            launcher=launcher,
            seed=seed,
            checkpoint=checkpoint,
            on_validation=on_validation,
        )
        model.history, model.best = progress.history, progress.best
    if recipe.use_w_scores:
        model.w_scores = _fit_w_scores(model, samples, validation_rows, recipe)
    return model


@dataclass(frozen=True, eq=False)
class _FoldRows:
    """Training rows, then validation rows, of which parts are taken by place.

    Attributes:
        x: The stored values of all samples.
        rows: The number of each row among the samples, shape `(n,)`.
        metadata: Shape `(n, p)`.
        target: Shape `(n,)` or `(n, k)`.
        stratum: Shape `(n,)`; None without strata.
        is_control: From which rows effects of confounds are learned, shape `(n,)`; None from all.
        inputs: Scales stored values.
        device: The device of the batches.
    """

    x: Tensor
    rows: Tensor
    metadata: Tensor
    target: Tensor
    stratum: Tensor | None
    is_control: NDArray[np.bool_] | None
    inputs: Inputs
    device: torch.device

    def part(
        self,
        places: slice,
        *,
        draw: Weights = None,
        weight: Weights = None,
        augment: Augment | None = None,
    ) -> Part:
        """Return some rows as a part of the fold.

        Args:
            places: Which rows.
            draw: The weight by which each is drawn.
            weight: What each counts for in the loss, and when confounds are fitted.
            augment: Varies the inputs of training batches.
        """
        layer_weight = None if draw is not None else weight
        if self.is_control is not None:
            others = 1.0 if layer_weight is None else layer_weight
            layer_weight = np.where(self.is_control[places], others, 0.0)
        return Part(
            self.x,
            self.rows[places],
            self.metadata[places],
            self.target[places],
            weight=_to_tensor(weight),
            layer_weight=_to_tensor(layer_weight),
            stratum=None if self.stratum is None else self.stratum[places],
            draw=_to_tensor(draw),
            prepare=self.inputs,
            augment=augment,
            device=self.device,
        )


def _prepare(recipe: Recipe, network: nn.Module) -> None:
    """Load given weights, and freeze modules, before the method is made."""
    if recipe.weights is not None:
        load_weights(network, recipe.weights)
    freeze(network, recipe.freeze)


def _encode_stratum(table: pd.DataFrame, design: Design, stratum: str) -> Tensor:
    """Return the code of each row's stratum; -1 for a level without training rows."""
    code_of = {level: code for code, level in enumerate(design.levels[stratum])}
    levels = to_levels(read_columns(table, [stratum])[stratum])
    return torch.tensor([code_of.get(level, -1) for level in levels])


def _choose_stratum(design: Design, name: str | None) -> str | None:
    """Return the confound whose levels are strata: that of the recipe, or the first categorical."""
    categorical = [column for column in source_columns(design.confounds) if column in design.levels]
    if name is None:
        return next(iter(categorical), None)
    if name not in categorical:
        raise OptionError(
            f"design.stratum must be a categorical confound; got {name!r}. "
            f"There are {', '.join(map(repr, categorical)) or 'none'}."
        )
    return name


def _check_classes(task: Task, targets: NDArray[Any]) -> None:
    """Refuse training rows that lack a class, from which nothing can be learned."""
    for place, (label, levels) in enumerate(zip(task.labels, task.levels, strict=True)):
        codes = targets if task.kind == "classes" else targets[:, place]
        absent = [level for code, level in enumerate(levels) if not (codes == code).any()]
        if absent:
            raise StateError(
                f"The training rows have no {' or '.join(map(repr, absent))} of {label!r}. "
                "Use fewer folds, or leave out a site that has all rows of a class."
            )


def _shares(task: Task, targets: NDArray[Any]) -> list[float]:
    """Return the share of cases of each output."""
    if task.kind == "classes":
        return [float(np.mean(targets == code)) for code in range(task.outputs)]
    return [float(share) for share in targets.mean(axis=0)]


def _fit_w_scores(
    model: FittedModel, samples: Samples, validation_rows: Rows, recipe: Recipe
) -> WScores:
    """Fit W-scores to the validation rows that are controls."""
    task, controls = model.task, recipe.controls
    if not controls:
        if task.kind != "binary" or len(task.labels) > 1:
            raise OptionError(
                "W-scores need to know who is a control; got labels "
                f"{', '.join(map(repr, task.labels))}. Write data.controls: column=level."
            )
        controls = {task.labels[0]: task.levels[0][0]}
    is_held_out = is_control(samples.table.iloc[validation_rows], controls)
    rows = validation_rows[is_held_out]
    table = samples.table.iloc[rows]
    try:
        outputs = model.outputs(samples.x[rows], table)
        with warnings.catch_warnings():
            # The design of the fold has warned of the same columns.
            warnings.simplefilter("ignore", DeconfoundWarning)
            return WScores.from_controls(outputs, table, recipe.confounds, types=recipe.types)
    except TableError as error:
        raise StateError(
            f"W-scores cannot be fitted to {len(rows)} held-out controls. {error}"
        ) from error


def _to_tensor(values: Weights) -> Tensor | None:
    return None if values is None else torch.from_numpy(values).float()
