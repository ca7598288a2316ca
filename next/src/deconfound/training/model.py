"""A fitted model: everything between the stored values of new rows and their outputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn

from deconfound.adjust import WScores
from deconfound.attach import collect
from deconfound.design import Design, source_columns
from deconfound.errors import OptionError, ShapeError
from deconfound.methods import METHODS, Method, Setting, make_method
from deconfound.networks import build, is_builtin, is_estimator
from deconfound.training.estimators import EstimatorMethod
from deconfound.training.inputs import Inputs
from deconfound.training.loop import outputs
from deconfound.training.part import Part
from deconfound.training.recipe import Recipe
from deconfound.training.tasks import Task, Units

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Architecture:
    """What is needed to make the network and its method again, without their weights.

    Attributes:
        shape: The shape of one sample.
        network: The network's name.
        network_options: Its options.
        method: The method's name.
        method_options: Its options.
        at: The modules that the method attaches to; None for the default.
        stratum: The categorical confound whose levels are strata; None without one.
    """

    shape: tuple[int, ...]
    network: str
    network_options: Mapping[str, Any]
    method: str
    method_options: Mapping[str, Any]
    at: Any
    stratum: str | None

    @classmethod
    def from_recipe(cls, recipe: Recipe, shape: tuple[int, ...], stratum: str | None) -> Self:
        """Return the architecture of a recipe, for samples of this shape."""
        return cls(
            shape=tuple(shape),
            network=recipe.network,
            network_options=dict(recipe.network_options),
            method=recipe.method,
            method_options=dict(recipe.method_options),
            at=recipe.at,
            stratum=stratum,
        )

    @property
    def runs_own_code(self) -> bool:
        """True if making the network or the method runs code that is not deconfound's."""
        return not (is_builtin(self.network) and self.method in METHODS)

    def make(
        self,
        task: Task,
        design: Design,
        example: torch.Tensor,
        seed: int = 0,
        prepare: Callable[[nn.Module], None] | None = None,
    ) -> Method:
        """Return the method around a new network.

        Args:
            task: What is predicted.
            design: The design of the confounds.
            example: Two rows of inputs.
            seed: The seed of an estimator of scikit-learn.
            prepare: Changes a network of torch before the method is made, as for given weights.
        """
        network = build(self.network, self.shape, task.outputs, self.network_options)
        setting = Setting(design, example, self.at, self.stratum)
        if is_estimator(network):
            return EstimatorMethod(
                network,
                setting,
                kind=task.kind,
                seed=seed,
                method=self.method,
                options=self.method_options,
            )
        if prepare is not None:
            prepare(network)
        return make_method(self.method, network, setting, self.method_options)


