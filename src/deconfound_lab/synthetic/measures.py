"""What is measured of a trained network: accuracy against the ceiling, what is left of the confound, and two modes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from deconfound.design import Design
from deconfound.methods import Method
from deconfound.metrics import u_distance_correlation_sqr
from deconfound.training import InMemoryTrainer, Samples, predict_in_memory
from deconfound_lab.synthetic.images import SyntheticImages

EVAL_BATCH = 5000
# Images of each group on which distance correlations are measured.
MEASURED = 2000
# Batches on which training mode and eval mode are compared.
COMPARED = 20
FEATURES = "fc1"
"""The first fully connected layer, whose output after normalisation is measured."""


@dataclass(frozen=True)
class Measures:
    """A network on images that it has not seen.

    Attributes:
        accuracy: Where confound and group go together, as in training; above the ceiling, the confound is used.
        accuracy_independent: Where the confound says nothing about the group.
        dcor2: Bias-corrected squared distance correlation of the first fully connected layer's output with the
            confounds, within each group and averaged.
        dcor2_logit: The same of the logit.
        correlation: Of the logit with the first confound, within each group and averaged.
    """

    accuracy: float
    accuracy_independent: float
    dcor2: float
    dcor2_logit: float
    correlation: float


def measure(made: Method, design: Design, tests: Mapping[str, SyntheticImages]) -> dict[str, float]:
    """Measure a method as it is now on the test images "tied" and "independent", without their labels."""
    tied, free = tests["tied"], tests["independent"]
    logits, features = outputs(made, design, tied)
    free_logits, _ = outputs(made, design, free)
    left = dict.fromkeys(("dcor2", "dcor2_logit", "correlation"), 0.0)
    for group in (0, 1):
        rows = (tied.group == group).nonzero()[:, 0]
        some = rows[:MEASURED]
        pair = torch.stack([logits[rows], tied.confound[rows, 0]]).double()
        left["dcor2"] += float(u_distance_correlation_sqr(features[some], tied.confound[some])) / 2
        left["dcor2_logit"] += float(u_distance_correlation_sqr(logits[some, None], tied.confound[some])) / 2
        left["correlation"] += float(torch.corrcoef(pair)[0, 1].nan_to_num()) / 2
    return asdict(Measures(accuracy(logits, tied.group), accuracy(free_logits, free.group), **left))


def outputs(made: Method, design: Design, data: SyntheticImages) -> tuple[Tensor, Tensor]:
    """Logits and the first fully connected layer's output; only the confounds are given, as for a user's new people."""
    device = data.images.device
    metadata = torch.from_numpy(design.encode(data.columns)).to(device)
    found = predict_in_memory(made, Samples(data.images, metadata), EVAL_BATCH, features=FEATURES)
    assert found.features is not None
    return found.logits.to(device), found.features.to(device)


def accuracy(logits: Tensor, group: Tensor) -> float:
    """The share of images on the right side of zero."""
    return float(((logits > 0) == (group > 0.5)).double().mean())


def gap(trainer: InMemoryTrainer, train: Samples, batch: int) -> float:
    """How far outputs in training mode lie from those in eval mode, in standard deviations of the logit.

    The batches are of the size that was trained with, of training images; whatever a training forward changes is put
    back after each.
    """
    state, made = trainer.state(), trainer.method
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0)).to(train.x.device)
    differences, still = [], []
    with torch.no_grad():
        for rows in order[: COMPARED * batch].split(batch):
            some = train.batch(rows)
            made.eval()
            still.append(made(some.x, some.metadata))
            made.train()
            differences.append(made(some.x, some.metadata) - still[-1])
            trainer.load(state)
    spread = float(torch.cat(still).double().std())
    return float(torch.cat(differences).double().square().mean().sqrt()) / max(spread, 1e-12)
