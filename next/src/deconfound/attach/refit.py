"""Passes over held-out rows with the network standing still, to refit β or to measure its work.

β learned in training follows a network that moves, on rows that the network may have memorised.
Held-out rows show what the network does to new people. Each layer must be refitted on features from
which the layers before it have removed their part, so that the layers take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from deconfound.attach.current_batch import CurrentBatch
from deconfound.attach.features import all_tensors, call_network, evaluation_mode
from deconfound.attach.insertion import Insertion, Observer
from deconfound.errors import OptionError, StateError
from deconfound.layers import Moments, WhitenedBatch, check_metadata, check_weight

Batches = Iterable[tuple[Any, ...]] | Callable[[], Iterable[tuple[Any, ...]]]

# β of the training counts for this many held-out rows, for each direction of the confounds. A fit
# to n rows is off by about 1 / n of a feature's variance per direction, and training leaves .01.
ROWS_PER_DIRECTION = 100.0


def refit_layers(
    network: nn.Module,
    insertions: Sequence[Insertion],
    current: CurrentBatch,
    batches: Batches,
    prior: float | None,
) -> None:
    """Fit β of all layers to the rows of these batches; see `NormalizedModel.refit`."""
    design = insertions[0].layer.design
    if prior is None:
        prior = ROWS_PER_DIRECTION * design.confound_directions
    if not isinstance(prior, (int, float)) or not prior >= 0:
        raise OptionError(f"prior must be a number of rows, 0 or more; got {prior!r}.")
    reread = as_function(batches)
    first = list(islice(reread(), 2))
    # With a single batch, each layer is refitted before the features reach the next one.
    has_one_batch = len(first) == 1
    if has_one_batch:
        reread = as_function(first)
    turns = [insertions] if has_one_batch else [[insertion] for insertion in insertions]
    # Of several batches, sums are kept instead of features, which may not fit into memory.
    moments: dict[Insertion, Moments] = {}

    def add_moments(insertion: Insertion, features: Tensor, batch: WhitenedBatch) -> None:
        new = batch.exact_moments(features)
        moments[insertion] = moments[insertion] + new if insertion in moments else new
        if has_one_batch:
            insertion.layer.refit(new, prior)

    with restored_on_error(insertions):
        for turn in turns:
            observe(network, insertions, current, reread, add_moments, turn)
            if not has_one_batch:
                turn[0].layer.refit(moments[turn[0]], prior)


@contextmanager
def restored_on_error(insertions: Sequence[Insertion]) -> Iterator[Callable[[], None]]:
    """Put β back if this context ends with an error, so that no layer is refitted by itself.

    Yields:
        A function that puts β back.
    """
    betas = [insertion.layer.beta.detach().clone() for insertion in insertions]

    @torch.no_grad()
    def restore() -> None:
        for insertion, beta in zip(insertions, betas, strict=True):
            insertion.layer.beta.copy_(beta)

    try:
        yield restore
    except BaseException:
        restore()
        raise


@torch.no_grad()
def observe(
    network: nn.Module,
    insertions: Sequence[Insertion],
    current: CurrentBatch,
    batches: Callable[[], Iterable[tuple[Any, ...]]],
    observer: Observer,
    subset: Sequence[Insertion],
) -> None:
    """Run the network in evaluation mode and pass the features before some layers to an observer.

    Args:
        network: The network.
        insertions: All its layers.
        current: What carries the batch to the layers.
        batches: Returns the batches, with metadata that include the labels.
        observer: Called with the insertion, its features `(n, d)` and the batch.
        subset: The layers whose features are observed.

    Raises:
        StateError: A batch did not reach one of them.
    """
    layer = insertions[0].layer
    has_batches = False
    observed: list[Insertion] = []

    def record(insertion: Insertion, features: Tensor, batch: WhitenedBatch) -> None:
        observed.append(insertion)
        observer(insertion, features, batch)

    for insertion in subset:
        insertion.observer = record
    try:
        with evaluation_mode(network, *[insertion.layer for insertion in insertions]):
            for inputs, metadata, weight in _split_batches(batches()):
                has_batches = True
                rows = next(all_tensors(inputs)).shape[0]
                checked = check_metadata(metadata, layer.design, rows, training=True)
                weights = None if weight is None else check_weight(weight, rows)
                observed.clear()
                with current.hold(layer.whitening.whiten(checked, weights)):
                    call_network(network, inputs)
                if missing := [part.point.name for part in subset if part not in observed]:
                    raise StateError(
                        f"Module {missing[0]!r} was not called with one of these batches, so its "
                        "layer cannot be fitted or measured. Pass batches that reach every layer."
                    )
    finally:
        for insertion in subset:
            insertion.observer = None
    if not has_batches:
        raise OptionError("batches must contain at least one batch; got none.")


def as_function(batches: Batches) -> Callable[[], Iterable[tuple[Any, ...]]]:
    """Return a function that gives the batches, each time from the first."""
    if callable(batches):
        return batches
    if iter(batches) is batches:
        raise OptionError(
            "batches are read several times, and an iterator is empty after the first. "
            "Pass a list, a DataLoader, or a function that returns an iterator."
        )
    return lambda: batches


def _split_batches(batches: Iterable[Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Return the inputs, metadata and weights (or None) of each batch."""
    for batch in batches:
        if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
            raise OptionError(
                "Each batch must be (inputs, metadata) or (inputs, metadata, weight); got a "
                f"{type(batch).__name__}. Write model.refit([(inputs, metadata)])."
            )
        if next(all_tensors(batch[0]), None) is None:
            raise OptionError(
                "The inputs of each batch must be a tensor, a tuple of inputs, or a dict of "
                f"keyword inputs; got a {type(batch[0]).__name__}. Write torch.as_tensor(inputs)."
            )
        yield batch[0], batch[1], batch[2] if len(batch) == 3 else None
