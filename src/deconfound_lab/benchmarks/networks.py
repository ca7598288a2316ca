"""Networks to time whole training steps of, and what is put into them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from deconfound.design import Design
from deconfound.networks import ResNet3D, SyntheticCNN
from deconfound.surgery import collect, normalize

METHODS = ("none", "batchnorm", "layernorm", "mdn", "rmdn", "pmdn", "pmdn-alternating")


@dataclass(frozen=True)
class Case:
    """One network at one batch size.

    Attributes:
        name: As the tables show it.
        build: Makes the network.
        at: The modules that layers follow.
        shape: Of one input.
        batch: Samples.
        precise: Float32 throughout, rather than autocast to bfloat16 on a GPU.
    """

    name: str
    build: Callable[[], nn.Module]
    at: tuple[str, ...]
    shape: tuple[int, ...]
    batch: int
    precise: bool = True


class TableMLP(nn.Module):
    """200 columns of a table, hidden layers of 64 and 32, one logit."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(200, 64), nn.Linear(64, 32), nn.Linear(32, 1)

    def forward(self, table: Tensor) -> Tensor:
        """Logits `(n, 1)` of `(n, 200)`."""
        logits: Tensor = self.fc3(self.fc2(self.fc1(table).relu()).relu())
        return logits


class Encoder(nn.Module):
    """The encoder of a vision transformer: blocks over tokens, their mean, one logit."""

    def __init__(self, width: int = 768, depth: int = 12, heads: int = 12) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits `(n,)` of tokens `(n, tokens, width)`."""
        for block in self.blocks:
            tokens = block(tokens)
        logits: Tensor = self.head(tokens.mean(1)).squeeze(1)
        return logits


def cases(quick: bool = False, device: str = "cuda") -> list[Case]:
    """The networks: small ones when it must be quick, and no large ones on a CPU."""
    cnn = ("conv1", "conv2", "fc1")
    head = ("relu1", "relu2", "fc3")
    if quick:
        return [
            Case("synthetic CNN", SyntheticCNN, cnn, (1, 32, 32), 8),
            Case("3D ResNet", lambda: ResNet3D(size=16), head, (1, 16, 16, 16), 4),
            Case("encoder", lambda: Encoder(16, 2, 2), ("blocks.0", "blocks.1"), (5, 16), 4, False),
        ]
    found = [Case("synthetic CNN", SyntheticCNN, cnn, (1, 32, 32), 200)]
    if device == "cuda":
        blocks = tuple(f"blocks.{index}" for index in range(4))
        every = tuple(f"blocks.{index}" for index in range(12))
        found += [
            Case("synthetic CNN", SyntheticCNN, cnn, (1, 32, 32), 2000),
            Case("3D ResNet", ResNet3D, head, (1, 64, 64, 64), 80),
            Case("3D ResNet, each block", ResNet3D, (*blocks, *head), (1, 64, 64, 64), 80),
            Case("ViT-B encoder, each block", Encoder, every, (197, 768), 64, False),
        ]
    else:
        found += [Case("3D ResNet", lambda: ResNet3D(size=32), head, (1, 32, 32, 32), 16)]
    return found


def with_method(case: Case, method: str, design: Design, device: str) -> nn.Module:
    """The network with one method's layers after its modules; "copy" puts plain copies there."""
    torch.manual_seed(0)
    network = case.build().to(device)
    if method == "none":
        return network
    if method == "copy":
        for path in case.at:
            network.get_submodule(path).register_forward_hook(lambda module, inputs, output: output.clone())
        return network
    example = torch.zeros(2, *case.shape, device=device)
    if method in ("batchnorm", "layernorm"):
        return _with_norms(network, case.at, example, method)
    model: nn.Module = normalize(network, design, at=list(case.at), layer=method, example=example).to(device)
    return model.train()


def features_bytes(case: Case, device: str) -> int:
    """How much memory the features take that the layers normalise."""
    network = case.build().to(device)
    half = device == "cuda" and not case.precise
    with torch.autocast(device, torch.bfloat16, enabled=half):
        found = _outputs(network, case.at, torch.zeros(1, *case.shape, device=device))
    return case.batch * sum(output.numel() * output.element_size() for output in found.values())


def _outputs(network: nn.Module, at: tuple[str, ...], example: Tensor) -> dict[str, Tensor]:
    """What some modules give for an example."""
    with collect(network, list(at)) as collected, torch.no_grad():
        network(example)
    return {path: collected.features(path) for path in at}


def _with_norms(network: nn.Module, at: tuple[str, ...], example: Tensor, method: str) -> nn.Module:
    """Usual normalisation in the same places."""
    for path, output in _outputs(network, at, example).items():
        norm = _After(_norm(output.shape, method).to(example.device))
        network.set_submodule(path, nn.Sequential(network.get_submodule(path), norm))
    return network


class _After(nn.Module):
    """As a module of its own: torch's compiler would take a network with a hook for the one without."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, output: Tensor) -> Tensor:
        """Normalise; batch normalisation wants channels second."""
        tokens = output.ndim == 3 and isinstance(self.norm, nn.BatchNorm1d)
        result: Tensor = self.norm(output.transpose(1, 2)).transpose(1, 2) if tokens else self.norm(output)
        return result


def _norm(shape: torch.Size, method: str) -> nn.Module:
    if method == "layernorm":
        return nn.LayerNorm(shape[1:] if len(shape) != 3 else shape[-1:])
    if len(shape) == 3:
        return nn.BatchNorm1d(shape[-1])
    return {2: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(shape)](shape[1])
