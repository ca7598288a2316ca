"""What an estimator is asked to do: its options checked, its labels as a task, its network made."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from deconfound.design.codecs import Kind
from deconfound.errors import OptionError, ShapeError, did_you_mean
from deconfound.methods import Criterion
from deconfound.networks import MLP
from deconfound.surgery.attach import LAYERS
from deconfound.training.losses import bce, cross_entropy, mse

Builder = Callable[[Any, int], nn.Module]


def _whole(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= 1


def _real(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real)


_RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("epochs", "batch_size", "patience"), ("a whole number of at least 1", _whole)),
    "lr": ("a number above 0", lambda value: _real(value) and value > 0),
    "weight_decay": ("a number of at least 0", lambda value: _real(value) and value >= 0),
    "validation_fraction": ("a number between 0 and 1", lambda value: _real(value) and 0 < value < 1),
    "hidden": ("a sequence of sizes", lambda value: not isinstance(value, str) and all(map(_whole, value))),
    "refit": ("True or False", lambda value: isinstance(value, bool | np.bool_)),
    "layer": (f"None or one of {', '.join(map(repr, LAYERS))}", lambda value: value is None or value in LAYERS),
}


def check_options(estimator: Any) -> None:
    """Refuse options outside their range, all in one error."""
    faults = []
    for name, (rule, holds) in _RULES.items():
        value = getattr(estimator, name)
        try:
            fine = holds(value)
        except TypeError:
            fine = False
        if not fine:
            hint = did_you_mean(value, LAYERS) if name == "layer" and isinstance(value, str) else ""
            faults.append(f"{name} must be {rule}; got {value!r}.{hint}")
    if faults:
        raise OptionError("\n".join(faults))


def as_device(name: str) -> torch.device:
    """A device by its name; "auto" is a GPU, or the CPU where there is none."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=torch.device(name)).device
    except (RuntimeError, TypeError, AssertionError) as fault:  # torch without CUDA says so by an assertion
        raise OptionError(
            f"device must be 'auto' or a device of torch that is here ('cpu', 'cuda:0'); got {name!r}."
        ) from fault


@dataclass(frozen=True)
class Task:
    """The labels of a fit for a network: class numbers from 0, or (without classes) numbers of mean 0 and sd 1."""

    target: NDArray[Any]
    classes: int | None = None

    @property
    def kind(self) -> Kind:
        """How a design reads the labels."""
        return "numeric" if self.classes is None else "categorical"

    @property
    def outputs(self) -> int:
        """How many numbers per sample a network that the estimator builds returns; two classes take one logit."""
        return 1 if self.classes is None or self.classes == 2 else self.classes

    @property
    def criterion(self) -> Criterion:
        """The loss."""
        return mse if self.classes is None else _class_loss

    def check_output(self, output: Tensor) -> None:
        """Refuse a network whose outputs cannot be compared with the labels."""
        width = output.shape[1] if output.ndim == 2 else 1 if output.ndim == 1 else None
        allowed = {1} if self.classes is None else {1, 2} if self.classes == 2 else {self.classes}
        if width not in allowed:
            wanted = " or ".join(f"(n, {size})" for size in sorted(allowed))
            what = "a numeric label" if self.classes is None else f"{self.classes} classes"
            raise ShapeError(f"the network must return {wanted} for {what}; got shape {tuple(output.shape)}.")

    def hold_out(
        self, fraction: float, rng: np.random.RandomState, weight: NDArray[np.float64] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Row numbers to train and to validate on: the same share of each class, but one row at least trains.

        Only rows with a weight above 0 are drawn and counted, so that the validation loss has a weight; a class with
        too few of them for its share stays in training, and where every class does, nothing is held out.
        """
        groups = np.zeros(len(self.target), dtype=np.int64) if self.classes is None else self.target
        counted = np.ones(len(groups), dtype=bool) if weight is None else weight > 0
        held = np.zeros(len(groups), dtype=bool)
        for group in np.unique(groups[counted]):
            rows = rng.permutation(np.flatnonzero(counted & (groups == group)))
            held[rows[: min(round(fraction * len(rows)), len(rows) - 1)]] = True
        return torch.from_numpy(np.flatnonzero(~held)), torch.from_numpy(np.flatnonzero(held))


def make_network(
    network: nn.Module | Builder | None,
    hidden: Sequence[int],
    shape: tuple[int, ...],
    outputs: int,
    device: torch.device,
) -> nn.Module:
    """A network that nobody else holds, on the device: a copy of a module, what a function or class builds, or an MLP.

    A function is given the one size of a sample, or the whole shape if it has several axes.
    """
    if network is None:
        made: nn.Module = MLP(shape, outputs, hidden, dropout=0.0)
        # Double precision, as scikit-learn's own: one row at a time and all at once then agree.
        made = made if device.type == "mps" else made.double()
    elif isinstance(network, nn.Module):
        made = copy.deepcopy(network)
    elif callable(network):
        made = network(shape[0] if len(shape) == 1 else shape, outputs)
        if not isinstance(made, nn.Module):
            raise OptionError(f"network must build a torch.nn.Module; got {type(made).__name__}.")
    else:
        raise OptionError(f"network must be a torch.nn.Module or a function that builds one; got {network!r}.")
    return made.to(device)


def home(network: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Where the network is, and the floating point type that it computes in."""
    found = next((p for p in network.parameters() if p.is_floating_point()), torch.empty(0))
    return found.device, found.dtype


def _class_loss(output: Tensor, target: Tensor) -> Tensor:
    return bce(output, target) if output.ndim == 1 or output.shape[1] == 1 else cross_entropy(output, target)
