"""What `normalize` is going to do, found by one run of the network on an example."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from deconfound.attach.features import (
    all_tensors,
    call_network,
    describe_part,
    evaluation_mode,
    find_features,
    nesting_encoders,
    set_nested_tensors,
)
from deconfound.errors import DeconfoundError, OptionError, ShapeError

Where = Literal["after", "before"]
Per = Literal["channel", "feature"]

# What names of modules with channels on axis 1 contain, and of modules with channels last.
CHANNELS_FIRST = ("Conv", "Pool", "BatchNorm", "InstanceNorm", "GroupNorm")
CHANNELS_LAST = ("Linear", "LayerNorm", "Embedding", "LSTM", "GRU", "RNN", "Attention")


@dataclass(frozen=True)
class InsertionPoint:
    """A module at which a layer is inserted.

    Attributes:
        name: The module's name in the network.
        module: The module's type.
        where: Whether the layer stands after or before the module.
        part: The part of the module's output that is normalised, such as "[0]"; "" for a tensor.
        features: The shape of one sample's features.
        shape: The shape of the coefficients; axes of size 1 are shared.
        device: The device of the features.
        dtype: The type of the features.
    """

    name: str
    module: str
    where: Where
    part: str
    features: tuple[int, ...]
    shape: tuple[int, ...]
    device: torch.device
    dtype: torch.dtype


@dataclass(frozen=True)
class Plan:
    """The layers that `normalize` inserts; `print(plan)` shows them as a table.

    Attributes:
        layer: The kind of layer.
        points: Where the layers go, in the order in which features reach them.
        rows_of_beta: The number of coefficients for each feature.
    """

    layer: str
    points: tuple[InsertionPoint, ...]
    rows_of_beta: int

    def __str__(self) -> str:
        table = [("module", "type", "features", "coefficients", "layer")]
        for point in self.points:
            sizes = " × ".join(map(str, point.features))
            count = self.rows_of_beta * torch.Size(point.shape).numel()
            action = f"{self.layer} {point.where}" + (f" output{point.part}" if point.part else "")
            table.append((point.name, point.module, sizes, f"{count:,}", action))
        widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
        return "\n".join(lines)


@dataclass(frozen=True)
class Call:
    """One call of a module in the example run."""

    name: str
    features: Tensor
    part: str


def find_points(
    network: nn.Module,
    modules: Mapping[str, nn.Module],
    example: Any,
    *,
    where: Where,
    per: Per,
    channel_axis: int | None,
) -> tuple[InsertionPoint, ...]:
    """Run the example once and return where layers go, or raise all faults of these modules."""
    calls = _run_example(network, modules, example, where)
    # Inputs without samples, such as a scalar option, do not tell the number of rows.
    rows = next((tensor.shape[0] for tensor in all_tensors(example) if tensor.ndim), 0)
    faults = [
        fault
        for name, module in modules.items()
        if (fault := _find_fault(name, module, [call for call in calls if call.name == name], rows))
    ]
    if faults:
        names = [call.name for call in calls]
        once = [name for name in modules if names.count(name) == 1]
        if once and len(once) < len(modules):
            faults.append(f"These modules are called once: at={once}.")
        raise OptionError("\n".join(faults))
    return tuple(
        _make_point(call, modules[call.name], where=where, per=per, channel_axis=channel_axis)
        for call in calls
    )


def _run_example(
    network: nn.Module, modules: Mapping[str, nn.Module], example: Any, where: Where
) -> list[Call]:
    """Return the calls of these modules in order. Nothing of the network is changed."""
    calls: list[Call] = []

    def record(name: str, value: object) -> None:
        features = find_features(value, name)
        calls.append(Call(name, features, describe_part(value) if where == "after" else ""))

    encoders = nesting_encoders(network)
    set_nested_tensors(encoders, False)
    try:
        with (
            torch.no_grad(),
            torch.random.fork_rng(),
            evaluation_mode(network),
            watching(modules, where, record),
        ):
            call_network(network, example)
    # Our own errors need no advice about the example.
    except DeconfoundError:
        raise
    except Exception as error:
        error.add_note(
            "The network was run on `example` to find its features. Pass one batch of its inputs: "
            "a tensor, a tuple of inputs, or a dict of keyword inputs."
        )
        raise
    finally:
        set_nested_tensors(encoders, True)
    return calls


@contextmanager
def watching(
    modules: Mapping[str, nn.Module], where: Where, record: Callable[[str, Any], None]
) -> Iterator[None]:
    """Call `record(name, value)` with each module's output, or its inputs, inside this context."""
    hooks = [(module, _Recorder(name, record)) for name, module in modules.items()]
    handles = [register_hook(module, where, hook) for module, hook in hooks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def register_hook(module: nn.Module, where: Where, hook: Callable[..., Any]) -> RemovableHandle:
    """Register a hook that receives a module and its inputs, and after the module its output."""
    if where == "after":
        return module.register_forward_hook(hook)
    return module.register_forward_pre_hook(hook)


@dataclass(frozen=True)
class _Recorder:
    """A hook that records a module's output, or before the module its inputs."""

    name: str
    record: Callable[[str, Any], None]

    def __call__(self, module: nn.Module, *values: Any) -> None:
        self.record(self.name, values[-1])


def _find_fault(name: str, module: nn.Module, calls: list[Call], rows: int) -> str | None:
    """Return why no layer can stand at a module, or None."""
    if len(calls) != 1:
        times = f"called {len(calls)} times" if calls else "never called"
        return (
            f"Module {name!r} is {times} in one forward pass of the example; a layer needs a "
            "module that is called once."
        )
    features = calls[0].features
    if features.ndim < 2 or not features.is_floating_point():
        return (
            f"Module {name!r} must have floating-point features of shape (n, …); got "
            f"{features.dtype} of shape {tuple(features.shape)}. Choose another module."
        )
    if features.shape[0] != rows or getattr(module, "batch_first", True) is False:
        return (
            f"Module {name!r} must have samples on axis 0; got features of shape "
            f"{tuple(features.shape)} for {rows} samples. Build it with batch_first=True, or "
            "choose a module behind it."
        )
    return None


def _make_point(
    call: Call, module: nn.Module, *, where: Where, per: Per, channel_axis: int | None
) -> InsertionPoint:
    sizes = tuple(call.features.shape[1:])
    shape = sizes
    if per == "channel" and len(sizes) > 1:
        axis = _guess_channel_axis(call, module) if channel_axis is None else channel_axis
        if axis not in (*range(1, len(sizes) + 1), -1):
            raise OptionError(
                f"channel_axis must be an axis of the features at {call.name!r}, 1 to "
                f"{len(sizes)}; got {axis}."
            )
        axis = axis % (len(sizes) + 1)
        shape = tuple(size if index == axis else 1 for index, size in enumerate(sizes, start=1))
    name, features = type(module).__name__, call.features
    return InsertionPoint(
        call.name, name, where, call.part, sizes, shape, features.device, features.dtype
    )


def _guess_channel_axis(call: Call, module: nn.Module) -> int:
    """Return 1 after convolutions, −1 after linear and recurrent layers, 1 for other images."""
    types = [type(part).__name__ for part in module.modules()]
    is_first = any(word in name for name in types for word in CHANNELS_FIRST)
    is_last = any(word in name for name in types for word in CHANNELS_LAST)
    if is_first != is_last:
        return 1 if is_first else -1
    if call.features.ndim > 3:
        return 1
    raise ShapeError(
        f"Features of shape {tuple(call.features.shape)} at {call.name!r} "
        f"({type(module).__name__}) may have their channels on axis 1 or 2. "
        "Write channel_axis=1 for (n, channels, length) or channel_axis=-1 for sequences."
    )
