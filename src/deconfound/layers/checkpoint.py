"""What a checkpoint says about a layer beside its numbers: its format, its design and its shapes."""

from __future__ import annotations

import json
import math
import warnings
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from deconfound.design import Design
from deconfound.errors import DeconfoundError, DeconfoundWarning

Share = Literal["positions"]
# The format of a layer's checkpoint; 1 is that of release 0.1, 2 of 0.2 in work, with an adaptive gain.
FORMAT = 3


class LayerState(NamedTuple):
    """What a checkpoint says about a layer besides its numbers."""

    design: Design
    feature_shape: tuple[int | None, ...]
    share: Share | None
    channel_axis: int
    format: int


def read_state(state: Tensor) -> LayerState:
    """What `get_extra_state` wrote."""
    spec = json.loads(bytes(state.cpu().tolist()))
    written = spec.get("format", 1)  # release 0.1 wrote none
    if written > FORMAT:
        raise DeconfoundError(
            f"the format of a checkpoint must be at most {FORMAT}; got {written}. Update deconfound to read it."
        )
    design = Design.from_dict(spec["design"])
    return LayerState(design, tuple(spec["feature_shape"]), spec["share"], spec["channel_axis"], written)


def warn_of_old_format() -> None:
    """Say what became of a checkpoint of an older format."""
    warnings.warn(
        "The checkpoint was written by an older deconfound: coefficients are kept, and the other running averages of "
        "its layers begin anew. Save it again to be rid of this warning.",
        DeconfoundWarning,
        stacklevel=2,
    )


def warn_of_other_design(own: Design, loaded: Design) -> None:
    """Say so where a checkpoint's design takes the place of another: metadata encoded by that one are misread."""
    ours, theirs = (design.to_dict() for design in (own, loaded))
    if all(_alike(ours[part], theirs[part]) for part in ("codecs", "confounds", "keep", "whitening")):
        return
    if own.names == loaded.names:
        differ = "the same columns, fitted on other rows"
    else:
        differ = f"columns {', '.join(loaded.names)} instead of {', '.join(own.names)}"
    warnings.warn(
        f"The checkpoint brings the design it was trained with, which is not the one that this model was made with: "
        f"{differ}. Write metadata=model.design.encode(rows) from here on.",
        DeconfoundWarning,
        stacklevel=2,
    )


def _alike(one: Any, other: Any) -> bool:
    """Whether two pieces of JSON say the same but for rounding, which differs from machine to machine."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)
    return bool(one == other)


def write_state(spec: dict[str, Any]) -> Tensor:
    """The bytes of a specification's JSON: a tensor, so that any checkpoint file carries it."""
    return torch.frombuffer(bytearray(json.dumps({"format": FORMAT, **spec}).encode()), dtype=torch.uint8).clone()


def upgrade(state_dict: dict[str, Any], prefix: str, own: dict[str, Any]) -> None:
    """Turn what an older release saved for a layer into what is saved now, in place.

    Args:
        state_dict: The checkpoint.
        prefix: Of the layer's entries.
        own: The layer's own state, with prefix: what the checkpoint lacks is taken from it.
    """
    theirs = [name for name in state_dict if name.startswith(prefix) and "." not in name[len(prefix) :]]
    for name in theirs:
        if name not in own:
            del state_dict[name]
    for name, value in own.items():
        state_dict.setdefault(name, value)
