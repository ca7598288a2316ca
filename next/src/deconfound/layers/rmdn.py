"""R-MDN: β by recursive least squares over all samples seen (Shah et al., 2025)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from deconfound.design import Design
from deconfound.errors import OptionError
from deconfound.layers.arithmetic import identity_like
from deconfound.layers.base import MetadataLayer
from deconfound.layers.batch import WhitenedBatch

# The intercept has no ridge. This much makes it solvable before the first row.
INTERCEPT_RIDGE = 1e-10
# The Gram matrix is wrong by about this many units of rounding.
ROUNDING = 64.0


class RMDN(MetadataLayer):
    """Metadata normalisation by recursive least squares.

    β minimises `Σ_i λ^(rows since i) ‖f_i − R_i β‖² + λ^(rows seen) ridge ‖β‖²` over all rows seen;
    rows of one batch have the same age. For λ = 1 the result does not depend on the batches. The
    network's gradient treats β as a constant; training and evaluation use the same β.

    Args:
        design: A fitted design.
        shape: The shape of one sample's features. Axes of size 1 are shared; see `MetadataLayer`.
        forgetting: λ per row. 1 never forgets, and falls behind a network that learns; 0.9995
            remembers about 2,000 rows. The authors count λ per batch: their λ at batch size b is
            `λ ** (1 / b)` here.
        ridge: The weight of ‖β‖² in whitened units: 1 counts like one row, and is forgotten like
            one. It does not hold the intercept.

    Example:
        >>> import torch, deconfound as dc
        >>> table = {"age": [61.5, 70.2, 78.9, 55.4]}
        >>> design = dc.Design(confounds=["age"]).fit(table)
        >>> layer = dc.RMDN(design, 1, ridge=1e-6)
        >>> features = 0.5 * torch.tensor(table["age"])[:, None] + 3
        >>> for row, metadata in zip(features, design.encode(table)):  # one sample at a time
        ...     residual = layer(row[None], metadata[None])
        >>> round(layer.coefficients()["age"].item(), 3)
        0.5
    """

    gram: Tensor
    rows: Tensor

    def __init__(
        self,
        design: Design,
        shape: int | Sequence[int],
        *,
        forgetting: float = 0.9995,
        ridge: float = 0.1,
    ) -> None:
        super().__init__(design, shape)
        if not 0 < forgetting <= 1:
            raise OptionError(f"forgetting must lie between 0 and 1; got {forgetting!r}.")
        if not 0 < ridge < math.inf:
            raise OptionError(f"ridge must be positive; got {ridge!r}.")
        self.forgetting = forgetting
        self.ridge = ridge
        q, d = self._size
        mean_gram = torch.eye(q)
        mean_gram[-1, -1] = INTERCEPT_RIDGE
        self.register_buffer("beta", torch.zeros(q, d))
        self.register_buffer("gram", mean_gram)
        self.register_buffer("rows", torch.full((1,), float(ridge)))

    def _train(self, x: Tensor, batch: WhitenedBatch) -> Tensor:
        if self._may_learn:
            self._learn(self.pool(x.detach()), batch)
        return self.subtract_effect(x, batch.confounds)

    @torch.no_grad()
    def _learn(self, features: Tensor, batch: WhitenedBatch) -> None:
        # The moments of the errors, not of the features: their rounding error is relative to the
        # errors. That of features with a large mean would reach directions without recent rows.
        errors = torch.addmm(features, batch.regressors, self.beta, alpha=-1)
        updated = recursive_least_squares(
            self.beta, self.gram, self.rows, batch.cross(errors), batch, self.forgetting
        )
        is_finite = updated[0].isfinite().all() & updated[1].isfinite().all()
        is_usable = is_finite & (batch.rows > 0)
        for buffer, value in zip((self.beta, self.gram, self.rows), updated, strict=True):
            buffer.copy_(torch.where(is_usable, value, buffer))
        self._count_skip(is_usable | (batch.rows == 0))


def recursive_least_squares(
    beta: Tensor,
    gram: Tensor,
    rows: Tensor,
    cross_of_errors: Tensor,
    batch: WhitenedBatch,
    forgetting: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Take one block of rows into the least-squares fit, solved in `q × q`.

    With n rows in the block, the weight of earlier rows decays to λⁿ s and A is the mean of RᵀR
    over the rows that count. Then `β ← β + A⁻¹ RᵀW(f − Rβ) / s`. For λ = 1 the result is that of
    ridge least squares on all rows.

    Args:
        beta: β, shape `(q, d)`.
        gram: A, shape `(q, q)`.
        rows: s, the number of rows that still count.
        cross_of_errors: RᵀW(f − Rβ), shape `(q, d)`.
        batch: The metadata of the block.
        forgetting: λ.

    Returns:
        The new β, A and s.
    """
    # λⁿ as exp(n log λ), because n is a tensor.
    decayed_rows = rows * (math.log(forgetting) * batch.rows).exp()
    new_rows = decayed_rows + batch.rows
    gram = (decayed_rows * gram + batch.gram) / new_rows
    # Without damping, rounding decides the coefficients of a site that recent rows do not contain.
    damping = ROUNDING * torch.finfo(gram.dtype).eps * gram.diagonal().sum()
    damped = gram + damping * identity_like(gram)
    change, _ = torch.linalg.solve_ex(damped, cross_of_errors / new_rows)
    return beta + change, gram, new_rows
