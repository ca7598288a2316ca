"""The network for tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn


class MLP(nn.Sequential):
    """Linear layers `fc1`, `fc2`, …, `out`, with ReLU and dropout between.

    Args:
        inputs: Width of a sample; a shape of several axes is flattened.
        outputs: Number of logits.
        hidden: Widths of the hidden layers.
        dropout: Share of hidden features that each training step leaves out.

    Example:
        >>> import torch
        >>> network = MLP(10, 1, hidden=(16,), dropout=0)
        >>> [name for name, _ in network.named_children()]
        ['fc1', 'relu1', 'out']
        >>> network(torch.randn(4, 10)).shape
        torch.Size([4, 1])
    """

    def __init__(
        self, inputs: int | Sequence[int], outputs: int, hidden: Sequence[int] = (64, 32), dropout: float = 0.2
    ) -> None:
        super().__init__()
        shape = (inputs,) if isinstance(inputs, int) else tuple(inputs)
        if len(shape) > 1:
            self.add_module("flatten", nn.Flatten())
        widths = [math.prod(shape), *hidden]
        for number, (a, b) in enumerate(pairwise(widths), start=1):
            self.add_module(f"fc{number}", nn.Linear(a, b))
            self.add_module(f"relu{number}", nn.ReLU())
            if dropout:
                self.add_module(f"dropout{number}", nn.Dropout(dropout))
        self.add_module("out", nn.Linear(widths[-1], outputs))
