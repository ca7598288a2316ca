"""What every measure asks of its input: finite numbers, one row per sample, one device."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from deconfound.design.table import as_array, in_rows
from deconfound.errors import ShapeError

if TYPE_CHECKING:
    Samples = Tensor | np.ndarray[Any, Any]


def tensor(values: "Samples", name: str) -> Tensor:
    """Numbers as a tensor without NaN or infinities; a number that is not there is no measurement."""
    if not isinstance(values, Tensor):
        values = torch.from_numpy(as_array(values, name))
    if values.is_complex():
        raise ShapeError(f"{name} must hold real numbers; got {values.dtype}.")
    if not bool(values.isfinite().all()):
        broken = (~values.isfinite()).reshape(len(values) if values.ndim else 1, -1).any(1)
        where = in_rows([int(row) for row in broken.nonzero()[:, 0]])
        raise ShapeError(f"{name} must be finite; got NaN or infinity {where}. Leave these rows out.")
    return values


def codes_of(values: "Samples | None", n: int, name: str) -> Tensor | None:
    """One code per row, such as the person of a row; None stays None."""
    if values is None:
        return None
    found = tensor(values, name)
    if found.shape != (n,):
        raise ShapeError(f"{name} must hold one value per row; got {tuple(found.shape)} for {n} rows.")
    codes: Tensor = torch.unique(found, return_inverse=True)[1]
    return codes


def matrix(values: "Samples", name: str) -> Tensor:
    """`(n,)` or `(n, columns)` numbers as a floating `(n, columns)` tensor."""
    out = tensor(values, name)
    if out.ndim not in (1, 2):
        raise ShapeError(f"{name} must be (n,) or (n, columns); got shape {tuple(out.shape)}. Flatten each sample.")
    out = out if out.is_floating_point() else out.double()
    out = out.float() if out.dtype in (torch.float16, torch.bfloat16) else out
    return out[:, None] if out.ndim == 1 else out


def samples(x: "Samples", y: "Samples", *, at_least: int) -> tuple[Tensor, Tensor]:
    """Two floating `(n, columns)` tensors of one length and device, or an error that says what is wrong."""
    x, y = matrix(x, "x"), matrix(y, "y")
    if len(x) != len(y):
        raise ShapeError(f"x and y must have one row per sample each; got {len(x)} and {len(y)} rows.")
    if len(x) < at_least:
        raise ShapeError(f"x and y must have at least {at_least} rows; got {len(x)}. The estimator has no value below.")
    if x.device != y.device:
        raise ShapeError(f"x and y must be on one device; got {x.device} and {y.device}. Move one of them.")
    dtype = torch.promote_types(x.dtype, y.dtype)
    return x.to(dtype), y.to(dtype)


def ordinary(x: Tensor) -> Tensor:
    """Values of ordinary size: what has no unit is the same for them, and squares of 1e200 are not numbers."""
    largest = float(x.detach().abs().max()) if x.numel() else 0.0
    return x / largest if largest > 1e100 or 0 < largest < 1e-100 else x


def same_shape(first: "Samples", second: "Samples", names: tuple[str, str]) -> tuple[Tensor, Tensor]:
    """Two finite tensors of exactly one shape: broadcasting would compare rows that do not belong together."""
    a, b = tensor(first, names[0]), tensor(second, names[1])
    if a.shape != b.shape:
        raise ShapeError(f"{names[0]} and {names[1]} must have one shape; got {tuple(a.shape)} and {tuple(b.shape)}.")
    if not a.numel():
        raise ShapeError(f"{names[0]} and {names[1]} must hold at least one row; got none.")
    return a, b


def zero_or_one(values: Tensor, name: str) -> Tensor:
    """0/1 or boolean values as float64."""
    numbers = values.double()
    if not bool(((numbers == 0) | (numbers == 1)).all()):
        found = sorted({float(value) for value in torch.unique(numbers)[:5]})
        raise ShapeError(f"{name} must be 0 or 1 in every row; got {found}. Compare with the positive level first.")
    return numbers
