"""The main job in small: the plain CNN and the same CNN with PMDN on synthetic images, and the audit of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import deconfound as dc
from deconfound.metrics import u_distance_correlation_sqr
from deconfound.networks import SyntheticCNN
from deconfound_lab.synthetic.images import CEILING, CEILING_WITH_CONFOUND, SyntheticImages, synthetic_images

Progress = Callable[[], None]
# Added to a seed: other images for validation and for each test.
VALIDATION, TIED, INDEPENDENT = 1000, 2000, 3000
# Three standard errors of an accuracy on 4,000 images.
MARGIN = 0.018


@dataclass(frozen=True)
class DemoResult:
    """What one network does on images that it has not seen.

    Attributes:
        logits: Its answers where confound and group go together.
        accuracy: Where confound and group go together, as in training.
        accuracy_independent: Where the confound is drawn without regard to the group.
        dcor2: Bias-corrected squared distance correlation of the first fully connected layer's output with the
            confound, within each group and averaged.
    """

    logits: Tensor
    accuracy: float
    accuracy_independent: float
    dcor2: float


def train(
    layer: str | None, steps: int = 1000, batch: int = 20, lr: float = 1e-4, seed: int = 0, tick: Progress | None = None
) -> nn.Module:
    """Train the CNN of the paper, with `layer` before each ReLU or, for None, plain."""
    torch.manual_seed(seed)
    data = synthetic_images(seed=seed)
    design = dc.Design(confounds=["confound"], keep=["group"]).fit(data.table)
    metadata = torch.from_numpy(design.encode(data.table))
    network: Any = SyntheticCNN()
    if layer is not None:
        network = dc.normalize(network, design, at=["conv1", "conv2", "fc1"], layer=layer, example=data.images[:2])
    optimizer = torch.optim.Adam(network.parameters(), lr=lr)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        if len(rows) < batch:
            rows = torch.randperm(len(data.group), generator=generator)
        now, rows = rows[:batch], rows[batch:]
        keywords = {} if layer is None else {"metadata": metadata[now]}
        logits = network(data.images[now], **keywords)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, data.group[now].float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if tick is not None:
            tick()
    if layer is not None:
        held_out = synthetic_images(seed=seed + VALIDATION)
        network.refit([(held_out.images, design.encode(held_out.table))])
    trained: nn.Module = network.eval()
    return trained


def evaluate(network: nn.Module, per_group: int = 2000, seed: int = 0) -> DemoResult:
    """Measure on new images; only the confound is given to the network, never the group."""
    tied = synthetic_images(per_group, seed=seed + TIED)
    free = synthetic_images(per_group, seed=seed + INDEPENDENT, confound="independent")
    logits, features = _outputs(network, tied)
    free_logits, _ = _outputs(network, free)
    within = [
        float(u_distance_correlation_sqr(features[tied.group == group], tied.confound[tied.group == group]))
        for group in (0, 1)
    ]
    return DemoResult(
        logits=logits,
        accuracy=_accuracy(logits, tied.group),
        accuracy_independent=_accuracy(free_logits, free.group),
        dcor2=sum(within) / 2,
    )


def sentence(plain: DemoResult, ours: DemoResult) -> str:
    """What the two results say; no more than they do."""
    said = (
        f"The plain network has {plain.accuracy:.1%} where the confound goes with the group and "
        f"{plain.accuracy_independent:.1%} where it says nothing; with PMDN it is {ours.accuracy:.1%} and "
        f"{ours.accuracy_independent:.1%}."
    )
    if plain.accuracy > CEILING + MARGIN and abs(ours.accuracy - ours.accuracy_independent) < 2 * MARGIN:
        return (
            f"{said} What the plain network has above {CEILING:.1%} is the confound's doing (with it, "
            f"{CEILING_WITH_CONFOUND:.1%} is possible), and PMDN does without."
        )
    return f"{said} These networks are too little trained, or too unlucky, to show more: try more --steps."


def audit(results: Mapping[str, DemoResult], seed: int = 0, progress: Any = None) -> dc.Audit:
    """The audit of the networks on the images where confound and group go together."""
    per_group = len(next(iter(results.values())).logits) // 2
    table = synthetic_images(per_group, seed=seed + TIED).table
    outputs = {name: result.logits.numpy() for name, result in results.items()}
    return dc.audit(
        outputs,
        table,
        confounds=["confound"],
        labels=["group"],
        permutations=99,
        bootstraps=199,
        embedding=False,
        progress=progress,
    )


def _accuracy(logits: Tensor, group: Tensor) -> float:
    return ((logits > 0).long() == group).double().mean().item()


@torch.no_grad()
def _outputs(network: Any, data: SyntheticImages) -> tuple[Tensor, Tensor]:
    """Logits, and the first fully connected layer's output after normalisation."""
    normalized = isinstance(network, dc.NormalizedModel)
    inner = network.network if normalized else network
    kept: list[Tensor] = []
    handle = inner.fc1.register_forward_hook(lambda module, inputs, output: kept.append(output))
    logits = []
    try:
        for rows in torch.arange(len(data.group)).split(500):
            keywords = {}
            if normalized:
                confound = {"confound": data.confound[rows, 0].numpy()}
                keywords["metadata"] = network.design.encode(confound)
            logits.append(network(data.images[rows], **keywords))
    finally:
        handle.remove()
    return torch.cat(logits), torch.cat(kept)
