"""The shape of a layer's features: which of them share coefficients, and how they become rows."""

from __future__ import annotations

import operator
from typing import NamedTuple

from torch import Tensor

from deconfound.errors import OptionError, ShapeError


def sizes_of(shape: object) -> tuple[int | None, ...]:
    """A size or several as whole numbers, whichever library they come from; None where a size may vary."""
    several = shape if isinstance(shape, list | tuple) else (shape,)
    try:
        return tuple(None if size is None else operator.index(size) for size in several)
    except TypeError as error:
        raise OptionError(f"feature_shape must be positive numbers; got {shape!r}.") from error


class FeatureShape(NamedTuple):
    """The shape of one sample's features, and whether positions share coefficients; see `MetadataLayer`."""

    sizes: tuple[int | None, ...]
    share: str | None
    channel_axis: int

    def coefficients(self) -> tuple[int, ...]:
        """The shape of one row of β."""
        if self.share not in (None, "positions"):
            raise OptionError(f"share must be None or 'positions'; got {self.share!r}.")
        sizes = self.sizes
        if self.share == "positions":
            rank = len(sizes) + 1
            if self.channel_axis not in (*range(1, rank), *range(1 - rank, 0)):
                raise OptionError(
                    f"channel_axis must be an axis of the features, 1 to {rank - 1}; got {self.channel_axis}."
                )
            sizes = (sizes[self.channel_axis % rank - 1],)
        known = tuple(size for size in sizes if size is not None)
        if not sizes or len(known) < len(sizes) or any(size is not None and size < 1 for size in self.sizes):
            raise OptionError(
                f"feature_shape must be positive numbers; got {self.sizes}. "
                "Only sizes shared by share='positions' may be None."
            )
        return known

    def check(self, x: Tensor) -> None:
        """Refuse features of another shape or type."""
        if not hasattr(x, "is_floating_point"):
            raise ShapeError(f"features must be a tensor; got {type(x).__name__}. Write torch.as_tensor(features).")
        if not x.is_floating_point():
            raise ShapeError(f"features must be floating point; got {x.dtype}.")
        sizes = x.shape[1:]
        if sizes != self.sizes and not (
            len(sizes) == len(self.sizes)
            and all(expected in (None, actual) for expected, actual in zip(self.sizes, sizes, strict=True))
        ):
            wanted = ", ".join("any" if size is None else str(size) for size in self.sizes)
            raise ShapeError(f"features must have shape (n, {wanted}); got {tuple(x.shape)}.")
        if x.shape[0] == 0:  # len() would fix the batch size of an exported model
            raise ShapeError("features must have at least one row; got none.")

    def flatten(self, x: Tensor) -> Tensor:
        """`(n, d)`, or with shared positions `(n, d, positions)`."""
        if x.ndim == 2:
            return x
        return x.flatten(1) if self.share is None else x.movedim(self.channel_axis, 1).flatten(2)

    def unflatten(self, flat: Tensor, like: Tensor) -> Tensor:
        """The inverse of `flatten`."""
        if like.ndim == 2:
            return flat
        if self.share is None:
            return flat.reshape(like.shape)
        return flat.reshape(like.movedim(self.channel_axis, 1).shape).movedim(1, self.channel_axis)
