"""PMDN: β by descent on the penalty, inside the forward pass (the paper's method in one pass)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from deconfound.design import Design
from deconfound.errors import OptionError
from deconfound.layers import torch_private
from deconfound.layers.base import MetadataLayer
from deconfound.layers.checkpoint import Share
from deconfound.layers.functional import Moments, positive, running_gram
from deconfound.layers.pmdn.gradient import ImplicitGradient, PMDNResidual, Step
from deconfound.layers.pmdn.kernels.tiles import MOST_IN_ONE_KERNEL
from deconfound.layers.pmdn.update import Plan, UpdateRule, constants, moves, rates, usable_rows
from deconfound.layers.tensors import Number, all_finite, in_rows, store, sum_over_processes
from deconfound.layers.whitened import WhitenedBatch

# How many samples the identity counts for in the running Gram matrix of weighted rows.
GRAM_PRIOR = 1.0


class PMDN(MetadataLayer):
    """Metadata normalisation whose coefficients are learned on all samples, in one forward and one backward pass.

    In training each forward takes one descent step on the penalty `½ ‖f − b₀ − Mβ‖² / n` from the features as
    they are, then returns `r = f − c β_C` with the new β:

        β ← β + η Rᵀ(f − Rβ) / n,   η = n / (min(samples, memory) + n + 30)

    so that β is an average over about `memory` samples, whatever the batch size from 1 up. The 30 is for the start at
    zero, and is missing for the intercept, which moves first; η is at most 1 / λmax(RᵀR / n), so that a rare level
    cannot make it overshoot. Each feature is fitted by itself. Eval uses the same β for any number of samples.

    Differs from the paper: Algorithm 1's two passes are one (`AlternatingPMDN` is the literal form; both give
    the same β and, with `gradient="frozen"`, the same network gradients); metadata are whitened; an intercept is
    fitted and never subtracted; and the network's gradient goes through β.

    With weights the penalty is weighted, and the network's gradient accounts for weighted rows that are not white.
    With a weighted sampler β describes the sampled distribution.

    Args:
        design: A fitted design.
        feature_shape: The shape of one sample's features.
        gradient: "bilevel" lets the network's gradient account for β following the features, which the
            paper's bi-level problem asks for; "frozen" takes β as a constant, as the paper's Algorithm 1 does:
            where label and confound are strongly tied, features then run away and training collapses.
        memory: Over how many samples β is averaged. A short memory follows features that a network changes fast, and is
            noisy; a refit on held-out rows takes the noise away. A longer one is for who does not refit and learns
            slowly. The implicit gradient is averaged over as many, from a start at zero that counts for 300.
        step: "average" is `memory=float("inf")`, for features that do not change. A number is a fixed η, for all
            coefficients at once. None is the memory.
        share: See `MetadataLayer`.
        channel_axis: See `MetadataLayer`.

    Example:
        >>> import torch, deconfound as dc
        >>> table = {"age": [61.0, 70.0, 78.0, 55.0]}
        >>> design = dc.Design(confounds=["age"]).fit(table)
        >>> layer = dc.PMDN(design, 1)
        >>> features = 0.5 * torch.tensor(table["age"])[:, None] + 3
        >>> for _ in range(800):  # training: each forward also learns
        ...     residual = layer(features, design.encode(table))
        >>> residual.ravel().round(decimals=3)  # the mean stays, the effect of age is gone
        tensor([36., 36., 36., 36.])
        >>> layer.eval()(features[:1], design.encode({"age": [61.0]})).round(decimals=2).item()
        36.0
    """

    beta: Tensor
    samples: Tensor
    mean_gram: Tensor
    gradient_mean: Tensor
    gradient_square: Tensor
    rate_constants: Tensor
    unit: Tensor
    own_entry: Tensor
    entries_above: Tensor

    def __init__(
        self,
        design: Design,
        feature_shape: int | Sequence[int | None],
        *,
        gradient: Literal["bilevel", "frozen"] = "bilevel",
        memory: float = 250.0,
        step: float | Literal["average"] | None = None,
        share: Share | None = None,
        channel_axis: int = 1,
    ) -> None:
        if gradient not in ("bilevel", "frozen"):
            raise OptionError(f"gradient must be 'bilevel' or 'frozen'; got {gradient!r}.")
        super().__init__(design, feature_shape, share=share, channel_axis=channel_axis)
        self.gradient = gradient
        self._rule = _rule(memory, step)
        self.register_buffer("beta", torch.zeros(self._directions, *self.coefficient_shape))
        self.register_buffer("samples", torch.zeros(()))
        self.register_buffer("mean_gram", torch.eye(self._directions))
        if gradient == "bilevel":
            self.register_buffer("gradient_mean", torch.zeros(design.confound_directions, *self.coefficient_shape))
            self.register_buffer("gradient_square", torch.zeros(1, *self.coefficient_shape))

    def _upgrade(self, state_dict: dict[str, Any], prefix: str) -> None:
        old = (state_dict.get(prefix + name) for name in ("gain_samples", "gain_numbers"))  # of 0.1, and of 0.2 in work
        seen = next((value.reshape(-1)[0] for value in old if value is not None), None)
        for name in ("gradient_mean", "gradient_size", "gradient_square"):
            state_dict.pop(prefix + name, None)
        super()._upgrade(state_dict, prefix)
        if seen is not None:
            state_dict[prefix + "samples"] = seen.to(self.samples)

    def _constants(self, like: Tensor) -> dict[str, Tensor]:
        return constants(self.design.whitening.shape[1] + 1, like)

    def _train(self, x: Tensor, batch: WhitenedBatch) -> Tensor:
        out: Tensor = PMDNResidual.apply(x, self._step(batch, False))
        return out

    def _fused(self, x: Tensor, batch: WhitenedBatch) -> Tensor | None:
        """Training in one pass over the features; with other processes, their sums come between its two halves."""
        if not batch.fits:
            return super()._fused(x, batch)
        few = 0 < batch.confounds.shape[1] < self._directions <= MOST_IN_ONE_KERNEL
        if not batch.alone or not few or not self._may_update(batch):
            return None
        flat = self.shape.flatten(x) if self.share else x
        out: Tensor = PMDNResidual.apply(flat, self._step(batch, True))
        return self.shape.unflatten(out, x) if self.share else out

    def _step(self, batch: WhitenedBatch, fused: bool) -> Step:
        """What a pass over the features reads and moves; counts its samples, unless backward computes it again."""
        learns = self._may_update(batch)
        held: Any = self._buffers  # where a module looks for its attributes last
        samples = held["samples"]
        before = samples if learns else (samples - usable_rows(batch)).clamp(min=0)
        looks = batch.on_host and not fused  # kernels read tensors
        seen: Number = before.item() if looks else before
        # Layers that have seen as many samples share a plan, where a look at their number makes no GPU wait.
        key = (self._rule, self.gradient, seen, learns) if looks else None
        plan = batch.once("plan", lambda: self._plan(batch, seen, learns and not fused), key)
        through, state = plan.through, None
        if self.gradient == "bilevel":
            state = ImplicitGradient(in_rows(held["gradient_mean"]), in_rows(held["gradient_square"]))
            if batch.weights is not None:
                through = self._through(batch, learns)
        if learns and looks:
            samples.fill_(seen + plan.usable)
        elif learns:
            torch_private.written(samples).add_(plan.usable)
        return Step(
            batch, plan, through, in_rows(held["beta"]), held["skipped"], state, self.updating, fused,
            self.share is not None,
        )  # fmt: skip

    def _plan(self, batch: WhitenedBatch, seen: Number, moving: bool) -> Plan:
        found = rates(seen, batch, self._rule, self.rate_constants)
        by = moves(found, batch, self.unit, self.own_entry, self.entries_above) if moving else None
        white = self.gradient == "bilevel" and batch.weights is None
        return Plan(found, by, usable_rows(batch), batch.white_confounds() if white else batch.confounds)

    def _through(self, batch: WhitenedBatch, learns: bool) -> Tensor:
        """z̃ of rows with weights, which make those that take part other than white."""
        gram, count = batch.gram(), positive(batch.rows())
        (rows,) = sum_over_processes(gram.new_full((), float(len(batch.regressors))))
        if learns:
            mean = running_gram(self.mean_gram, self.samples, Moments(gram, gram, count), GRAM_PRIOR)
            store(self.mean_gram, mean, all_finite(mean) & (batch.rows() > 0))
        solved: Tensor = torch.linalg.solve_ex(self.mean_gram, batch.weighted.T)[0]
        return (solved[: batch.confounds.shape[1]].T * (rows / count)).contiguous()


def _rule(memory: float, step: float | str | None) -> UpdateRule:
    if not (isinstance(memory, int | float) and memory > 0):
        raise OptionError(f"memory must be a positive number of samples; got {memory!r}.")
    if step == "adaptive":
        raise OptionError(
            "step must be None, 'average' or a number in (0, 1]; got 'adaptive', the gain of release 0.1. "
            "Write memory=250, the default, which replaces it."
        )
    if step is None:
        return UpdateRule(float(memory), None)
    if step == "average":
        return UpdateRule(math.inf, None)
    if isinstance(step, int | float) and 0 < step <= 1:
        return UpdateRule(float(memory), float(step))
    raise OptionError(f"step must be None, 'average' or a number in (0, 1]; got {step!r}.")
