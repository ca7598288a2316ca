"""What every method is: a network under one way of training."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from torch import Tensor, nn
from torch.optim import Optimizer

from deconfound.design import Design
from deconfound.errors import OptionError, did_you_mean
from deconfound.surgery import NormalizedModel, Place, Plan, normalize

# Of logits and target the loss of each row, `(n,)` or `(n, labels)`; methods take the (weighted) mean. A
# `StratumCriterion` is given the strata of the rows as well.
Criterion = Callable[..., Tensor]
Batches = Callable[[], "Iterable[TrainingBatch]"]


@dataclass(frozen=True)
class TrainingBatch:
    """A batch of rows with all that a method may read of them.

    Attributes:
        x: Inputs, `(n, …)`.
        metadata: `[C | L]`, encoded, `(n, p)`.
        target: What the criterion compares the logits with.
        controls: One boolean per row, True for the rows that a method may restrict itself to; None if not given.
        table: The rows' table columns as they were read, for methods that need them raw; None inside a training step.
        weight: How much each row counts in the loss, `(n,)`, or each row's label, `(n, labels)`; the mean over all
            training rows is 1. None where every row counts the same.
        stratum: The number of each row's stratum (its site, say), `(n,)`, for a `StratumCriterion`.
        layer_weight: How much each row counts in layers and refit, `(n,)`: `Balance.row_weight`. None takes the mean of
            `weight` over the labels.
    """

    x: Tensor
    metadata: Tensor
    target: Tensor
    controls: Tensor | None = None
    table: Mapping[str, Any] | None = None
    weight: Tensor | None = None
    stratum: Tensor | None = None
    layer_weight: Tensor | None = None

    @property
    def row_weight(self) -> Tensor | None:
        """One weight per row, for all that is fitted beside the loss."""
        if self.layer_weight is not None or self.weight is None:
            return self.layer_weight
        return row_weight(self.weight)

    def controls_only(self) -> Tensor:
        """Which rows are controls, or an error that says what is missing."""
        if self.controls is None:
            raise OptionError(
                "controls must be known with controls_only=True; got none. Say which rows are controls, "
                "or leave controls_only out."
            )
        return self.controls


@dataclass(frozen=True)
class Setting:
    """What a method may know of a problem before training starts: nothing of validation or test rows.

    Attributes:
        design: Fitted on the training rows.
        at: The modules whose output is normalised, as in `dc.normalize`; None for the library's choice.
        training: Goes over the training rows once, in batches, whenever it is called.
        lr: The learning rate of the network's optimiser.
        site: The name of the confound that says where a sample comes from, for methods that harmonise sites.
        attach: Further arguments of `dc.normalize` (`where`, `share`, …), for methods that insert layers.
    """

    design: Design
    at: Any
    training: Batches
    lr: float = 1e-3
    site: str | None = None
    attach: Mapping[str, Any] = field(default_factory=dict)

    def first_batch(self) -> TrainingBatch:
        """The first training batch, from which shapes are read."""
        for batch in self.training():
            return batch
        raise OptionError("training rows must make at least one batch; got none. Check the split.")

    def places(self, network: nn.Module) -> tuple[Place, ...]:
        """The places of `at` with the shapes of their features; the network is not changed."""
        plan: Plan = normalize(network, self.design, self.at, example=self.first_batch().x, dry_run=True)
        return plan.places


@dataclass(frozen=True)
class Loss:
    """The objective of one step and its parts, for the history.

    Attributes:
        total: What backward is called on.
        parts: Named scalars, detached.
    """

    total: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict)


def weighted_mean(losses: Tensor, weight: Tensor | None = None) -> Tensor:
    """The mean of every loss: `Σ_i w_i ℓ_i / n`, or `Σ_ik w_ik ℓ_ik / (n · labels)`, for weights of training mean 1.

    The number of rows divides, not the batch's own sum of weights: so the gradients of several small batches add up to
    that of the large one. A criterion that has taken its mean already is left alone where there are no weights.

    Args:
        losses: What a criterion returned: `(n,)`, `(n, labels)`, or a scalar.
        weight: `(n,)` or `(n, labels)`.

    Example:
        >>> import torch
        >>> weighted_mean(torch.tensor([1.0, 3.0]), torch.tensor([1.5, 0.5]))
        tensor(1.5000)
    """
    return losses.mean() if weight is None else (losses * spread_weight(weight, losses)).mean()


def spread_weight(weight: Tensor, losses: Tensor) -> Tensor:
    """Weights in a shape that multiplies losses `(n,)` or `(n, labels)`, whichever of the two shapes they have."""
    if losses.ndim == 0:
        raise OptionError(
            "a criterion must return one loss per row where rows have weights; got their mean. Use reduction='none'."
        )
    if losses.ndim == 1:
        return row_weight(weight).to(losses)
    return weight.to(losses).reshape(len(losses), -1).expand_as(losses)


def row_weight(weight: Tensor) -> Tensor:
    """One weight per row, `(n,)`: the mean over the labels where each label has its own."""
    return weight.mean(1) if weight.ndim > 1 else weight


class StratumCriterion(ABC):
    """A loss that compares rows within strata: `criterion(logits, target, stratum)`."""

    @abstractmethod
    def __call__(self, logits: Tensor, target: Tensor, stratum: Tensor) -> Tensor:
        """The loss of each row."""

    def noted(self) -> dict[str, Tensor]:
        """What the history tells of the last batch, beside its loss."""
        return {}


def row_losses(criterion: Criterion, logits: Tensor, batch: TrainingBatch) -> Tensor:
    """What a criterion says of each row of a batch."""
    if not isinstance(criterion, StratumCriterion):
        return criterion(logits, batch.target)
    if batch.stratum is None:
        raise OptionError("strata must be known for a loss that compares rows within them; got none.")
    return criterion(logits, batch.target, batch.stratum)


def task_loss(criterion: Criterion, logits: Tensor, batch: TrainingBatch) -> Tensor:
    """The loss of a batch that every method minimises: the weighted mean of its rows' losses."""
    return weighted_mean(row_losses(criterion, logits, batch), batch.weight)


