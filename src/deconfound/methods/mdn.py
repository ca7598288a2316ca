"""`mdn`: metadata normalisation by least squares on each batch (Lu et al. 2021)."""

from __future__ import annotations

from typing import ClassVar, Literal, final

from torch import nn

from deconfound.methods.base import Setting
from deconfound.methods.layered import LayerMethod


@final
class MDNMethod(LayerMethod):
    """`MDN` layers: β is fitted anew on each training batch, its running mean serves in eval.

    Args:
        network: Any module.
        setting: The problem.
        gram: See `MDN`.
        center: See `MDN`.
        momentum: See `MDN`.
        layer_norm: Whether LayerNorm stands before each layer.
        controls_only: Learn β from the controls alone.
        refit: Fit β to the validation rows, as `pmdn` does; the published method does not.
    """

    name: ClassVar[str] = "mdn"
    summary: ClassVar[str] = "MDN layers, β by least squares on each batch"
    reads_confounds: ClassVar[bool] = True

    def __init__(
        self,
        network: nn.Module,
        setting: Setting,
        *,
        gram: Literal["running", "training", "batch"] = "running",
        center: bool = True,
        momentum: float = 0.1,
        layer_norm: bool = False,
        controls_only: bool = False,
        refit: bool = False,
    ) -> None:
        shared: dict[str, bool] = {"layer_norm": layer_norm, "controls_only": controls_only, "refit": refit}
        super().__init__(network, setting, "mdn", **shared, gram=gram, center=center, momentum=momentum)
