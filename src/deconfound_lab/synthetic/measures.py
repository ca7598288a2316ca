"""What is measured of a trained network: accuracy against the ceiling, what is left of the confound, and two modes."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from deconfound.metrics import u_distance_correlation_sqr
from deconfound_lab.synthetic.learner import Learner
from deconfound_lab.synthetic.problems import Part, encoded

CHUNK = 2000
# Images of each group on which distance correlations are measured.
MEASURED = 2000
# Batches on which training mode and eval mode are compared.
COMPARED = 20


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


def measure(learner: Learner) -> dict[str, float]:
    """Measure the method as it is now, without labels."""
    problem, device = learner.problem, learner.device
    tied = problem.tests["tied"]
    logits, features = _outputs(learner, encoded(tied, problem.design, device, labels=False))
    free = encoded(problem.tests["independent"], problem.design, device, labels=False)
    free_logits, _ = _outputs(learner, free)
    confound = tied.confound.to(device)
    left, left_logit, correlations = [], [], []
    for group in (0, 1):
        rows = (tied.group == group).nonzero()[:, 0].to(device)
        some = rows[:MEASURED]
        left.append(float(u_distance_correlation_sqr(features[some], confound[some])))
        left_logit.append(float(u_distance_correlation_sqr(logits[some, None], confound[some])))
        pair = torch.stack([logits[rows], confound[rows, 0]]).double()
        correlations.append(float(torch.corrcoef(pair)[0, 1].nan_to_num()))
    return asdict(
        Measures(
            accuracy=_accuracy(logits, tied.group.to(device)),
            accuracy_independent=_accuracy(free_logits, free.target),
            dcor2=sum(left) / 2,
            dcor2_logit=sum(left_logit) / 2,
            correlation=sum(correlations) / 2,
        )
    )


def gap(learner: Learner) -> float:
    """How far outputs in training mode lie from those in eval mode, in standard deviations of the logit.

    The batches are of the size that was trained with, of training images; whatever a training forward changes is put
    back after each.
    """
    kept = learner.copied()
    train, batch = learner.problem.train, learner.cell.batch
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0)).to(learner.device)
    differences, outputs = [], []
    with torch.no_grad():
        for rows in order[: COMPARED * batch].split(batch):
            learner.method.eval()
            still = learner.method(train.x[rows], train.metadata[rows])
            learner.method.train()
            moving = learner.method(train.x[rows], train.metadata[rows])
            learner.load(kept)
            differences.append(moving - still)
            outputs.append(still)
    spread = float(torch.cat(outputs).double().std())
    return float(torch.cat(differences).double().square().mean().sqrt()) / max(spread, 1e-12)


def _accuracy(logits: Tensor, group: Tensor) -> float:
    return float(((logits > 0) == (group > 0.5)).double().mean())


@torch.no_grad()
def _outputs(learner: Learner, part: Part) -> tuple[Tensor, Tensor]:
    """Logits, and the first fully connected layer's output after normalisation."""
    kept: list[Tensor] = []
    first = learner.method.network.get_submodule("fc1")
    handle = first.register_forward_hook(lambda module, inputs, output: kept.append(output))
    learner.method.eval()
    try:
        rows = torch.arange(len(part), device=learner.device).split(CHUNK)
        logits = torch.cat([learner.method(part.x[some], part.metadata[some]) for some in rows])
    finally:
        handle.remove()
        learner.method.train()
    return logits, torch.cat(kept)
