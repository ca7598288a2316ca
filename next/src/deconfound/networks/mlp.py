"""The network for tables: fully connected layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

from torch import nn

from deconfound.networks.arguments import Shape, check_arguments


class MLP(nn.Sequential):
    """Fully connected layers `fc1`, `fc2`, …, `out`, with ReLU and dropout between them.

    It maps rows of a table, `(n, d)`, to logits `(n, outputs)`.

    Args:
        shape: Shape of one sample, `(d,)`.
        outputs: Number of logits.
        hidden: Widths of the hidden layers. With an empty list the network is a linear model.
        dropout: Probability with which a hidden feature is set to 0 in training.

    Example:
        >>> import torch
        >>> from deconfound.networks import MLP
        >>> network = MLP((10,), 1, hidden=(16,))
        >>> [name for name, _ in network.named_children()]
        ['fc1', 'relu1', 'dropout1', 'out']
        >>> network(torch.randn(4, 10)).shape
        torch.Size([4, 1])
    """

    default_at: ClassVar[tuple[type[nn.Module], ...]] = (nn.Linear,)

    def __init__(
        self, shape: Shape, outputs: int, *, hidden: Sequence[int] = (64, 32), dropout: float = 0.0
    ) -> None:
        widths = {"hidden": hidden}
        check_arguments("An MLP", shape, [1], {"outputs": outputs}, widths, dropout)
        super().__init__()
        sizes = [*shape, *hidden]
        for number, (inputs, width) in enumerate(pairwise(sizes), start=1):
            self.add_module(f"fc{number}", nn.Linear(inputs, width))
            self.add_module(f"relu{number}", nn.ReLU())
            self.add_module(f"dropout{number}", nn.Dropout(dropout))
        self.add_module("out", nn.Linear(sizes[-1], outputs))
