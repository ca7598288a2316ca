"""A loss of pairs from one stratum, which differences between strata do not change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot, softplus

from deconfound.errors import OptionError, ShapeError
from deconfound.methods import Batch

# Pairs whose losses are computed in one piece. It bounds the memory of a validation without
# gradients, where all rows of a part come as one batch.
PAIRS_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class Ranking:
    """Rank cases above controls of the same stratum, such as the same site.

    The loss of one label is `pairs + offset · between + level`; several labels are averaged.

    `pairs` is the mean of log(1 + exp(s_control − s_case)) over all pairs of a case and a control
    from one stratum of the batch. A constant that is added to all scores of a stratum does not
    change it, so a network gains nothing from knowing the stratum.

    `between` is the mean over rows of (mean score of the row's stratum and class − mean score of
    its class)². It holds the strata at one level, which pairs leave open.

    `level` is π · (mean cross-entropy of cases) + (1 − π) · (that of controls), where π is the
    prevalence. Its gradient reaches the mean score only, so that it moves the score 0 to the point
    where cases become probable, and nothing else. π is fixed because the share of cases in a batch
    depends on the strata in it.

    Row weights count as repetitions: a weight of 2 is the row twice, and 0 leaves it out. A row
    whose stratum is -1 takes part in `level` only, and `level` is 0 in a batch without cases or
    without controls. A batch without a pair trains by the other two terms.

    Args:
        offset: The weight of `between`. With 0, strata may drift apart, and scores of people from
            different strata cannot be compared.
        prevalence: π, of each label or class if there are several.

    Example:
        >>> rows = Batch(
        ...     torch.empty(0), torch.empty(0), torch.tensor([[1.0], [0.0], [1.0], [0.0]]),
        ...     stratum=torch.tensor([0, 0, 1, 1]),
        ... )
        >>> right, wrong = torch.tensor([[1.0, -1, 1, -1], [-1, 1, 1, -1]])
        >>> bool(Ranking()(right, rows) < Ranking()(wrong, rows))
        True
    """

    offset: float = 0.1
    prevalence: float | Sequence[float] = 0.5

    def __post_init__(self) -> None:
        shares = torch.as_tensor(self.prevalence)
        if not (self.offset >= 0 and bool(((shares > 0) & (shares < 1)).all())):
            raise OptionError(
                "offset must be 0 or more, and prevalence shares between 0 and 1; "
                f"got {self}. Write Ranking(offset=0.1, prevalence=0.5)."
            )

    def __call__(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the loss of a batch.

        Args:
            logits: Shape `(n, k)`, or `(n,)` for a single label.
            batch: Its `target` holds 0 and 1, shape `(n, k)`, or codes of classes `(n,)`, int64. A
                class is then compared with all others, one class after the other.
        """
        if batch.stratum is None:
            raise OptionError(
                "The loss 'ranking' compares rows of one stratum; got rows without strata. "
                "Name a categorical confound as the stratum, such as stratum='site'."
            )
        # Sums over many pairs need more digits than a half has.
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        target = batch.target
        if is_of_classes(target):
            target = one_hot(target, logits.shape[1])
        scores = match_targets(logits, target)
        shares = torch.as_tensor(self.prevalence, dtype=torch.float64).expand(scores.shape[1])
        weight = scores.new_ones(len(scores)) if batch.weight is None else batch.weight.to(scores)
        terms = []
        for label, share in enumerate(shares.tolist()):
            rows = _Rows(scores[:, label], target[:, label] > 0, weight, batch.stratum)
            inside = rows.take(batch.stratum >= 0)
            terms.append(inside.pairs() + self.offset * inside.between() + rows.level(share))
        return torch.stack(terms).mean()


def is_of_classes(target: Tensor) -> bool:
    """Return True for codes of classes `(n,)`, False for 0 and 1 or numbers `(n, k)`."""
    return target.ndim == 1 and target.dtype == torch.int64


def match_targets(logits: Tensor, target: Tensor) -> Tensor:
    """Return logits in the shape of the targets; `(n,)` and `(n, 1)` are the same."""
    if len(logits) != len(target) or logits.numel() != target.numel():
        # Broadcast, (n, 1) and (n,) would silently compare every row with every other one.
        raise ShapeError(
            "The network must give one output per label; got outputs of shape "
            f"{tuple(logits.shape)} and targets of shape {tuple(target.shape)}. "
            "Change the size of its last layer."
        )
    return logits.reshape(target.shape)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows with their scores of one label, all of shape `(n,)`."""

    score: Tensor
    is_case: Tensor
    weight: Tensor
    stratum: Tensor

    def take(self, rows: Tensor) -> _Rows:
        return _Rows(self.score[rows], self.is_case[rows], self.weight[rows], self.stratum[rows])

    def pairs(self) -> Tensor:
        """Return the mean loss of pairs within strata, 0 if there are none."""
        cases, controls = self.take(self.is_case), self.take(~self.is_case)
        total, total_weight = self.score.sum() * 0, self.score.new_zeros(())
        # Cases times controls of one label are at most n² / 4 numbers, and far fewer for rare ones.
        size = max(1, PAIRS_AT_ONCE // max(1, len(controls.score)))
        for block in torch.arange(len(cases.score), device=self.score.device).split(size):
            case = cases.take(block)
            is_pair = case.stratum[:, None] == controls.stratum[None]
            weight = is_pair * case.weight[:, None] * controls.weight[None]
            losses = softplus(controls.score[None] - case.score[:, None])
            total = total + (weight * losses).sum()
            total_weight = total_weight + weight.sum()
        return _divide(total, total_weight)

    def between(self) -> Tensor:
        """Return the mean squared distance of strata from the mean of their class."""
        cell = torch.unique(2 * self.stratum + self.is_case, return_inverse=True)[1]
        distance = self._means(cell) - self._means(self.is_case.long())
        return _divide((self.weight * distance.square()).sum(), self.weight.sum())

    def level(self, prevalence: float) -> Tensor:
        """Return cross-entropy at this prevalence, whose gradient reaches the mean score only."""
        mean = _divide((self.weight * self.score).sum(), self.weight.sum())
        score, target = (self.score - mean).detach() + mean, self.is_case.to(self.score)
        losses = binary_cross_entropy_with_logits(score, target, reduction="none")
        case_weight, control_weight = self.weight * target, self.weight * (1 - target)
        has_both = (case_weight.sum() > 0) & (control_weight.sum() > 0)
        of_cases = _divide((case_weight * losses).sum(), case_weight.sum())
        of_controls = _divide((control_weight * losses).sum(), control_weight.sum())
        return has_both * (prevalence * of_cases + (1 - prevalence) * of_controls)

    def _means(self, group: Tensor) -> Tensor:
        """Return for each row the weighted mean score of its group."""
        count = int(group.max()) + 1 if len(group) else 0
        zeros = self.score.new_zeros(count)
        total = zeros.index_add(0, group, self.weight * self.score)
        return _divide(total, zeros.index_add(0, group, self.weight))[group]


def _divide(total: Tensor, weight: Tensor) -> Tensor:
    """Return total / weight, and 0 where no row has a weight."""
    return total / torch.where(weight > 0, weight, 1)
