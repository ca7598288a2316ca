"""Batches of a fold: dicts of what a `TrainingBatch` holds, in an order that (seed, epoch) decides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, Sampler

from deconfound.methods import TrainingBatch
from deconfound.training.augment import Key
from deconfound.training.fold_data import AT_ONCE, FoldData, Part
from deconfound.training.step import in_batches, number_of_batches, shuffled
from deconfound.training.within import cases_of, paired_batches

Batch = dict[str, Any]


class Rows(Dataset[Batch]):
    """The rows of one part of a fold, a whole batch at a time."""

    def __init__(self, data: FoldData, part: Part) -> None:
        self.data, self.part = data, part

    def __len__(self) -> int:
        return len(self.part.rows)

    def __getitem__(self, asked: Sequence[int] | tuple[Sequence[int], Key]) -> Batch:
        positions, key = asked if isinstance(asked, tuple) else (asked, None)
        chosen = np.asarray(positions, dtype=np.intp)
        return {"x": self.data.samples(self.part.rows[chosen], key), **self.part.at(chosen)}


class Order(Sampler[Any]):
    """Positions of each batch, with a key of its own where samples are augmented.

    Rows are divided into batches of nearly equal size. In training the order is drawn from (seed, epoch), by the
    probabilities `draw` if there are any, and each process takes an equal share of it; without a seed it is left alone.
    With `pairs`, cases and strata, each batch holds such pairs as far as there are any (`paired_batches`). A key is the
    same in every process that reads and in a resumed epoch.
    """

    def __init__(
        self,
        rows: int,
        batch_size: int,
        seed: int | None,
        draw: NDArray[np.float64] | None = None,
        pairs: tuple[NDArray[np.bool_], NDArray[np.intp]] | None = None,
        keyed: bool = False,
    ) -> None:
        self.rows, self.batch_size, self.seed = rows, batch_size, seed
        self.draw, self.pairs, self.keyed = draw, pairs, keyed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the engine before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return number_of_batches(self._share(), self.batch_size)

    def __iter__(self) -> Iterator[list[int] | tuple[list[int], Key]]:
        order = np.arange(self.rows)
        rank, share = _rank()[0], self._share()
        if self.seed is not None:
            order = shuffled(self.rows, self.seed, self.epoch, self.draw)
            order = order[rank * share : (rank + 1) * share]
        batches = in_batches(order, self.batch_size)
        if self.seed is not None and self.pairs is not None:
            batches = paired_batches(batches, *self.pairs)
        for number, part in enumerate(batches):
            positions: list[int] = part.tolist()
            yield (positions, (self.seed or 0, self.epoch, rank, number)) if self.keyed else positions

    def _share(self) -> int:
        return self.rows if self.seed is None else self.rows // _rank()[1]


def loader(data: FoldData, part: Part, seed: int | None = None) -> DataLoader[Any]:
    """Batches of a part. With a seed they are to be trained on: shuffled, and augmented where the run asks for it."""
    training = data.problem.config.training
    size = max(training.batch_size, AT_ONCE) if seed is None else training.batch_size
    pairs = None if part.stratum is None else (cases_of(part.target), part.stratum.numpy())
    keyed = seed is not None and bool(training.augment)
    return DataLoader(
        Rows(data, part),
        batch_size=None,
        sampler=Order(len(part.rows), size, seed, part.draw, pairs, keyed),
        num_workers=training.workers,
        persistent_workers=training.workers > 0,
    )


def held_out(batches: Iterable[Batch], device: torch.device) -> Iterator[TrainingBatch]:
    """Validation batches as a method refits on them."""
    for batch in batches:
        yield TrainingBatch(**{name: value.to(device) for name, value in batch.items()})


def _rank() -> tuple[int, int]:
    """This process's number, and how many there are."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
