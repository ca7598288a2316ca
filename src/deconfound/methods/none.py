"""`none`: the plain network, the baseline of every comparison."""

from __future__ import annotations

from typing import ClassVar, final

from torch import nn

from deconfound.methods.base import Method, Setting


@final
class NoMethod(Method):
    """The plain network: `logits = network(x)`."""

    name: ClassVar[str] = "none"
    summary: ClassVar[str] = "the network as it is"
    reads_confounds: ClassVar[bool] = False

    def __init__(self, network: nn.Module, setting: Setting | None = None) -> None:
        super().__init__()
        self.model = network
