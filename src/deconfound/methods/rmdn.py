"""`rmdn`: metadata normalisation by recursive least squares over all samples seen (Shah et al. 2025)."""

from __future__ import annotations

from typing import ClassVar, final

from torch import nn

from deconfound.methods.base import Setting
from deconfound.methods.layered import LayerMethod


@final
class RMDNMethod(LayerMethod):
    """`RMDN` layers: β by recursive least squares, the same in train and eval.

    Args:
        network: Any module.
        setting: The problem.
        forgetting: See `RMDN`.
        ridge: See `RMDN`.
        layer_norm: Whether LayerNorm stands before each layer.
        controls_only: Learn β from the controls alone.
        refit: Fit β to the validation rows, as `pmdn` does; the published method does not.
    """

    name: ClassVar[str] = "rmdn"
    summary: ClassVar[str] = "R-MDN layers, β by recursive least squares over all samples seen"
    reads_confounds: ClassVar[bool] = True

    def __init__(
        self,
        network: nn.Module,
        setting: Setting,
        *,
        forgetting: float = 0.9995,
        ridge: float = 0.1,
        layer_norm: bool = False,
        controls_only: bool = False,
        refit: bool = False,
    ) -> None:
        shared: dict[str, bool] = {"layer_norm": layer_norm, "controls_only": controls_only, "refit": refit}
        super().__init__(network, setting, "rmdn", **shared, forgetting=forgetting, ridge=ridge)
