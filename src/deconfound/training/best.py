"""Which epoch is the best one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Best:
    """The best epoch so far: the lowest validation loss among those in which the method was in force.

    While it is warming up (`Method.batches_to_warm_up`) the lowest loss of all is kept, in case training stops there.

    Attributes:
        epoch: From 0; −1 for none.
        loss: On the validation rows.
        weights: The state after it.
        warming: Whether the method was not in force yet.
    """

    epoch: int = -1
    loss: float = math.inf
    weights: dict[str, Any] = field(default_factory=dict)
    warming: bool = True

    def yields_to(self, loss: float, warming: bool) -> bool:
        """Whether an epoch with this loss is better."""
        return loss < self.loss if warming == self.warming else self.warming

    def waited(self, epoch: int) -> int:
        """For how many epochs nothing has been better; a method that is warming up is waited for."""
        return 0 if self.warming else epoch - self.epoch


def endless(to_warm_up: int, batches: int, epochs: int) -> str | None:
    """What is wrong with a training that ends before its method is in force; None where nothing is."""
    if to_warm_up < max(batches, 1):
        return None
    return (
        f"a warm-up must end before training does; got {to_warm_up} batches of warm-up and {batches} of training "
        f"({epochs} epochs). Lower warmup, or train for more epochs."
    )
