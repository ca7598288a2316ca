"""`pmdn`: trainable metadata normalisation in one pass (Vento et al. 2022)."""

from __future__ import annotations

from typing import ClassVar, Literal, final

from torch import nn

from deconfound.methods.base import Setting
from deconfound.methods.layered import LayerMethod


@final
class PMDNMethod(LayerMethod):
    """`PMDN` layers: β follows the features by one descent step on the penalty in each training forward.

    Args:
        network: Any module.
        setting: The problem.
        gradient: See `PMDN`.
        memory: See `PMDN`.
        step: See `PMDN`.
        layer_norm: Whether LayerNorm stands before each layer.
        controls_only: Learn β from the controls alone.
        refit: Fit β to the validation rows before they judge an epoch and after training: see
            `NormalizedModel.refit`.
    """

    name: ClassVar[str] = "pmdn"
    summary: ClassVar[str] = "PMDN layers, β learned on all samples in the one training pass"
    reads_confounds: ClassVar[bool] = True

    def __init__(
        self,
        network: nn.Module,
        setting: Setting,
        *,
        gradient: Literal["bilevel", "frozen"] = "bilevel",
        memory: float = 250.0,
        step: float | Literal["average"] | None = None,
        layer_norm: bool = False,
        controls_only: bool = False,
        refit: bool = True,
    ) -> None:
        shared: dict[str, bool] = {"layer_norm": layer_norm, "controls_only": controls_only, "refit": refit}
        super().__init__(network, setting, "pmdn", **shared, gradient=gradient, memory=memory, step=step)
