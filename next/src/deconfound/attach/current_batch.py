"""How metadata reach the layers inside a network: a holder that the hooks share with the model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from deconfound.errors import StateError
from deconfound.layers import WhitenedBatch, backward_id, is_recomputing

Batch = WhitenedBatch | Tensor


class CurrentBatch(threading.local):
    """The batch of the forward pass that is running, separately for each thread.

    Attributes:
        batch: A training batch, or in evaluation the whitened confounds; None outside a pass.
        modules_called: The modules whose hooks ran in this pass.
        batch_of_backward: The batch whose graph backward has reached, and an id of this backward
            pass. Activation checkpointing repeats parts of the forward pass there, outside any
            pass.
    """

    # Attributes are set here, not on the class, because torch.compile reads them from instances.
    def __init__(self) -> None:
        self.batch: Batch | None = None
        self.modules_called: set[str] = set()
        self.batch_of_backward: tuple[int, Batch] | None = None

    @contextmanager
    def hold(self, batch: Batch) -> Iterator[None]:
        """Make this the current batch, also if the pass ends with an error."""
        outer = self.batch, self.modules_called
        self.batch, self.modules_called = batch, set()
        try:
            yield
        finally:
            self.batch, self.modules_called = outer

    def get(self, name: str) -> Batch:
        """Return the batch for the module `name`, which may be called once in a pass."""
        if self.batch is None:
            if is_recomputing():
                backward, batch = self.batch_of_backward or (None, None)
                if batch is not None and backward == backward_id():
                    return batch
                raise StateError(
                    f"Backward repeats the forward pass of {name!r} before it has reached the "
                    "output of the model. With activation checkpointing, compute the loss from the "
                    "model's output."
                )
            raise StateError(
                f"The network was called directly, and its layer at {name!r} has no metadata. "
                "Write model(inputs, metadata=design.encode(rows)), "
                "or model.remove() to get the plain network back."
            )
        if not torch.compiler.is_compiling():
            if name in self.modules_called:
                raise StateError(
                    f"Module {name!r} was called twice in one forward pass. A layer there would "
                    "mix different features. Choose modules that are called once."
                )
            self.modules_called.add(name)
        return self.batch

    def remember_for_backward(self, output: Tensor, batch: Batch) -> None:
        """Let backward find this batch again as soon as it reaches the output."""

        def set_batch(gradient: Tensor) -> None:
            self.batch_of_backward = backward_id(), batch

        output.register_hook(set_batch)

    def __reduce__(self) -> tuple[type[CurrentBatch], tuple[()]]:
        """Copy and pickle as an empty holder: a batch belongs to the model that runs it."""
        return CurrentBatch, ()
