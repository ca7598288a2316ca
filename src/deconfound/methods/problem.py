"""What methods ask of a setting: an example, the places, and which rows are controls."""

from __future__ import annotations

from torch import Tensor, nn

from deconfound.errors import OptionError
from deconfound.methods.base import Setting, TrainingBatch
from deconfound.surgery import Place, Plan, normalize


def first_batch(setting: Setting) -> TrainingBatch:
    """The first training batch, from which shapes are read."""
    for batch in setting.training():
        return batch
    raise OptionError("training rows must make at least one batch; got none. Check the split.")


def places_of(network: nn.Module, setting: Setting) -> tuple[Place, ...]:
    """The places of the setting with the shapes of their features; the network is not changed."""
    plan: Plan = normalize(network, setting.design, setting.at, example=first_batch(setting).x, dry_run=True)
    return plan.places


def controls_of(batch: TrainingBatch) -> Tensor:
    """Which rows are controls, or an error that says what is missing."""
    if batch.controls is None:
        raise OptionError(
            "controls must be known with controls_only=True; got none. Say which rows are controls, "
            "or leave controls_only out."
        )
    return batch.controls


def require(name: str, value: object, least: float, *, whole: bool = False) -> None:
    """Refuse an option that is not a number of at least `least`."""
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not value >= least:
        kind = "a whole number" if whole else "a number"
        raise OptionError(f"{name} must be {kind} of at least {least:g}; got {value!r}.")
