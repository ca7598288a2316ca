"""Which reader opens the data of a config."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from deconfound.data import TABLES, Source, open_array, open_table
from deconfound.errors import OptionError

if TYPE_CHECKING:
    from deconfound.training.config import Config, DataOptions
    from deconfound.training.problem import Problem

_SCANS = "deconfound.data.scans"


def reads_scans(data: DataOptions) -> bool:
    """Whether a config names scans: neither an array nor a table, unless options make a list of paths of it."""
    kind = Path(data.source).suffix.lower()
    return kind not in (".npy", ".npz") and (kind not in TABLES or bool(data.options))


def open_source(data: DataOptions, roles: Sequence[str]) -> Source:
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


def skipping_bad_scans(config: Config) -> Config:
    """The config with bad scans left out."""
    if not reads_scans(config.data):
        raise OptionError(
            f"--skip-bad must be given with scans; got data.source {config.data.source!r}, which holds none. Leave it "
            "out."
        )
    return config.updated(data={"options": {**config.data.options, "skip_bad": True}})


def current_fingerprint(problem: Problem) -> str:
    """The digest of the data's files as they lie on the disk now."""
    from deconfound.training.checks import open_data

    known = getattr(problem.source, "current_fingerprint", None)
    fingerprint: str = known() if known is not None else open_data(problem.config).fingerprint
    return fingerprint
