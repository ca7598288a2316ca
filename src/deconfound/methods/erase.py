"""`erase`: linear erasure of the confounds within labels, with none needed at inference (Belrose et al. 2023)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, final

from torch import nn

from deconfound.errors import OptionError
from deconfound.layers import Erase
from deconfound.methods.base import Setting
from deconfound.methods.layered import LayerMethod
from deconfound.surgery import last_linear


@final
class EraseMethod(LayerMethod):
    """`Erase` layers: the least change after which no linear probe within any label finds the confounds.

    Without places in the setting the layer stands before the last linear layer, so that no output follows a confound
    linearly within a label. Of named places those are passed over that have too few features to leave any.

    Args:
        memory: See `Erase`.
        shrinkage: See `Erase`.
        controls_only: Learn the directions from the controls alone.
        refit: Fit the map to the validation rows, as `pmdn` does.
    """

    name: ClassVar[str] = "erase"
    summary: ClassVar[str] = "LEACE within labels: linear erasure that needs no confounds at inference"
    reads_confounds: ClassVar[bool] = False

    def __init__(
        self,
        network: nn.Module,
        setting: Setting,
        *,
        memory: float = 2000.0,
        shrinkage: float | None = None,
        controls_only: bool = False,
        refit: bool = True,
    ) -> None:
        room, own = with_room(network, setting), {"memory": memory, "shrinkage": shrinkage}
        super().__init__(network, room, layer_norm=False, controls_only=controls_only, refit=refit, **own)


def with_room(network: nn.Module, setting: Setting) -> Setting:
    """The setting with places that have more features than there are directions to erase."""
    last = last_linear(network)
    if setting.at is None and last is not None:
        return replace(setting, at=[last], attach={"where": "before", **setting.attach})
    least = Erase.least_features(setting.design)
    places = setting.places(network)
    wide = [place.path for place in places if place.features >= least]
    if not wide:
        got = ", ".join(f"{place.features} at {place.path!r}" for place in places)
        raise OptionError(
            f"a place must have at least {least} features for method 'erase', which takes {least - 1} directions away; "
            f"got {got}. Name a wider place, or fewer confounds."
        )
    return replace(setting, at=wide)
