"""Whether batches come shuffled: a running estimate of β takes a long run of one site for the whole world."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from deconfound.errors import DeconfoundWarning

# The batches after which all before are judged; then never again.
JUDGED_AFTER = (20, 40, 80, 160)
# So many are looked at in all, the same ones again among them: a look costs as much as a layer.
MOST_LOOKS = 320
# How many times as far batches' means lie apart as those of shuffled rows would: 1 for shuffled ones, give or take .5.
SORTED = 8.0
# Of a column that has not varied at all, so many rows should by now have had another value.
MISSED = 20.0


class BatchOrder:
    """Looks at the metadata of the first batches, on the CPU only, and warns once if they are not shuffled."""

    def __init__(self) -> None:
        self._means: list[Tensor] = []
        self._squares: list[Tensor] = []
        self._rows = 0
        self._varies = False  # within the last batch
        self._looks = 0
        self._done = False

    def see(self, metadata: Tensor) -> None:
        """Take in one training batch `(n, p)`, standardised on the training table."""
        if not self._done and metadata.is_cpu:
            self._take(metadata)

    @torch.no_grad()
    def _take(self, metadata: Tensor) -> None:
        self._looks += 1
        self._done = self._looks == MOST_LOOKS
        mean = metadata.mean(0, dtype=torch.float64)
        if self._varies and torch.equal(mean, self._means[-1]):
            return  # the same batch again, as when one tries a network out: it says nothing about the order
        squares = metadata.double().square().mean(0)
        self._varies = bool((squares - mean.square()).max() > 1e-6)
        self._means.append(mean)
        self._squares.append(squares)
        self._rows += len(metadata)
        if len(self._means) in JUDGED_AFTER:
            self._done = self._warn() if self._are_sorted() else len(self._means) == JUDGED_AFTER[-1]

    def _are_sorted(self) -> bool:
        means, mean_squares = torch.stack(self._means), torch.stack(self._squares).mean(0)
        mean = means.mean(0)
        spread = mean_squares - mean.square()
        constant = spread < 1e-6
        if (constant & (self._rows * mean.square() > MISSED)).any():
            return True
        apart = means.var(0) / spread.clamp(min=1e-6) * (self._rows / len(means))
        return bool((~constant & (apart > SORTED)).any())

    def _warn(self) -> bool:
        warnings.warn(
            "Training batches are not shuffled: the metadata of one batch are alike, and those of the next are others. "
            "Running coefficients then follow the latest rows. Write DataLoader(…, shuffle=True).",
            DeconfoundWarning,
            stacklevel=2,
        )
        return True
