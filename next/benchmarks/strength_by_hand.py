"""One training of `strength.py` as a person would write it: plain PyTorch, and no loop of ours.

From deconfound come the network, the layers (`dc.normalize`) and the weights (`dc.balance`). The
draw, the loss, the loop, the choice of the best epoch and the shift of the logits are written here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.utils.data import WeightedRandomSampler

import deconfound as dc
from deconfound.networks import ConvNet
from deconfound.training import read_task, split_folds

LABEL, CONFOUND, POSITIVE = "kind", "source", "animal"
# The product's own: batches of 64, AdamW.
BATCH_SIZE = 64
LEARNING_RATE, WEIGHT_DECAY = 1e-3, 1e-4
# How firmly `ranking_loss` holds photographs and drawings at one level.
OFFSET = 0.1

# From logits `(n, 1)`, row numbers, and weights with mean 1 (or None) to a scalar.
Loss = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Arm:
    """What a training does about the confound.

    Attributes:
        has_layers: Whether PMDN layers stand after the two linear layers of the head.
        is_balanced: Whether rows are drawn by overlap weights.
        is_ranking: Whether the loss compares rows of the same source only.
    """

    has_layers: bool = False
    is_balanced: bool = False
    is_ranking: bool = False


ARMS = {
    "none": Arm(),
    "pmdn": Arm(has_layers=True),
    "overlap": Arm(is_balanced=True),
    "overlap and pmdn": Arm(has_layers=True, is_balanced=True),
    "ranking": Arm(is_ranking=True),
}


def fit_by_hand(
    pixels: NDArray[np.uint8], table: pd.DataFrame, arm: Arm, epochs: int, seed: int
) -> NDArray[np.float32]:
    """Train on the rows whose `part` is "train", and return the logits of the others.

    Args:
        pixels: Shape `(n, 3, height, width)`.
        table: The same rows, with the columns kind, source and part.
        arm: What is done about the confound.
        epochs: Passes over the training rows.
        seed: The seed of the first weights, the folds and the order of rows.
    """
    torch.manual_seed(seed)
    # The folds of the product, so that both sides learn from the same rows.
    task = read_task(table, [LABEL], POSITIVE)
    ids = table["file"].tolist()
    options = {"kind": "column", "column": "part", "stratum": CONFOUND, "ids": ids, "seed": seed}
    fold = next(one for one in split_folds(table, task, **options) if one.name == "test")
    train, validation, tested = fold.train, fold.validation, fold.test
    weights = weigh(table, train, validation) if arm.is_balanced else None

    x = torch.from_numpy(pixels).float()
    x = (x - x[train].mean((0, 2, 3), keepdim=True)) / x[train].std((0, 2, 3), keepdim=True)
    design = dc.Design([CONFOUND], keep=[LABEL])
    design.fit(table.iloc[train], None if weights is None else weights.train)
    metadata = torch.from_numpy(design.encode(table)).float()
    target = torch.from_numpy((table[LABEL] == POSITIVE).to_numpy(np.float32))[:, None]
    loss = make_loss(table, train, target, arm)

    model = ConvNet(tuple(x.shape[1:]), 1)
    if arm.has_layers:
        model = dc.normalize(model, design, ["head.fc", "head.out"], x[:2], layer="pmdn")
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)

    def run(rows: Tensor) -> Tensor:
        return model(x[rows], metadata=metadata[rows]) if arm.has_layers else model(x[rows])

    fitting, held_out = torch.from_numpy(train), torch.from_numpy(validation)
    held_out_weight = None if weights is None else weights.validation
    held_out_batch = [(x[held_out], metadata[held_out], held_out_weight)]
    best_loss, best_state = float("inf"), {}
    for _ in range(epochs):
        model.train()
        for batch in draw_rows(fitting, weights).split(BATCH_SIZE):
            optimizer.zero_grad()
            loss(run(batch), batch, None).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad(), model.refitted(held_out_batch) if arm.has_layers else nullcontext():
            validation_loss = loss(run(held_out), held_out, held_out_weight)
        if validation_loss < best_loss:
            best_loss, best_state = validation_loss, copy.deepcopy(model.state_dict())

    model.load_state_dict(best_state)
    model.eval()
    if arm.has_layers:
        model.refit(held_out_batch)
    with torch.no_grad():
        logits = run(torch.from_numpy(tested))[:, 0].numpy()
    return logits if weights is None else logits + weights.shift


@dataclass(frozen=True)
class Weights:
    """Overlap weights.

    Attributes:
        train: Of the training rows, by which they are drawn.
        validation: Of the validation rows, with mean 1, by which their losses are averaged.
        shift: Log-odds of an animal among the training rows minus those among the drawn rows.
    """

    train: NDArray[np.float64]
    validation: Tensor
    shift: float


def weigh(table: pd.DataFrame, train: NDArray[np.intp], validation: NDArray[np.intp]) -> Weights:
    """Return weights under which kind and source are independent."""
    drawn = dc.balance(table.iloc[train], [LABEL], [CONFOUND]).row_weight
    both = np.concatenate([train, validation])
    of_validation = dc.balance(table.iloc[both], [LABEL], [CONFOUND]).row_weight[len(train) :]
    is_animal = (table[LABEL] == POSITIVE).to_numpy()[train]
    shares = is_animal.mean(), np.average(is_animal, weights=drawn)
    log_odds = [np.log(share / (1 - share)) for share in shares]
    return Weights(
        drawn,
        torch.from_numpy(of_validation / of_validation.mean()).float(),
        float(log_odds[0] - log_odds[1]),
    )


def draw_rows(rows: Tensor, weights: Weights | None) -> Tensor:
    """Return the rows of one epoch: each once in a new order, or drawn with replacement."""
    if weights is None:
        return rows[torch.randperm(len(rows))]
    return rows[list(WeightedRandomSampler(weights.train.tolist(), len(rows)))]


def make_loss(table: pd.DataFrame, train: NDArray[np.intp], target: Tensor, arm: Arm) -> Loss:
    """Return the loss of some rows from their logits."""
    is_photograph = torch.from_numpy((table[CONFOUND] == "photograph").to_numpy(copy=True))
    prevalence = float(target[train].mean())

    def cross_entropy(logits: Tensor, rows: Tensor, weight: Tensor | None) -> Tensor:
        return functional.binary_cross_entropy_with_logits(logits[:, 0], target[rows, 0], weight)

    def ranking(logits: Tensor, rows: Tensor, weight: Tensor | None) -> Tensor:
        return ranking_loss(logits[:, 0], target[rows, 0] > 0, is_photograph[rows], prevalence)

    return ranking if arm.is_ranking else cross_entropy


def ranking_loss(
    score: Tensor, is_animal: Tensor, is_photograph: Tensor, prevalence: float
) -> Tensor:
    """Return the mean loss of pairs of an animal and another thing from the same source.

    Two small terms hold both sources at one level, and the score 0 where an animal is probable.
    """
    gaps = score[~is_animal][None] - score[is_animal][:, None]
    is_pair = is_photograph[is_animal][:, None] == is_photograph[~is_animal][None]
    # A small batch may have no pair at all.
    pairs = functional.softplus(gaps[is_pair]).sum() / is_pair.sum().clamp(min=1)

    between = score.new_zeros(())
    for kind in (is_animal, ~is_animal):
        for cell in (kind & is_photograph, kind & ~is_photograph):
            if cell.any():
                gap = score[cell].mean() - score[kind].mean()
                between = between + cell.sum() * gap.square() / len(score)

    # The gradient reaches the mean score only.
    level = (score - score.mean()).detach() + score.mean()
    of_animals = functional.softplus(-level[is_animal]).mean()
    of_others = functional.softplus(level[~is_animal]).mean()
    return pairs + OFFSET * between + prevalence * of_animals + (1 - prevalence) * of_others
