"""Samples: one array and one table with the same rows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from deconfound.data.features import FeatureEncoder

SampleKind = Literal["table", "array", "image", "scan"]


@dataclass(frozen=True, eq=False)
class Samples:
    """n samples: what the network reads, and what is known about them.

    Attributes:
        x: Shape `(n, …)`: uint8 for pictures and scans, channels first, float32 for others. It may
            be a read-only memory map. A missing cell of a table is NaN; other kinds have none.
        table: The raw columns, n rows numbered from 0.
        ids: The id of each sample, shape `(n,)`: unique texts, which keep their leading zeros.
        features: How columns of the table became x; None if x does not come from a table.
        kind: "table", "array", "image" or "scan".
        fingerprint: A digest of x, the ids and the columns with a role. It is the same on another
            machine with the same data.
        notes: Sentences about rows and files that were left out, and about resizing.

    Example:
        >>> from deconfound.data import open_samples
        >>> people = {"id": ["007", "008", "009"], "dx": [1, 0, 0], "volume": [5.5, 4.0, 4.5]}
        >>> samples = open_samples(people, id="id", roles=["dx"])
        >>> samples.x.tolist(), samples.ids.tolist(), samples.features.names
        ([[5.5], [4.0], [4.5]], ['007', '008', '009'], ('volume',))
        >>> samples.take([2]).table["dx"].tolist()
        [0]
    """

    x: NDArray[Any]
    table: pd.DataFrame
    ids: NDArray[np.object_]
    features: FeatureEncoder | None
    kind: SampleKind
    fingerprint: str
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.x)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self.x.shape[1:]

    def take(self, rows: ArrayLike) -> Samples:
        """Return these samples, in this order.

        Args:
            rows: Row numbers, or one truth value per row. A memory map is copied into memory.
        """
        places = np.arange(len(self))[np.asarray(rows)]
        table = self.table.iloc[places].reset_index(drop=True)
        fingerprint = digest(self.fingerprint, str(places.tolist()))
        x, ids = self.x[places], self.ids[places]
        return replace(self, x=x, table=table, ids=ids, fingerprint=fingerprint)


def digest(*parts: str) -> str:
    """Return the SHA-256 of some texts; each one's length counts, so that none run together."""
    return hashlib.sha256("".join(f"{len(part)}:{part}" for part in parts).encode()).hexdigest()


def digest_array(x: NDArray[Any]) -> str:
    """Return a digest of an array's type, shape and values."""
    content = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
    return digest(x.dtype.str, str(x.shape), hashlib.sha256(content.data).hexdigest())
