"""The weighted Gram matrix of a design's standardised columns, G = MᵀWM with Σw = 1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Array = NDArray[np.float64]

# Multiplications of the second pass of whitening; this many take about a second.
SECOND_PASS_LIMIT = 1e10
_CELLS_PER_BLOCK = 4_000_000


@dataclass(frozen=True)
class StandardColumns:
    """Standardised columns M = X − 1 mᵀ, held as sparse columns X and their means m.

    Attributes:
        scaled: X, the raw columns over their sd, shape `(n, p)`.
        means: m = XᵀW 1, shape `(p,)`.
        share: The weight of each row, shape `(n,)`. Their sum is 1.
    """

    scaled: sparse.csr_array
    means: Array
    share: Array

    def gram(self) -> Array:
        """Return MᵀWM = XᵀWX − m mᵀ, shape `(p, p)`."""
        weighted = sparse.diags_array(self.share) @ self.scaled
        gram: Array = (self.scaled.T @ weighted).toarray()
        gram -= np.outer(self.means, self.means)
        return gram

    def gram_of(self, transform: Array) -> Array:
        """Return the Gram matrix of M T for a transform T `(p, q)`, from dense blocks of M T."""
        n, q = len(self.share), transform.shape[1]
        offset, gram = self.means @ transform, np.zeros((q, q))
        step = max(1, _CELLS_PER_BLOCK // max(q, 1))
        for start in range(0, n, step):
            block = self.scaled[start : start + step] @ transform - offset
            gram += block.T @ (self.share[start : start + step, None] * block)
        return gram

    @property
    def allows_second_pass(self) -> bool:
        """True if `gram_of` takes about a second or less."""
        n, p = len(self.share), len(self.means)
        return n * p * p <= SECOND_PASS_LIMIT
