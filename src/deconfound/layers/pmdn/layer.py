"""PMDN: β by descent on the penalty, inside the forward pass (the paper's method in one pass)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from deconfound.design import Design
from deconfound.errors import OptionError
from deconfound.layers.base import MetadataLayer, Share
from deconfound.layers.functional import Moments, cap_step, innovation, pool_positions, products_and_some, residualize
from deconfound.layers.pmdn.fused import FusedResidual, Rule, Work
from deconfound.layers.pmdn.gain import GainState, adaptive_gain, new_state, spread
from deconfound.layers.pmdn.gradient import BilevelResidual
from deconfound.layers.pmdn.sampled import measured_in
from deconfound.layers.rows import Fit, Rows
from deconfound.layers.sync import add_tensors, processes

# How many samples β = 0 counts for at the start: a β known from a handful of samples is noise that can kill a network.
START = 30.0
# Errors shorter than this have no direction.
SHORTEST = 1e-12


class PMDN(MetadataLayer):
    """Metadata normalisation whose coefficients are learned on all samples, in one forward and one backward pass.

    In training each forward takes one descent step on the penalty `½ ‖f − b₀ − Mβ‖² / n` from the features as
    they are, then returns `r = f − c β_C` with the new β:

        β ← β + η Rᵀ(f − Rβ) / n

    η is a gain that measures noise and drift (`layers.pmdn.gain`), one for the confounds, one for keep and one for the
    intercept: a long average while features stand still, a short memory while the network learns fast, whatever the
    batch size from 1 up; and at most 1 / λmax(RᵀR / n), so that a rare level cannot make it overshoot. Eval uses the
    same β for any number of samples.

    Differs from the paper: Algorithm 1's two passes are one (`AlternatingPMDN` is the literal form; both give
    the same β and, with `gradient="frozen"`, the same network gradients); metadata are white; an intercept is
    fitted and never subtracted; and the network's gradient goes through β.

    With a weighted sampler β describes the sampled distribution.

    Args:
        design: A fitted design.
        feature_shape: The shape of one sample's features.
        gradient: "bilevel" lets the network's gradient account for β following the features, which the
            paper's bi-level problem asks for; "frozen" takes β as a constant, as the paper's Algorithm 1 does:
            where label and confound are strongly tied, features then run away and training collapses.
        step: "adaptive" is the gain above. "average" is `η = n / samples seen`, for features that do not
            change. A number is a fixed η. All are capped by 1 / λmax.
        share: See `MetadataLayer`.
        channel_axis: See `MetadataLayer`.

    Example:
        >>> import torch, deconfound as dc
        >>> table = {"age": [61.0, 70.0, 78.0, 55.0]}
        >>> design = dc.Design(confounds=["age"]).fit(table)
        >>> layer = dc.PMDN(design, 1)
        >>> features = 0.5 * torch.tensor(table["age"])[:, None] + 3
        >>> for _ in range(200):  # training: each forward also learns
        ...     residual = layer(features, design.encode(table))
        >>> residual.ravel()  # the mean stays, the effect of age is gone
        tensor([36., 36., 36., 36.])
        >>> layer.eval()(features[:1], design.encode({"age": [61.0]})).round(decimals=2).item()
        36.0
    """

    beta: Tensor
    prior: Tensor
    response: Tensor
    response_scale: Tensor
    response_spread: Tensor

    def __init__(
        self,
        design: Design,
        feature_shape: int | Sequence[int | None],
        *,
        gradient: Literal["bilevel", "frozen"] = "bilevel",
        step: float | Literal["adaptive", "average"] = "adaptive",
        share: Share | None = None,
        channel_axis: int = 1,
    ) -> None:
        if gradient not in ("bilevel", "frozen"):
            raise OptionError(f"gradient must be 'bilevel' or 'frozen'; got {gradient!r}.")
        if step not in ("adaptive", "average") and not (isinstance(step, int | float) and 0 < step <= 1):
            raise OptionError(f"step must be 'adaptive', 'average' or a number in (0, 1]; got {step!r}.")
        super().__init__(design, feature_shape, share=share, channel_axis=channel_axis)
        self.gradient = gradient
        self.step = step
        self._measured = measured_in(self.coefficient_shape)
        self.register_buffer("beta", torch.zeros(self._directions, *self.coefficient_shape))
        self._register_gain("gain", self._groups)
        self.register_buffer("prior", torch.tensor([START, START, 0.0]), persistent=False)
        if gradient == "bilevel":
            self.register_buffer("response", torch.zeros(design.confound_directions, *self.coefficient_shape))
            self.register_buffer("response_scale", torch.zeros(()))
            self.register_buffer("response_spread", torch.zeros(()))
            self._register_gain("response_gain", [design.confound_directions])

    @property
    def _groups(self) -> list[int]:
        """The rows of β that share a gain: confounds, keep, intercept."""
        confounds = self.design.confound_directions
        return [confounds, self._directions - 1 - confounds, 1]

    def _register_gain(self, prefix: str, sizes: list[int]) -> None:
        some = self._measured.of(self._beta())
        for name, value in new_state(sizes, some.shape[1])._asdict().items():
            self.register_buffer(f"{prefix}_{name}", value)

    def _gain(self, prefix: str) -> GainState:
        buffers: dict[str, Any] = self._buffers  # torch looks for attributes in three places
        return GainState(*(buffers[f"{prefix}_{name}"] for name in GainState._fields))

    def _beta(self) -> Tensor:
        return self.beta.reshape(self._directions, self._features)

    def _train(self, x: Tensor, rows: Rows) -> Tensor:
        assert rows.fit is not None
        rate = self._learn(x.detach(), rows.fit) if self._may_update() else None
        beta = self._beta()[: rows.removal.shape[1]]
        if self.gradient == "frozen":
            return residualize(x, rows.removal, beta.clone())
        fixed = None if self.step == "adaptive" else rate
        learn = self.updating  # also where activations are recomputed: backward runs once
        residual: Tensor = BilevelResidual.apply(
            x, rows.removal, rows.fit.pull, beta, fixed, learn, self._measured, *self._response()
        )
        return residual

    def _fused(self, x: Tensor, rows: Rows) -> Tensor | None:
        """Training in one pass over the features; with other processes, their sums come between its two halves."""
        if rows.fit is None:
            return super()._fused(x, rows)
        if processes() > 1 or not self._may_update():
            return None
        response = self._response() if self.gradient == "bilevel" else ()
        rule = Rule(tuple(self._groups), self._fixed_step(), self._measured, self.share is not None)
        flat = self._flatten(x) if self.share else x
        work = Work(rows.removal, rows.fit, self.prior, self._beta(), self._gain("gain"), self.skipped, response)
        out: Tensor = FusedResidual.apply(flat, rule, work)
        return self._unflatten(out, x) if self.share else out

    def _response(self) -> tuple[Tensor, ...]:
        """What backward follows: S, its scale and spread, and its gain."""
        mean = self.response.view(-1, self._features)
        return (mean, self.response_scale, self.response_spread, *self._gain("response_gain"))

    def _fixed_step(self) -> float:
        """As the kernels read it: 0 for the adaptive gain, −1 for the plain average."""
        return {"adaptive": 0.0, "average": -1.0}[self.step] if isinstance(self.step, str) else float(self.step)

    @torch.no_grad()
    def _learn(self, x: Tensor, fit: Fit) -> Tensor:
        """One step on the penalty; returns the share of this batch in the running averages.

        Where what is measured is not finite nothing moves; elsewhere a feature that is not finite keeps its β.
        """
        features = pool_positions(x)
        beta = self._beta()
        cross, some = products_and_some(features, fit.weighted, self._measured.of)
        gram, cross, count, votes = add_tensors(fit.gram, cross, fit.count, self._votes(some, fit))
        batch = Moments(gram, cross, count)
        state = self._gain("gain")
        rate, new = adaptive_gain(state, votes, count, self._groups, self.prior)
        finite = torch.isfinite(rate).all()
        if self.step == "average":
            rate = (count / (state.samples + count).clamp(min=1)).expand_as(rate)
        elif self.step != "adaptive":
            rate = torch.full_like(rate, float(self.step))
        step = cap_step(rate, batch)
        new = GainState(new.agreement, new.samples, step / count.clamp(min=1), new.trend)
        usable = finite & (count > 0)
        stepped = torch.addcmul(beta, spread(step, self._groups), innovation(beta, batch))
        look = usable.is_cpu and not torch.compiler.is_compiling()  # makes no CPU wait
        if look and usable & torch.isfinite(stepped.sum()):  # then so is every one of them
            beta.copy_(stepped)
            torch._foreach_copy_(list(state), list(new))
            return rate[0]
        moved = torch.isfinite(stepped).all(0)
        self._count_skip(finite & moved.all())
        beta.copy_(torch.where(usable & moved, stepped, beta))
        for buffer, value in zip(state, new, strict=True):
            buffer.copy_(torch.where(usable, value, buffer))
        return rate[0]

    def _votes(self, some: Tensor, fit: Fit) -> Tensor:
        """What each row alone would move β by, `R_i e_i`, scaled to length one in each group and summed."""
        errors = residualize(some, fit.regressors, self._measured.of(self._beta()))
        lengths: Tensor = torch.linalg.vector_norm(errors, dim=1, keepdim=True).clamp(min=SHORTEST)
        return (fit.directions(self._groups) / lengths).T @ errors
