"""The loss `within`: cases are ranked above controls of the same stratum; the level of a stratum earns nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot, softplus

from deconfound.methods import StratumCriterion


class Within(StratumCriterion):
    """`mean over pairs of log(1 + exp(s_control − s_case)) + offset · between + level`, of pairs within one stratum.

    A pair is a case and a control of one stratum (a site) in one batch. `between` is the mean over rows of
    `(mean of s in the row's stratum and label − mean of s in its label)²`: it pins the strata to each other, which
    pairs within them leave open. `level` is cross-entropy whose gradient reaches the mean of the scores alone: it puts
    0 where cases and controls part, which differences leave open. Cases count in it by their prevalence, not by how
    many of them a batch has, or batches of a site with many cases would teach the site. No metadata are read at
    inference. `paired_batches` puts a pair of every label into each batch as far as there are any. A batch without a
    pair teaches by the other two terms alone: the history has the pairs of a batch, and the share of batches that had
    none of some label.

    Args:
        offset: The weight of `between`.
        prevalence: The share of cases, of each label, at which scores above 0 are probable cases.

    Example:
        >>> import torch
        >>> scores, case = torch.tensor([2.0, 0.0, 9.0, 7.0]), torch.tensor([1.0, 0.0, 1.0, 0.0])
        >>> site = torch.tensor([0, 0, 1, 1])
        >>> higher = scores + torch.tensor([0.0, 0.0, 5.0, 5.0])  # the second site moves as a whole
        >>> pairs = Within(offset=0.0)
        >>> one, two = (pairs.ranking(each[:, None], case[:, None], site) for each in (scores, higher))
        >>> torch.equal(one, two)
        True
    """

    def __init__(self, offset: float = 0.1, prevalence: float | Sequence[float] = 0.5) -> None:
        self.offset, self.prevalence = offset, prevalence
        self.pairs = self.without_pair = torch.zeros(())

    def __call__(self, logits: Tensor, target: Tensor, stratum: Tensor) -> Tensor:
        """The loss of each row, `(n, labels)`; classes, by codes of type int64, count one against the others."""
        cases = one_hot(target, logits.shape[1]) if target.dtype == torch.int64 else target.reshape(len(target), -1)
        scores, cases = logits.reshape(len(logits), -1), cases.to(logits.dtype)
        between = self.offset * between_strata(scores, cases, stratum)
        return self.ranking(scores, cases, stratum) + between + self.level(scores, cases)

    def level(self, scores: Tensor, cases: Tensor) -> Tensor:
        """Cross-entropy at a fixed prevalence, `(n, labels)`, whose gradient reaches the mean of the scores alone."""
        mean, share = scores.mean(0), cases.mean(0).clamp(min=0.5 / len(cases), max=1 - 0.5 / len(cases))
        wanted = torch.as_tensor(self.prevalence, dtype=scores.dtype, device=scores.device)
        weight = torch.where(cases > 0, wanted / share, (1 - wanted) / (1 - share))
        losses = binary_cross_entropy_with_logits((scores - mean).detach() + mean, cases, reduction="none")
        return weight * losses

    def noted(self) -> dict[str, Tensor]:
        """How many pairs the last batch had, and whether it had none of some label."""
        return {"pairs": self.pairs, "without_pair": self.without_pair}

    def ranking(self, scores: Tensor, cases: Tensor, stratum: Tensor) -> Tensor:
        """Pairwise logistic loss, half of each pair's to each of its rows; its mean over rows is that over pairs."""
        same = (stratum[:, None] == stratum[None]).unsqueeze(2)
        pair = same * cases[:, None] * (1 - cases)[None]  # (case, control, label)
        losses = pair * softplus(scores[None] - scores[:, None])
        number = pair.sum((0, 1))
        self.pairs, self.without_pair = number.sum().detach(), (number == 0).any().to(scores.dtype)
        return 0.5 * (losses.sum(1) + losses.sum(0)) * len(scores) / number.clamp(min=1)


def paired_batches(
    batches: Sequence[NDArray[np.intp]], cases: NDArray[np.bool_], stratum: NDArray[np.intp]
) -> list[NDArray[np.intp]]:
    """The same rows in batches of the same sizes, with a case and a control of one stratum in each, for every label.

    Pairs are matched within strata in the order of the rows, which is random, and dealt to the batches, the rarest
    label first; all other rows stay in the order that they had. Where there are fewer pairs than batches, or a batch
    has no room for two rows of each label, batches are left without. A row that is drawn several times may come several
    times in `batches`; `cases (rows, labels)` and `stratum (rows,)` are those of every row.

    Example:
        >>> case, site = np.array([[1], [1], [0], [0]], dtype=bool), np.array([0, 1, 1, 0])
        >>> [sorted(batch.tolist()) for batch in paired_batches([np.array([0, 1]), np.array([2, 3])], case, site)]
        [[0, 3], [1, 2]]
    """
    order = np.concatenate(batches)
    room = [len(batch) for batch in batches]
    dealt: list[list[int]] = [[] for _ in batches]  # positions in `order`
    free = np.ones(len(order), dtype=bool)
    for label in np.argsort(np.minimum(cases.sum(0), (~cases).sum(0)), kind="stable"):
        case = cases[order, label]
        pairs: list[tuple[int, int]] = []
        for level in np.unique(stratum[order]):
            here = free & (stratum[order] == level)
            pairs += zip(np.flatnonzero(here & case).tolist(), np.flatnonzero(here & ~case).tolist(), strict=False)
        waiting = iter(sorted(pairs))
        for own, left in zip(dealt, room, strict=True):
            if left - len(own) >= 2 and (pair := next(waiting, None)) is not None:
                own += pair
                free[list(pair)] = False
    rest = iter(np.flatnonzero(free).tolist())
    return [order[[*own, *(next(rest) for _ in range(left - len(own)))]] for own, left in zip(dealt, room, strict=True)]


def cases_of(target: Tensor) -> NDArray[np.bool_]:
    """Which rows are cases of each label, `(n, labels)`; classes count one against the others."""
    member = one_hot(target) if target.dtype == torch.int64 else target.reshape(len(target), -1)
    found: NDArray[np.bool_] = member.cpu().numpy() > 0
    return found


def between_strata(scores: Tensor, cases: Tensor, stratum: Tensor) -> Tensor:
    """`(n, labels)`: how far the mean of a row's stratum and label lies from the mean of its label, squared."""
    same = (stratum[:, None] == stratum[None]).unsqueeze(2)
    alike = (cases[:, None] == cases[None]).to(scores.dtype)  # (row, other, label)
    inside = alike * same

    def mean(members: Tensor) -> Tensor:
        return (members * scores[None]).sum(1) / members.sum(1)

    return (mean(inside) - mean(alike)).square()
