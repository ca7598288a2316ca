"""`input-residualize`: the classical regression of the raw inputs on the confounds, before the network sees them."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from torch import Tensor, nn

from deconfound.errors import ShapeError
from deconfound.layers.functional import Moments, least_squares, moments
from deconfound.layers.whitened import as_tensor, refuse_nan
from deconfound.methods.base import Method, Setting
from deconfound.methods.confounds import read_confounds


@final
class InputResidualizeMethod(Method):
    """`logits = network(x − C β_C)`, with β by least squares of every input value on `[1, C, L]`, once.

    The fit goes over the training rows in float64, batch by batch and under their weights, and holds `q × (q + inputs)`
    numbers. Keep takes part in the fit and is not subtracted.

    Args:
        controls_only: Fit on the controls alone.
    """

    name: ClassVar[str] = "input-residualize"
    summary: ClassVar[str] = "the confounds regressed out of the raw inputs, once, on the training rows"
    reads_confounds: ClassVar[bool] = True

    beta: Tensor

    def __init__(self, network: nn.Module, setting: Setting, *, controls_only: bool = False) -> None:
        super().__init__()
        self.model = network
        self.design = setting.design
        x = setting.first_batch().x
        if not x.is_floating_point():
            raise ShapeError(
                f"inputs of method 'input-residualize' must be floating point; got {x.dtype}. Codes cannot be "
                "regressed: choose a method that works on features."
            )
        self.controls_only = controls_only
        self.register_buffer("beta", x.new_zeros(len(setting.design.confound_columns), *x.shape[1:]))

    def fit(self, setting: Setting) -> None:
        """β, by least squares on the training rows."""
        self.beta.copy_(regress(setting, self.controls_only).reshape(self.beta.shape))

    def forward(self, x: Tensor, metadata: Tensor | None = None) -> Tensor:
        logits: Tensor = self.model(self.residual(x, metadata))
        return logits

    def residual(self, x: Tensor, metadata: Tensor | None) -> Tensor:
        """The inputs without the confounds' part; without metadata the inputs themselves, as for the mean person."""
        confounds = read_confounds(metadata, self.design, len(x), self.training)
        if confounds is None:
            return x
        effect = confounds.to(self.beta) @ self.beta.flatten(1)
        return x - effect.reshape(x.shape).to(x.dtype)


def regress(setting: Setting, controls_only: bool) -> Tensor:
    """β_C per standardised confound column, `(p_C, inputs)`, by normal equations summed over the training batches."""
    design = setting.design
    whitening = torch.from_numpy(design.whitening)
    confounds, directions = len(design.confound_columns), design.confound_directions
    zero = whitening.new_zeros(())
    total = Moments(zero, zero, zero)
    for batch in setting.training():
        metadata = as_tensor(batch.metadata, design, len(batch.x))
        refuse_nan(metadata, design, training=True)
        white = metadata.double() @ whitening.to(metadata.device)
        regressors = torch.cat([white, torch.ones_like(white[:, :1])], dim=1)
        weights = torch.ones_like(white[:, 0]) if batch.row_weight is None else batch.row_weight.double()
        if controls_only:
            weights = weights * batch.controls_only()
        part = moments(batch.x.double().flatten(1), regressors, weights)
        total = Moments(total.gram + part.gram, total.cross + part.cross, total.rows + part.rows)
    beta = least_squares(total)[:directions]
    return whitening[:confounds, :directions].to(beta.device) @ beta
