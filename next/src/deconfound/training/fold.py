"""The way of one fold: weights, design, inputs, network, training, and outputs of the test rows.

Everything is fitted to training rows. Validation rows choose the epoch, and coefficients of
confounds and W-scores are fitted to them. No test row and no test label reaches any of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from deconfound.adjust import WScores
from deconfound.data import Samples
from deconfound.design import Design, source_columns
from deconfound.errors import OptionError, StateError, TableError
from deconfound.methods import Method
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
    features = model.features(*tested) if with_features else None
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
    training = samples.table.iloc[train_rows]
    targets = task.encode(training)
    _check_classes(task, targets)
    weights = weigh_rows(samples.table, task, train_rows, validation_rows, recipe)
    kept = [*task.labels, *recipe.keep]
    design = Design(recipe.confounds, kept, types=recipe.types, unseen=recipe.unseen)
    design.fit(training, weights.design)
    data = _FoldData(
        samples=samples,
        task=task,
        design=design,
        inputs=Inputs.from_rows(samples.x, train_rows),
        units=Units.fit(targets) if task.kind == "numeric" else None,
        recipe=recipe,
        stratum=_choose_stratum(design, recipe.stratum),
        device=launcher.device,
    )
    method = data.make_method(train_rows, seed)
    model = FittedModel(
        task, design, data.inputs, method, data.architecture, data.units, weights.shift
    )
    if isinstance(method, EstimatorMethod):
        method.fit(data.part(train_rows, draw=weights.draw, weight=weights.draw).batches)
    else:
        held_out = None
        if len(validation_rows):
            held_out = data.part(validation_rows, weight=weights.validation)
        progress = train(
            method,
            data.part(train_rows, draw=weights.draw, is_training=True),
            held_out,
            make_criterion(recipe.loss, task, prevalence=_shares(task, targets)),
            recipe.schedule,
            launcher=launcher,
            seed=seed,
            checkpoint=checkpoint,
            on_validation=on_validation,
        )
        model.history, model.best = progress.history, progress.best
    if recipe.use_w_scores:
        model.w_scores = _fit_w_scores(model, data, validation_rows)
    return model


@dataclass(frozen=True, eq=False)
class _FoldData:
    """What all parts of a fold share."""

    samples: Samples
    task: Task
    design: Design
    inputs: Inputs
    units: Units | None
    recipe: Recipe
    stratum: str | None
    device: torch.device

    def part(
        self,
        rows: Rows,
        *,
        draw: Weights = None,
        weight: Weights = None,
        is_training: bool = False,
    ) -> Part:
        """Return some rows as a part of the fold.

        Args:
            rows: Rows of all samples, shape `(n,)`.
            draw: The weight by which each is drawn, shape `(n,)`.
            weight: What each counts for in the loss, and when confounds are fitted.
            is_training: Whether the inputs of its batches are augmented.
        """
        table = self.samples.table.iloc[rows]
        target = self.task.encode(table)
        if self.units is not None:
            target = self.units.to_units(target)
        layer_weight = None if draw is not None else weight
        if self.recipe.controls:
            controls = is_control(table, self.recipe.controls)
            layer_weight = np.where(controls, 1.0 if layer_weight is None else layer_weight, 0.0)
        return Part(
            as_tensor(self.samples.x),
            torch.from_numpy(rows),
            torch.from_numpy(self.design.encode(table)),
            torch.from_numpy(target),
            weight=_to_tensor(weight),
            layer_weight=_to_tensor(layer_weight),
            stratum=None if self.stratum is None else self._encode_stratum(rows),
            draw=_to_tensor(draw),
            prepare=self.inputs.to(self.device),
            augment=Augment(**self.recipe.augment) if is_training and self.recipe.augment else None,
            device=self.device,
        )

    def make_method(self, rows: Rows, seed: int) -> Method:
        """Return the method around a new network; equal seeds give equal first weights."""
        example = self.part(rows[:2]).batch(torch.arange(2)).x
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.architecture.make(self.task, self.design, example, seed, self._prepare)

    def _prepare(self, network: nn.Module) -> None:
        if self.recipe.weights is not None:
            load_weights(network, self.recipe.weights)
        freeze(network, self.recipe.freeze)

    @property
    def architecture(self) -> Architecture:
        """How the network and its method are made."""
        return Architecture(
            shape=tuple(self.samples.shape),
            network=self.recipe.network,
            network_options=dict(self.recipe.network_options),
            method=self.recipe.method,
            method_options=dict(self.recipe.method_options),
            at=self.recipe.at,
            stratum=self.stratum,
        )

    def _encode_stratum(self, rows: Rows) -> Tensor:
        """Return the code of each row's stratum; -1 for a level without training rows."""
        assert self.stratum is not None
        cells = read_columns(self.samples.table, [self.stratum])[self.stratum].iloc[rows]
        code_of = {level: code for code, level in enumerate(self.design.levels[self.stratum])}
        return torch.tensor([code_of.get(level, -1) for level in to_levels(cells)])


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


def _fit_w_scores(model: FittedModel, data: _FoldData, validation_rows: Rows) -> WScores:
    """Fit W-scores to the validation rows that are controls."""
    table = data.samples.table.iloc[validation_rows]
    controls = data.recipe.controls
    if not controls:
        if data.task.kind != "binary" or len(data.task.labels) > 1:
            raise OptionError(
                "W-scores need to know who is a control; got labels "
                f"{', '.join(map(repr, data.task.labels))}. Write data.controls: column=level."
            )
        controls = {data.task.labels[0]: data.task.levels[0][0]}
    rows = validation_rows[is_control(table, controls)]
    table = data.samples.table.iloc[rows]
    try:
        return WScores.from_controls(
            model.outputs(data.samples.x[rows], table),
            table,
            data.recipe.confounds,
            types=data.design.types,
        )
    except TableError as error:
        raise StateError(
            f"W-scores cannot be fitted to {len(rows)} held-out controls. {error}"
        ) from error


def _to_tensor(values: Weights) -> Tensor | None:
    return None if values is None else torch.from_numpy(values).float()