class Method(nn.Module):
    """A network under one way of training; subclasses are final.

    `deconfound.training.step` calls them: `prepare` once, then for each batch in train mode `before_step` and `loss`,
    backward and the optimisers' steps; in eval mode `forward`, within `refitted` while it validates and after `refit`
    in the end. All state is parameters and buffers, of shapes that do not depend on which training rows there were, so
    that a checkpoint loads into a method prepared on others.

    A subclass takes `(network, setting, *, option=default, …)`, puts the network, or the model around it, into
    `self.model`, learns what it must know beforehand in `fit`, and declares its `name`, a `summary`, whether its
    eval output depends on the confounds (`reads_confounds`), how many samples a training batch must have
    (`smallest_batch`), whether all that it fits can be fitted under weights of the rows (`takes_weights`), whether it
    must be told which confound is the site (`needs_site`), and whether it takes people of a site that it was not fitted
    on (`takes_new_sites`). A step makes no device wait, so that a CUDA graph can hold it.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    reads_confounds: ClassVar[bool]
    smallest_batch: ClassVar[int] = 1
    takes_weights: ClassVar[bool] = True
    needs_site: ClassVar[bool] = False
    takes_new_sites: ClassVar[bool] = True
    model: nn.Module

    @classmethod
    def prepare(cls, network: nn.Module, setting: Setting, **options: Any) -> Self:
        """Put the method around a network; whatever it fits beforehand it fits on `setting.training()`."""
        made = cls.make(network, setting, options)
        made.fit(setting)
        return made

    @classmethod
    def restore(cls, network: nn.Module, setting: Setting, state: Mapping[str, Any], **options: Any) -> Self:
        """The method that a state dict was saved from; of the training rows only the shape of `x` is read."""
        made = cls.make(network, setting, options)
        made.load_state_dict(state)
        return made

    @classmethod
    def options(cls) -> dict[str, Any]:
        """The options of `prepare` and their defaults."""
        parameters = inspect.signature(cls.__init__).parameters.values()
        return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}

    @classmethod
    def make(cls, network: nn.Module, setting: Setting, options: Mapping[str, Any]) -> Self:
        """The method around a network, with nothing fitted; of the training rows only the shape of `x` is read."""
        faults = unknown_options(cls, options)
        if faults:
            raise OptionError("\n".join(faults))
        return cls(network, setting, **options)

    @classmethod
    def rungs(cls, options: Mapping[str, Any], batches: int) -> Sequence[Sequence[Mapping[str, Any]]]:
        """Options among which a run of so many batches chooses on its validation rows (see `choosing`); here none."""
        return ()

    def fit(self, setting: Setting) -> None:
        """What is learned from the training rows before training starts."""

    def forward(self, x: Tensor, metadata: Tensor | None = None) -> Tensor:
        """Logits; in eval only the confounds of `metadata` are read, and many methods ignore them, as here."""
        logits: Tensor = self.model(x)
        return logits

    def loss(self, batch: TrainingBatch, criterion: Criterion) -> Loss:
        """The objective of one training step."""
        return Loss(task_loss(criterion, self(batch.x, batch.metadata), batch))

    def before_step(self, batch: TrainingBatch) -> None:
        """What the method does by itself before each step of the network (Algorithm 1's step on β)."""

    def refit(self, held_out: Batches) -> None:
        """Fit to validation rows what training could only follow; called once after training, in eval mode."""

    def refitted(self, held_out: Batches) -> AbstractContextManager[None]:
        """A context around each validation in which the method is as `refit` leaves it."""
        return nullcontext()

    def network_parameters(self) -> list[nn.Parameter]:
        """What the network's optimiser trains."""
        return list(self.parameters())

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The same as an optimiser takes them: groups with options of their own."""
        return [{"params": self.network_parameters()}]

    def own_optimizers(self) -> list[Optimizer]:
        """Optimisers that the method steps by itself; a checkpoint of a training holds their state too."""
        return []

    @property
    def batches_to_warm_up(self) -> int:
        """For how many more batches the method does not yet do what it is there for; no epoch before is the best."""
        return 0

    @property
    def skipped_batches(self) -> int:
        """How many batches taught the method's layers nothing, because features or metadata were not finite."""
        return 0

    @property
    def network(self) -> nn.Module:
        """The user's network inside, whose modules hooks may read features from."""
        return self.model.network if isinstance(self.model, NormalizedModel) else self.model


def unknown_options(kind: type[Method], options: Iterable[str]) -> list[str]:
    """One sentence for each option that a method does not have, with the nearest one that it has."""
    known = kind.options()
    faults = []
    for name in options:
        if name not in known:
            listed, hint = ", ".join(known) or "none", did_you_mean(name, known)
            faults.append(f"options of method {kind.name!r} must be among: {listed}; got {name!r}.{hint}")
    return faults


def require(name: str, value: object, least: float, *, whole: bool = False) -> None:
    """Refuse an option that is not a number of at least `least`."""
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not value >= least:
        kind = "a whole number" if whole else "a number"
        raise OptionError(f"{name} must be {kind} of at least {least:g}; got {value!r}.")
