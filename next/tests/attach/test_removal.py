"""In networks of many kinds, confounds leave the features and the label's effect stays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import deconfound as dc
from deconfound.attach import collect
from tests import oracles
from tests.helpers import make_people

CONFOUNDS = ("age", "dose", "site")


class Recurrent(nn.Module):
    """An LSTM whose outputs at all positions are averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 12, batch_first=True)
        self.head = nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0].mean(1))


class Transformer(nn.Module):
    """One encoder layer whose tokens are averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 12)
        self.block = nn.TransformerEncoderLayer(12, 2, 24, dropout=0.0, batch_first=True)
        self.head = nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.embed(x)).mean(1))


def make_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))


def make_cnn() -> nn.Module:
    flat = [nn.Flatten(), nn.Linear(48, 12), nn.ReLU(), nn.Linear(12, 1)]
    return nn.Sequential(nn.Conv2d(3, 12, 1), nn.ReLU(), *flat)


def make_monai() -> nn.Module:
    blocks = pytest.importorskip("monai.networks.blocks")
    convolution = blocks.Convolution(2, 3, 8, kernel_size=1, norm=None)
    return nn.Sequential(convolution, nn.Flatten(), nn.Linear(32, 1))


# The network, the shape of one input, the modules with layers, and the one whose features count.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], list[str], str]] = {
    "mlp": (make_mlp, (12,), ["0", "2"], "0"),
    "cnn": (make_cnn, (3, 2, 2), ["0", "3", "5"], "3"),
    "lstm": (Recurrent, (4, 3), ["lstm", "head"], "lstm"),
    "transformer": (Transformer, (4, 3), ["embed", "block", "head"], "block"),
    "monai": (make_monai, (3, 2, 2), ["0", "2"], "0"),
}


def features_of(model: nn.Module, at: str, x: Tensor, metadata: Tensor | None) -> np.ndarray:
    """Return features `(n, d)`; of images and sequences the mean of each channel."""
    with torch.no_grad(), collect(model, at) as collector:
        model(x, metadata=metadata) if metadata is not None else model(x)
    values = collector.features()
    if values.ndim == 4:
        values = values.mean((2, 3))
    return (values.mean(1) if values.ndim == 3 else values).double().numpy()


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_confounds_leave_the_features_of_new_people_and_the_label_stays(name):
    """15: trained, refitted on held-out people, measured on new ones by least squares.

    The control is the same network without layers. Kills layers that act in training alone.
    """
    make, shape, at, module = NETWORKS[name]
    x, table = make_people(1800, association=0.6, d=12, noise=2.0)
    x = x.float().reshape(-1, *shape)
    target = torch.tensor(table["label"] == "case").float()
    design = dc.Design(CONFOUNDS, keep=["label"]).fit(table[:1000])
    metadata = torch.from_numpy(design.encode(table))
    shares, scores = {}, {}
    for kind in ("plain", "pmdn"):
        torch.manual_seed(0)
        network = make()
        model = network
        if kind == "pmdn":
            model = dc.normalize(network, design, at, x[:2])
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for rows in torch.arange(1000).split(50) * 15:
            keywords = {"metadata": metadata[rows]} if kind == "pmdn" else {}
            logits = model(x[rows], **keywords).squeeze(1)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, target[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if kind == "pmdn":
            model.refit([(x[1000:1400], metadata[1000:1400])], prior=0)
        model.eval()
        new = metadata[1400:] if kind == "pmdn" else None
        left = features_of(model, module, x[1400:], new)
        shares[kind] = partial_share(left, table[1400:], CONFOUNDS, ("label",))
        scores[kind] = partial_share(left, table[1400:], ("label",), CONFOUNDS)
    # 400 new people and a fit to 400 others: each of 3 directions explains about 2 / 400.
    assert shares["plain"] > 0.12
    assert shares["pmdn"] < 0.05
    assert scores["pmdn"] > 0.5 * scores["plain"]


def partial_share(features: np.ndarray, table: object, of: tuple[str, ...], given: tuple[str, ...]):
    """Return the share of variance left by the columns `given` that the columns `of` explain."""
    ones = np.ones((len(features), 1))
    without = np.column_stack([oracles.raw_columns(table, given), ones])
    together = np.column_stack([oracles.raw_columns(table, of), without])
    left = [
        np.square(features - columns @ np.linalg.lstsq(columns, features, rcond=None)[0]).sum()
        for columns in (without, together)
    ]
    return 1 - left[1] / left[0]
