"""How metadata reach the inserted layers: held for the length of one forward, separately for each thread."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from deconfound.errors import DeconfoundError
from deconfound.layers import MetadataLayer, torch_private
from deconfound.layers.whitened import WhitenedBatch


class Pass:
    """One forward of a model: its metadata, and what has been done with them so far."""

    def __init__(self, metadata: Tensor | None, weights: Tensor | None, training: bool) -> None:
        self.metadata = metadata
        self.weights = weights
        self.training = training
        self.traced = torch.compiler.is_compiling()
        self.inputs_want_gradients = False
        self.called: set[str] = set()
        self.may_be_recomputed = False
        self._whitened: dict[tuple[bool, torch.dtype, torch.device], WhitenedBatch] = {}

    def whitened(self, layer: MetadataLayer, device: torch.device) -> WhitenedBatch:
        """The metadata as this layer needs them; layers of one design share the work."""
        assert self.metadata is not None
        key = (layer.training, layer.confound_map.dtype, device)
        if key not in self._whitened:
            weights = None if self.weights is None else self.weights.to(device)
            self._whitened[key] = layer.whiten(self.metadata.to(device), weights)
            self._whitened[key].inputs_want_gradients = self.inputs_want_gradients
        return self._whitened[key]


def _nothing() -> None:
    """No pass."""


class Carrier:
    """Holds the pass that is under way. Nothing of it is copied or saved with a model."""

    def __init__(self) -> None:
        self._by_thread: dict[int, Pass] = {}
        self._traced: Pass | None = None
        self._awaiting_backward: weakref.WeakSet[Pass] = weakref.WeakSet()
        self._reached_by_backward: Callable[[], Pass | None] = _nothing
        self.building = threading.Lock()

    def carry(self, current: Pass, run: Callable[[], Any]) -> Any:
        """What `run` returns while `current` is the pass of this thread, until it ends, however it ends."""
        if current.traced:  # the compiler sees one thread, and cannot read its identity
            self._traced = current
            try:
                return run()
            finally:
                self._traced = None
        thread = threading.get_ident()
        outer = self._by_thread.get(thread)
        self._by_thread[thread] = current
        try:
            return run()
        finally:
            if outer is None:
                del self._by_thread[thread]
            else:
                self._by_thread[thread] = outer

    def current(self, path: str) -> Pass:
        """The pass that a layer belongs to: the one under way, or the one whose activations are recomputed."""
        if torch.compiler.is_compiling():
            found = self._traced
        else:
            found = self._by_thread.get(threading.get_ident()) or self._recomputed(path)
        if found is None:
            raise DeconfoundError(
                f"the network must be called through its normalised model; got a direct call that reached {path!r}. "
                "Write model(inputs, metadata=design.encode(rows)), or model.remove() to have the plain network back."
            )
        return found

    def _recomputed(self, path: str) -> Pass | None:
        """With activation checkpointing, backward calls the modules again, outside of any pass."""
        if not torch_private.in_backward():
            return None
        reached = self._reached_by_backward()
        if reached is not None:
            return reached
        waiting = list(self._awaiting_backward)
        if len(waiting) > 1:
            raise DeconfoundError(
                f"recomputing {path!r} must belong to one forward; got {len(waiting)} that still wait for their "
                "backward. With activation checkpointing, run backward after each forward."
            )
        return waiting[0] if waiting else None

    def keep_for_backward(self, current: Pass, output: Tensor) -> None:
        """Remember the pass for as long as the graph of an output lives, if checkpointing may recompute it."""
        if current.may_be_recomputed and output.requires_grad and not current.traced:
            self._awaiting_backward.add(current)
            output.register_hook(_Keep(current, self))

    def __deepcopy__(self, memo: dict[int, Any]) -> Carrier:
        """A new one: passes belong to the model that runs them."""
        twin = Carrier()
        memo[id(self)] = twin
        return twin

    def __reduce__(self) -> tuple[type[Carrier], tuple[()]]:
        """A new one, as for copies."""
        return Carrier, ()


class _Keep:
    """Does nothing to a gradient: it lives as long as the graph, and notes which pass backward has reached."""

    def __init__(self, current: Pass, carrier: Carrier) -> None:
        self.current = current
        self.carrier = carrier

    def __call__(self, gradient: Tensor) -> None:
        self.carrier._reached_by_backward = weakref.ref(self.current)
