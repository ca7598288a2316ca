"""One mode for the whole suite: other processors, imitated by the last bit of each product."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "dot", "convolution", "linear")


class LastBit(TorchDispatchMode):
    """Move the last bit of each product by a rule of its shapes, as another BLAS may.

    A product of ten rows then differs from the same product in parts of four, four and two rows.
    """

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: Any = None
    ) -> Any:
        result = function(*arguments, **(keywords or {}))
        if function.__name__.split(".")[0] not in PRODUCTS or not isinstance(result, torch.Tensor):
            return result
        sizes = [tuple(value.shape) for value in arguments if isinstance(value, torch.Tensor)]
        direction = float("inf") if hash(tuple(sizes)) % 2 else float("-inf")
        moved = torch.nextafter(result, torch.full_like(result, direction))
        return torch.where(result == 0, result, moved)  # Zeros stay zeros on every processor.


@pytest.fixture(autouse=True)
def other_processor(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the test under `LastBit` if DECONFOUND_MOVE_LAST_BIT is set; compilers refuse modes."""
    is_compiled = request.path.name in ("test_compile.py", "test_export.py")
    if is_compiled or not os.environ.get("DECONFOUND_MOVE_LAST_BIT"):
        yield
        return
    with LastBit():
        yield
