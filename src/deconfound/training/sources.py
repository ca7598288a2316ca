"""Which reader opens the data of a config."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from deconfound.data.sources import Source, open_array, open_table
from deconfound.data.tables import TABLES
from deconfound.errors import OptionError
from deconfound.training.config import Data

_SCANS = "deconfound.data.scans"


def reads_scans(data: Data) -> bool:
    """Whether a config names scans: neither an array nor a table, unless options make a list of paths of it."""
    kind = Path(data.source).suffix.lower()
    return kind not in (".npy", ".npz") and (kind not in TABLES or bool(data.options))


def open_source(data: Data, roles: Sequence[str]) -> Source:
    """Open what `data.source` names: a table, an array, or else scans.

    Args:
        data: The section of the config.
        roles: Columns that are labels, confounds and the like, and so no features.
    """
    path = Path(data.source)
    if not reads_scans(data):
        if path.suffix.lower() in TABLES:
            return open_table(path, table=data.table, id=data.id, features=data.features, roles=roles)
        return open_array(path, table=data.table, id=data.id, array=data.array)
    try:
        scans = import_module(_SCANS)
    except ImportError as error:
        raise OptionError(
            f"data.source must be a table ({', '.join(TABLES)}) or an array (.npy, .npz) here; got {data.source!r}, "
            f"and the reader of scans cannot be loaded ({error})."
        ) from error
    source: Source = scans.open_scans(path, table=data.table, **data.options)
    return source
