"""What an attachment would do, before it does it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from deconfound.design import Design
from deconfound.errors import DeconfoundError, OptionError, ShapeError
from deconfound.surgery.collect import watching
from deconfound.surgery.outputs import features_of, is_sequence, part_of


@dataclass(frozen=True)
class Place:
    """One place where a layer goes.

    Attributes:
        path: The module's name in the network.
        module: Its type.
        where: "after" or "before" it.
        feature_shape: The shape of one sample's features there; None until the first forward has shown it.
        share: Whether positions share coefficients.
        channel_axis: Where the channels are, with `share`.
        batch_axis: Where the samples are; before the shape is known, where they are if it is a sequence.
        part: Which part of the output it normalises, where the output is more than a tensor.
    """

    path: str
    module: str
    where: str
    feature_shape: tuple[int | None, ...] | None = None
    share: str | None = None
    channel_axis: int = 1
    batch_axis: int = 0
    part: str = ""

    @property
    def features(self) -> int:
        """How many features have coefficients of their own here, once the shape is known."""
        shape: tuple[int | None, ...] = self.feature_shape or ()
        if self.share:
            shape = (shape[self.channel_axis % (len(shape) + 1) - 1],)
        return math.prod(size or 1 for size in shape)

    def coefficients(self, design: Design) -> int | None:
        """How many numbers β has here; None until the shape is known."""
        return None if self.feature_shape is None else (int(design.whitening.shape[1]) + 1) * self.features


@dataclass(frozen=True)
class Plan:
    """What `normalize` does to a network, as a table to read: `print(plan)`.

    Attributes:
        places: Where the layers go.
        design: Their design.
        layer: Which layer.
        norms: Where LayerNorm goes; at a place of a layer it comes before the layer.
        rows: How many numbers the layer keeps for each feature.
    """

    places: tuple[Place, ...]
    design: Design
    layer: str
    norms: tuple[Place, ...] = ()
    rows: int = 0

    def __str__(self) -> str:
        head = ("path", "module", "features", "coefficients", "bytes", "action")
        rows = [head]
        alone = [place for place in self.norms if place.path not in {place.path for place in self.places}]
        for place in (*self.places, *alone):
            count = 0 if place in alone else None if place.feature_shape is None else self.rows * place.features
            shape = place.feature_shape
            rows.append(
                (
                    place.path,
                    place.module,
                    "at first forward" if shape is None else "×".join("?" if s is None else str(s) for s in shape),
                    "?" if count is None else f"{count:,}",
                    "?" if count is None else f"{4 * count:,}",
                    self._action(place),
                )
            )
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        return "\n".join("  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)

    def _action(self, place: Place) -> str:
        names = ["layer_norm"] if any(norm.path == place.path for norm in self.norms) else []
        names += [self.layer] if place in self.places else []
        words = [f"insert {' and '.join(names)} {place.where}"]
        if place.part:
            words.append(f"on output{place.part} only")
        if place.share and place.feature_shape is not None:
            words.append("positions share")
        return ", ".join(words)


@dataclass(frozen=True)
class Observed:
    """One call of a module, as the example showed it."""

    features: Tensor
    part: str


def observe(
    network: nn.Module, modules: Mapping[str, nn.Module], example: Any, where: str
) -> dict[str, list[Observed]]:
    """Run the network once on an example, without changing it, and collect the features at each module.

    Args:
        network: Run in eval mode and without gradients; its modes and the random state are restored.
        modules: Where to look.
        example: One batch: a tensor, a tuple of positional or a mapping of keyword arguments.
        where: "after" or "before" the module.
    """
    seen: dict[str, list[Observed]] = {path: [] for path in modules}
    modes = {module: module.training for module in network.modules()}

    def look(path: str, module: nn.Module, value: object) -> None:
        seen[path].append(Observed(features_of(value, path, where), part_of(value) if where == "after" else ""))

    try:
        with torch.no_grad(), torch.random.fork_rng(), watching(modules, where, look):
            network.eval()
            if isinstance(example, Mapping):
                network(**example)
            else:
                network(*(example if isinstance(example, tuple | list) else (example,)))
    except DeconfoundError:
        raise
    except Exception as error:
        error.add_note("The network was run on `example` to find its features: pass one batch of inputs that it reads.")
        raise
    finally:
        for module, mode in modes.items():
            module.training = mode
    return seen


def refuse_lazy(network: nn.Module) -> None:
    """A network whose parameters do not exist yet cannot be planned for."""
    lazy = [name for name, parameter in network.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise OptionError(
            f"network must be built before layers are attached; got uninitialised {lazy[0]!r}. "
            "Run one forward of the network first."
        )


def place(
    path: str, module: nn.Module, where: str, share: str | None, sequence_axis: int, seen: list[Observed] | None
) -> Place:
    """The place for one module, with its shape if an example was run."""
    name = type(module).__name__
    planned = Place(path, name, where, share=share, batch_axis=sequence_axis)
    if seen is None:
        return planned
    if not seen:
        raise OptionError(
            f"module {path!r} must be called by the network's forward; got no call of {name}. "
            "Its weights may be read directly by the module around it: choose that one."
        )
    if len(seen) > 1:
        raise OptionError(
            f"module {path!r} must be called once per forward; got {len(seen)} calls of {name}. A layer there "
            "would mix different features: choose modules that are called once."
        )
    return shaped(replace(planned, part=seen[0].part), module, seen[0].features)


def shaped(planned: Place, module: nn.Module, features: Tensor) -> Place:
    """The place with what its features show: shape, samples' axis, and whether positions share coefficients."""
    if features.ndim < 2 or not features.is_floating_point():
        raise ShapeError(
            f"module {planned.path!r} must have floating-point features of shape (n, …); got {features.dtype} "
            f"of shape {tuple(features.shape)}. Choose another module."
        )
    sequence = is_sequence(module, features)
    axis = planned.batch_axis if sequence else 0
    share = ("positions" if sequence else None) if planned.share == "auto" else planned.share
    channel = -1 if sequence else 1
    sizes: list[int | None] = [size for index, size in enumerate(features.shape) if index != axis]
    if share:
        kept = channel % features.ndim - 1
        sizes = [size if index == kept else None for index, size in enumerate(sizes)]
    return replace(planned, feature_shape=tuple(sizes), share=share, channel_axis=channel, batch_axis=axis)