@dataclass(eq=False)
class FittedModel:
    """A model of one fold, for new rows.

    Attributes:
        task: What it predicts.
        design: The design of the confounds, fitted to the training rows.
        inputs: Mean and scale of the training rows.
        method: The network under its method.
        architecture: How to make the method again.
        units: Mean and scale of numeric labels; None for classes.
        shift: What is added to outputs, shape `(k,)`; see `FoldWeights`.
        w_scores: Standardises outputs by those of held-out controls; None leaves them as they are.
        history: One entry per validation of the training; it is not saved.
        best: The entry of the state that was kept.
    """

    task: Task
    design: Design
    inputs: Inputs
    method: Method
    architecture: Architecture
    units: Units | None
    shift: NDArray[np.float64]
    w_scores: WScores | None = None
    history: list[dict[str, float]] = field(default_factory=list)
    best: dict[str, float] = field(default_factory=dict)

    @property
    def needed_columns(self) -> tuple[str, ...]:
        """The columns that the table of new rows must have; empty if no confound is read."""
        if not self.method.needs_confounds and self.w_scores is None:
            return ()
        return tuple(source_columns(self.design.confounds))

    def outputs(
        self, x: NDArray[Any], table: Any, unseen: Literal["error", "mean"] | None = None
    ) -> Floats:
        """Return logits, or numbers in the user's units, shape `(n, k)`.

        Args:
            x: Stored values as in training, shape `(n, …)`.
            table: The same rows, with `needed_columns`. Labels are not read.
            unseen: What an unseen level of a confound is; None takes the design's rule.
        """
        logits = outputs(self.method, self._part(x, table, unseen)).cpu()
        if self.units is not None:
            logits = self.units.from_units(logits)
        values = logits.numpy() + self.shift
        if self.w_scores is not None:
            metadata = self.w_scores.design.encode(table, dtype=np.float64)
            values = self.w_scores.at_average(values, metadata)
        return values.astype(np.float32)

    def features(
        self, x: NDArray[Any], table: Any, unseen: Literal["error", "mean"] | None = None
    ) -> Floats:
        """Return what the network's last linear module reads, shape `(n, d)`."""
        with collect(self.method.network) as collector:
            outputs(self.method, self._part(x, table, unseen))
        return collector.features().flatten(1).float().cpu().numpy()

    def to_state(self) -> dict[str, Any]:
        """Return everything as tensors and plain data, for `torch.save`."""
        state = {name: value.cpu() for name, value in self.method.state_dict().items()}
        return {
            "architecture": dict(self.architecture.__dict__),
            "task": self.task.to_dict(),
            "design": self.design.to_dict(),
            "inputs": {name: value.cpu() for name, value in self.inputs.state_dict().items()},
            "method": state,
            "units": None if self.units is None else self.units.to_dict(),
            "shift": self.shift.tolist(),
            "w_scores": None if self.w_scores is None else self.w_scores.to_dict(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], trust: bool = False) -> Self:
        """Return the model that `to_state` described.

        Args:
            state: What `torch.load(path, weights_only=True)` returns.
            trust: Whether code of the user's own network, and a pickled estimator, may run.
        """
        architecture = Architecture(**state["architecture"])
        if architecture.runs_own_code and not trust:
            raise OptionError(
                f"The model needs code that is not deconfound's: network.name is "
                f"{architecture.network!r}, method.name is {architecture.method!r}. If you know "
                "where the run comes from, write trust=True."
            )
        task, design = Task.from_dict(state["task"]), Design.from_dict(state["design"])
        inputs = Inputs(architecture.shape)
        inputs.load_state_dict(state["inputs"])
        method = architecture.make(task, design, torch.zeros(2, *architecture.shape))
        method.load_state_dict(state["method"])
        units, w_scores = state["units"], state["w_scores"]
        return cls(
            task,
            design,
            inputs,
            method,
            architecture,
            None if units is None else Units.from_dict(units),
            np.asarray(state["shift"]),
            None if w_scores is None else WScores.from_dict(w_scores),
        )

    def _part(self, x: NDArray[Any], table: Any, unseen: str | None) -> Part:
        """Return new rows as a part of a fold, whose targets are unknown."""
        if x.shape[1:] != self.architecture.shape:
            raise ShapeError(
                f"Each sample must have the shape {self.architecture.shape}, as in training; got "
                f"{x.shape[1:]}. Use the same features, or images of the same size."
            )
        design = copy(self.design)
        if unseen is not None:
            design.unseen = unseen  # type: ignore[assignment]
        metadata = np.full((len(x), len(design.names)), np.nan, np.float32)
        if self.method.needs_confounds:
            confounds = source_columns(design.confounds)
            columns = {name: table[name] for name in confounds if name in table}
            metadata = design.encode(pd.DataFrame(columns))
        device = next(iter(self.method.state_dict().values()), torch.empty(0)).device
        return Part(
            as_tensor(x),
            torch.arange(len(x)),
            torch.from_numpy(metadata),
            torch.zeros(len(x)),
            prepare=self.inputs.to(device),
            device=device,
        )


def as_tensor(x: NDArray[Any]) -> torch.Tensor:
    """Return an array as a tensor without a copy, also a file that is mapped read-only."""
    with warnings.catch_warnings():
        # Nothing writes into the tensor.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(x)
