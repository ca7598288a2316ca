"""One part of a fold (training, validation or test rows) as batches on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from deconfound.methods import Batch

# Numbers of inputs in one batch of an evaluation. Above it, batches are slower, not faster.
EVALUATION_INPUTS = 4_000_000
FEWEST_EVALUATION_ROWS = 256

# From stored values `(n, …)` to the inputs of the network.
Preparation = Callable[[Tensor], Tensor]
# From inputs and a generator to inputs that are varied at random.
Augmentation = Callable[[Tensor, torch.Generator], Tensor]


class Part:
    """Some rows of all samples, with their metadata and targets, as batches on a device.

    Stored values stay as they are (bytes of images, perhaps in a file) until a batch needs them;
    then they go to the device and are prepared there.

    Args:
        x: The stored values of all samples, shape `(N, …)`.
        rows: The rows of this part, shape `(n,)`.
        metadata: `design.encode` of these rows, shape `(n, p)`.
        target: The targets of these rows, shape `(n,)` or `(n, k)`.
        weight: What each of these rows counts for in the loss, shape `(n,)`.
        layer_weight: What each counts for when confounds are fitted, shape `(n,)`.
        stratum: The stratum of each, shape `(n,)`.
        draw: The weight by which rows are drawn with replacement in each epoch, shape `(n,)`. None
            takes each row once.
        prepare: Scales stored values; None takes them as they are.
        augment: Varies the inputs of training batches.
        device: The device of the batches.
    """

    def __init__(  # noqa: PLR0913
        self,
        x: Tensor,
        rows: Tensor,
        metadata: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        layer_weight: Tensor | None = None,
        stratum: Tensor | None = None,
        draw: Tensor | None = None,
        prepare: Preparation | None = None,
        augment: Augmentation | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.device = torch.device(device)
        self._x, self._rows = x, rows
        self._prepare, self._augment, self._draw = prepare, augment, draw
        if x.is_floating_point() and x.ndim == 2:
            # A table is small: its rows are prepared once.
            own = x[rows].to(self.device)
            self._x = own if prepare is None else prepare(own)
            self._rows, self._prepare = torch.arange(len(rows)), None
        columns = [metadata, target, weight, layer_weight, stratum]
        on_device = [None if column is None else column.to(self.device) for column in columns]
        self._columns = Batch(torch.empty(0), *on_device)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self._rows)

    def count_batches(self, batch_size: int) -> int:
        """Return the number of batches of an epoch."""
        return -(-len(self) // batch_size)

    def order(
        self, seed: int, epoch: int, batch_size: int, rank: int = 0, processes: int = 1
    ) -> list[Tensor]:
        """Return the positions of each training batch of an epoch, at random.

        The order follows from the seed and the epoch alone. Batches have equal sizes, give or take
        one row, and each process gets an equal share of each batch: otherwise a process would wait
        for another one forever.
        """
        generator = torch.Generator().manual_seed(mix_seeds(seed, epoch))
        if self._draw is None:
            positions = torch.randperm(len(self), generator=generator)
        else:
            weights = self._draw.double()
            positions = torch.multinomial(weights, len(self), replacement=True, generator=generator)
        batches = torch.tensor_split(positions, self.count_batches(batch_size))
        shares = [len(batch) // processes for batch in batches]
        pairs = zip(batches, shares, strict=True)
        return [batch[rank * share : (rank + 1) * share] for batch, share in pairs]

    def batch(self, positions: Tensor, seed: int | None = None) -> Batch:
        """Return the rows at these positions.

        Args:
            positions: Places among the rows of this part, shape `(b,)`.
            seed: The seed by which inputs are varied; None leaves them as they are.
        """
        x = self._x[self._rows[positions]].to(self.device)
        if self._prepare is not None:
            x = self._prepare(x)
        if self._augment is not None and seed is not None:
            x = self._augment(x, torch.Generator(self.device).manual_seed(seed))
        places = positions.to(self.device)
        columns = [None if column is None else column[places] for column in self._columns[1:]]
        return Batch(x, *columns)  # type: ignore[arg-type]

    def batches(self) -> Iterator[Batch]:
        """Return all rows once and in their order, in batches for evaluation and for fits.

        The weight by which a row is drawn becomes part of its `layer_weight`.
        """
        inputs = max(self._x[:1].numel(), 1)
        size = max(EVALUATION_INPUTS // inputs, FEWEST_EVALUATION_ROWS)
        for positions in torch.arange(len(self)).split(size):
            batch = self.batch(positions)
            if self._draw is not None:
                weight = self._draw[positions].to(batch.metadata)
                if batch.layer_weight is not None:
                    weight = weight * batch.layer_weight
                batch = batch._replace(layer_weight=weight)
            yield batch

    def without_inputs(self) -> Batch:
        """Return all rows as one batch whose `x` is empty, for losses of outputs."""
        return self._columns


def mix_seeds(*numbers: int) -> int:
    """Return one seed from several numbers; other numbers give unrelated seeds."""
    mixed = 0
    for number in numbers:
        # Steps of a linear congruential generator (Knuth's MMIX), kept to 63 bits.
        mixed = ((mixed + number) * 6364136223846793005 + 1442695040888963407) % 2**63
    return mixed
