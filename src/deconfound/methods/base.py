"""What every method is: a network under one way of training."""

from __future__ import annotations

import difflib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from torch import Tensor, nn
from torch.optim import Optimizer

from deconfound.design import Design
from deconfound.errors import OptionError
from deconfound.surgery import NormalizedModel

Criterion = Callable[[Tensor, Tensor], Tensor]
Batches = Callable[[], "Iterable[TrainingBatch]"]


@dataclass(frozen=True)
class TrainingBatch:
    """Samples of the training rows.

    Attributes:
        x: Inputs, `(n, …)`.
        metadata: `[C | L]`, encoded, `(n, p)`.
        target: What the criterion compares the logits with.
        controls: One boolean per row, True for the rows that a method may restrict itself to; None if not given.
        table: The rows' table columns as they were read, for methods that need them raw; None inside a training step.
    """

    x: Tensor
    metadata: Tensor
    target: Tensor
    controls: Tensor | None = None
    table: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Setting:
    """What a method may know of a problem before training starts: nothing of validation or test rows.

    Attributes:
        design: Fitted on the training rows.
        at: Names of the modules whose output is normalised; None for the library's choice (`dc.normalize`).
        training: Goes over the training rows once, in batches, whenever it is called.
        lr: The learning rate of the network's optimiser.
        site: The name of the confound that says where a sample comes from, for methods that harmonise sites.
    """

    design: Design
    at: tuple[str, ...] | None
    training: Batches
    lr: float = 1e-3
    site: str | None = None


@dataclass(frozen=True)
class Loss:
    """The objective of one step and its parts, for the history.

    Attributes:
        total: What backward is called on.
        parts: Named scalars, detached.
    """

    total: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict)


class Method(nn.Module, ABC):
    """A network under one way of training; subclasses are final, one file each.

    The engine calls `prepare` once, then for each batch in train mode `before_step` and `loss`, backward and the
    optimisers' steps; in eval mode `forward`, within `refitted` while it validates and after `refit` in the end. All
    state is parameters and buffers, of shapes that do not depend on which training rows there were, so that a
    checkpoint loads into a method prepared on others.

    A subclass takes `(network, setting, *, option=default, …)`, puts the network, or the model around it, into
    `self.model`, learns what it must know beforehand in `fit`, and declares its `name`, a `summary`, whether its
    eval output depends on the confounds (`reads_confounds`) and how many samples a training batch must have
    (`smallest_batch`).
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    reads_confounds: ClassVar[bool]
    smallest_batch: ClassVar[int] = 1
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

    def fit(self, setting: Setting) -> None:
        """What is learned from the training rows before training starts."""

    @abstractmethod
    def forward(self, x: Tensor, metadata: Tensor | None = None) -> Tensor:
        """Logits; in eval only the confounds of `metadata` are read, and a method may ignore them."""

    def loss(self, batch: TrainingBatch, criterion: Criterion) -> Loss:
        """The objective of one training step."""
        return Loss(criterion(self(batch.x, batch.metadata), batch.target))

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

    def own_optimizers(self) -> list[Optimizer]:
        """Optimisers that the method steps by itself; the engine saves and restores their state."""
        return []

    @property
    def batches_to_warm_up(self) -> int:
        """For how many more batches the method does not yet do what it is there for; no epoch before is the best."""
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
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            listed = ", ".join(known) or "none"
            faults.append(f"options of method {kind.name!r} must be among: {listed}; got {name!r}.{hint}")
    return faults
