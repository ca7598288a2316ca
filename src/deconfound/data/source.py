"""What a run reads from: samples by row number, beside a table with one row for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class Source(Protocol):
    """Samples and their table. Tables of features, arrays, and folders of scans all look like this to a run.

    Attributes:
        table: Column name → values, one per sample.
        shape: The shape of one sample, without the batch axis.
        fingerprint: A digest of the content: a run that is resumed refuses other data.
    """

    table: Mapping[str, Any]
    shape: tuple[int, ...]
    fingerprint: str

    def __len__(self) -> int: ...

    def read(self, rows: np.ndarray) -> np.ndarray:
        """The samples of these rows, float32, `(len(rows), *shape)`."""
        ...
