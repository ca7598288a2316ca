"""Which reader opens the data of a config."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deconfound.data import Source, reads_files
from deconfound.data import open_source as open_any
from deconfound.errors import OptionError

if TYPE_CHECKING:
    from deconfound.training.config import Config, DataOptions
    from deconfound.training.problem import Problem


def reads_scans(data: DataOptions) -> bool:
    """Whether a config names images or scans, of which single files may be bad."""
    return reads_files(data.source, data.options)


def open_source(data: DataOptions, roles: Sequence[str]) -> Source:
    """Open what `data.source` names: a table, an array, a folder of images, or else scans.

    Args:
        data: The section of the config.
        roles: Columns that are labels, confounds and the like, and so no features.
    """
    return open_any(
        data.source,
        table=data.table,
        id=data.id,
        array=data.array,
        features=data.features,
        exclude=data.exclude,
        roles=roles,
        options=data.options,
    )


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
