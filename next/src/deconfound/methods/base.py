"""What a method is: a network under one way of training.

A method decides how a batch becomes a loss and a step, what is fitted beside the network, and what
evaluation needs. It knows neither epochs nor files. `deconfound.training.train` calls it in this
order:

    method.fit(training_batches)                 once, before the first step
    method.step(model, batch, …)                 for each batch, in training mode
    with method.refitted(held_out_batches): …    around each validation, in evaluation mode
    method.refit(held_out_batches)               once, after training
    method(x, metadata)                          for new rows
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from deconfound.design import Design


class Batch(NamedTuple):
    """Some rows with all that a method may read of them.

    Attributes:
        x: Inputs of the network, shape `(n, …)`.
        metadata: `design.encode(rows)`, shape `(n, p)`.
        target: What the criterion compares logits with: codes of classes `(n,)`, or 0/1 and numbers
            `(n, k)`.
        weight: What each row counts for in the loss, shape `(n,)`; the mean over its part of the
            fold is 1. None counts each row once.
        layer_weight: What each row counts for when confounds are fitted, shape `(n,)`; 0 keeps a
            row out, as for a fit on controls only. None counts each row once.
        stratum: The code of each row's stratum, shape `(n,)`, for losses that compare rows of one
            stratum. -1 is a row without one.
    """

    x: Tensor
    metadata: Tensor
    target: Tensor
    weight: Tensor | None = None
    layer_weight: Tensor | None = None
    stratum: Tensor | None = None


# From logits and their batch to the loss, a scalar.
Criterion = Callable[[Tensor, Batch], Tensor]
# Gives the batches of some rows, each time from the first.
Batches = Callable[[], Iterable[Batch]]
# From parameters to their optimiser, with the options of the run.
MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]
# Takes one step: gradients of the loss, clipped as the run wants, then the optimiser.
Update = Callable[[Tensor, Optimizer], None]


@dataclass(frozen=True)
class Setting:
    """What a method knows of the problem when it is made: no row but an example.

    Attributes:
        design: The design, fitted to the training rows.
        example: Two rows of network inputs, from which shapes are read.
        at: The modules that a method attaches to, as in `deconfound.normalize`. None chooses those
            of `default_modules`.
        stratum: The categorical confound whose levels are strata, such as the site; None without
            one.
    """

    design: Design
    example: Tensor
    at: Any = None
    stratum: str | None = None


class Method(nn.Module):
    """A network trained as it is; other methods derive from this class.

    Everything that a method learns is a parameter or a buffer whose shape does not depend on the
    rows, so that loading is: make the method with the same design, then `load_state_dict`.

    Args:
        network: Any module that maps `(n, …)` to logits `(n, outputs)`.
        setting: The problem.

    Attributes:
        needs_confounds: Whether evaluation reads the confounds of each row.
        network: The network.
    """

    needs_confounds = False

    def __init__(self, network: nn.Module, setting: Setting) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, metadata: Tensor | None = None) -> Tensor:
        """Return logits `(n, outputs)`. In evaluation mode no label of `metadata` is read."""
        logits: Tensor = self.network(x)
        return logits

    def fit(self, batches: Batches) -> None:
        """Learn from the training rows what must be known before the first step."""

    def loss(self, batch: Batch, criterion: Criterion) -> Tensor:
        """Return the loss of a training batch."""
        return criterion(self(batch.x, batch.metadata), batch)

    def optimizers(self, make: MakeOptimizer) -> Sequence[Optimizer]:
        """Return the optimisers of `step`."""
        return [make(self.parameters())]

    def step(
        self,
        model: Any,
        batch: Batch,
        criterion: Criterion,
        optimizers: Sequence[Optimizer],
        update: Update,
    ) -> Tensor:
        """Train on one batch and return its loss, detached.

        Args:
            model: This method as the launcher wrapped it. Its `loss` joins the gradients of several
                processes.
            batch: The rows.
            criterion: The task loss.
            optimizers: What `optimizers` returned.
            update: Takes one step of an optimiser for a loss.
        """
        loss: Tensor = model.loss(batch, criterion)
        update(loss, optimizers[0])
        return loss.detach()

    def refit(self, batches: Batches) -> None:
        """Fit to held-out rows what training could only follow."""

    @contextmanager
    def refitted(self, batches: Batches) -> Iterator[None]:
        """Refit inside this context, and put back afterwards what training had learned."""
        yield


def default_modules(network: nn.Module) -> Any:
    """Return where layers go if nobody says: the network's `default_at`, else its linear layers."""
    return getattr(network, "default_at", nn.Linear)
