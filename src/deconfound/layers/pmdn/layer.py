"""PMDN: β by descent on the penalty, inside the forward pass (the paper's method in one pass)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from deconfound.design import Design
from deconfound.errors import OptionError
from deconfound.layers.base import MetadataLayer
from deconfound.layers.checkpoint import LayerState, Share
from deconfound.layers.functional import Moments, pool_positions, residualize, running_gram
from deconfound.layers.pmdn.fused import FusedResidual, FusedStep
from deconfound.layers.pmdn.gain import GainState, new_state
from deconfound.layers.pmdn.gradient import BilevelResidual, ImplicitGradient
from deconfound.layers.pmdn.sampled import Sampled, sample_of
from deconfound.layers.pmdn.update import START, UpdateRule, update
from deconfound.layers.tensors import processes, sum_over_processes
from deconfound.layers.whitened import WhitenedBatch, groups_of, positive

# How many samples the identity counts for in the running Gram matrix of weighted rows.
GRAM_PRIOR = 1.0


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
    the same β and, with `gradient="frozen"`, the same network gradients); metadata are whitened; an intercept is
    fitted and never subtracted, and starts at the mean of the first batch; and the network's gradient goes through β.

    With weights the penalty is weighted, and the network's gradient accounts for weighted rows that are not white.
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
        >>> residual.ravel().round(decimals=3)  # the mean stays, the effect of age is gone
        tensor([36., 36., 36., 36.])
        >>> layer.eval()(features[:1], design.encode({"age": [61.0]})).round(decimals=2).item()
        36.0
    """

    beta: Tensor
    groups: Tensor
    start: Tensor
    mean_gram: Tensor
    gradient_mean: Tensor
    gradient_size: Tensor
    gain_numbers: Tensor

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
        self.register_buffer("beta", torch.zeros(self._directions, *self.coefficient_shape))
        self.register_buffer("mean_gram", torch.eye(self._directions))
        self.register_buffer("groups", groups_of(self._sizes, self.beta), persistent=False)
        self.register_buffer("start", torch.tensor(START), persistent=False)
        if gradient == "bilevel":
            self.register_buffer("gradient_mean", torch.zeros(design.confound_directions, *self.coefficient_shape))
            self.register_buffer("gradient_size", torch.zeros(2))
        self._sample(sample_of(self.coefficient_shape))

    @property
    def _sizes(self) -> tuple[int, int, int]:
        """The rows of β that share a gain: confounds, keep, intercept."""
        confounds = self.confound_map.shape[1]
        return confounds, self._directions - 1 - confounds, 1

    def _sample(self, sampled: Sampled) -> None:
        """Make the buffers of the gain for these features."""
        fixed = {"adaptive": 0.0, "average": -1.0}.get(str(self.step))
        self._rule = UpdateRule(self._sizes, float(self.step) if fixed is None else fixed, sampled)
        count = sampled.of(self._beta()).shape[1]
        self._register_gain("gain", new_state(3, self._directions, count))
        if self.gradient == "bilevel":
            self._register_gain("gradient", new_state(1, self.confound_map.shape[1], count))

    def _register_gain(self, prefix: str, state: GainState) -> None:
        for name, value in state._asdict().items():
            self.register_buffer(f"{prefix}_{name}", value.to(self.beta))

    def _gain(self, prefix: str) -> GainState:
        buffers: dict[str, Any] = self._buffers  # torch looks for attributes in three places
        return GainState(*(buffers[f"{prefix}_{name}"] for name in GainState._fields))

    def _implicit_gradient(self) -> ImplicitGradient:
        return ImplicitGradient(self.gradient_mean.view(-1, self._features), self.gradient_size, self._gain("gradient"))

    def _beta(self) -> Tensor:
        return self.beta.reshape(self._directions, self._features)

    def _extra_spec(self) -> dict[str, Any]:
        return {"sampled": list(self._rule.sampled)}

    def _prepare_for(self, found: LayerState, state_dict: dict[str, Any], prefix: str) -> None:
        """The gain goes on with the features that the checkpoint sampled, whatever a new layer would sample."""
        sampled = Sampled(*found.spec.get("sampled", self._rule.sampled))
        if sampled != self._rule.sampled:
            self._sample(sampled)

    def _upgrade(self, state_dict: dict[str, Any], prefix: str) -> None:
        samples = state_dict.get(prefix + "gain_samples")
        super()._upgrade(state_dict, prefix)
        numbers = torch.zeros_like(self.gain_numbers)
        numbers[0] = 0.0 if samples is None else samples
        for name in ("gain", "gradient"):
            for part in GainState._fields:
                if f"{prefix}{name}_{part}" in state_dict:
                    state_dict[f"{prefix}{name}_{part}"] = torch.zeros_like(getattr(self, f"{name}_{part}"))
        state_dict[prefix + "gain_numbers"] = numbers

    def _train(self, x: Tensor, batch: WhitenedBatch) -> Tensor:
        rate: float | Tensor | None = None
        through = self._through(batch) if self.gradient == "bilevel" else batch.confounds
        if self._may_update():
            features = pool_positions(x.detach())
            rate = update(self._beta(), self._gain("gain"), self.skipped, features, batch, self._rule, self.groups)
        beta = self._beta()[: batch.confounds.shape[1]]
        if self.gradient == "frozen":
            return residualize(x, batch.confounds, beta.clone())
        fixed = rate if self._rule.step else None
        learn = self.updating  # also where activations are recomputed: backward runs once
        residual: Tensor = BilevelResidual.apply(
            x, batch, through, beta, fixed, learn, self._rule.sampled, self._implicit_gradient()
        )
        return residual

    def _fused(self, x: Tensor, batch: WhitenedBatch) -> Tensor | None:
        """Training in one pass over the features; with other processes, their sums come between its two halves."""
        if not batch.fits:
            return super()._fused(x, batch)
        if processes() > 1 or not self._may_update():
            return None
        flat = self.shape.flatten(x) if self.share else x
        gradient = self._implicit_gradient() if self.gradient == "bilevel" else None
        through = batch.confounds if gradient is None else self._through(batch).contiguous()
        step = FusedStep(
            batch, through, self.start, self._beta(), self._gain("gain"), self.skipped, gradient, self._rule,
            self.share is not None,
        )  # fmt: skip
        out: Tensor = FusedResidual.apply(flat, step)
        return self.shape.unflatten(out, x) if self.share else out

    @torch.no_grad()
    def _through(self, batch: WhitenedBatch) -> Tensor:
        """z̃, how a row's features move β_C: `z_C`, unless weights make the rows that take part other than white."""
        directions = batch.confounds.shape[1]
        if batch.weights is None:
            return batch.regressors[:, :directions]
        gram, counts, rows = sum_over_processes(
            batch.gram(), batch.counts(), batch.weights.new_tensor(float(len(batch.weights)))
        )
        count = positive(counts[0])
        if self._may_update():
            of_batch = Moments(gram, gram, count)
            mean = running_gram(self.mean_gram, self.gain_numbers[0], of_batch, GRAM_PRIOR)
            self.mean_gram.copy_(torch.where((counts[0] > 0) & torch.isfinite(mean).all(), mean, self.mean_gram))
        solved: Tensor = torch.linalg.solve_ex(self.mean_gram, batch.weighted.T)[0]  # type: ignore[union-attr]
        return solved[:directions].T * (rows / count)
