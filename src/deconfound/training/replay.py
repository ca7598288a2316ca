"""Training steps and validations as CUDA graphs, so that a small network is not held up by its own launches.

Every step and every validation is a fixed sequence of operations on fixed memory, with no decision in Python.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

TRIALS = 3


class Replay:
    """A step and a validation, captured; they run on a stream of their own, which nobody waits for unasked.

    `rows` is a batch of row numbers; all others have its size.
    """

    def __init__(self, step: Callable[[Tensor], None], validate: Callable[[], None] | None, rows: Tensor) -> None:
        self.stream = torch.cuda.Stream()
        self._rows = rows.clone()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(TRIALS):
                step(self._rows)
            if validate is not None:
                validate()
                step(self._rows)  # back to train mode
        torch.cuda.synchronize()
        self._step, self._validate = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._step, stream=self.stream):
            step(self._rows)
        if validate is not None:
            with torch.cuda.graph(self._validate, stream=self.stream):
                validate()

    def step(self, rows: Tensor) -> None:
        """Train on these rows."""
        self._rows.copy_(rows)
        self._step.replay()

    def validate(self) -> None:
        """Judge the present state."""
        self._validate.replay()
