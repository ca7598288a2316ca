"""Which reader opens the data of a config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from deconfound.data import Source, open_dataset, open_table, reads_files
from deconfound.data import open_source as open_any
from deconfound.data.datasets import check_items
from deconfound.design.table import category_columns
from deconfound.errors import OptionError

if TYPE_CHECKING:
    from deconfound.training.config import Config, DataOptions
    from deconfound.training.problem import Problem


# What `data.source` is where the source itself was given.
GIVEN = "(given)"
# What the readers are told of the section `data`.
READERS = {"source", "table", "id", "array", "features", "exclude", "options"}
# Columns that name rows, and a column that names people, where the config names none.
ID_COLUMNS = ("participant_id", "id")
PERSON_COLUMN = "person"


def given_source(source: Any, columns: Sequence[str], data: DataOptions) -> Source:
    """A source as it is, a DataFrame as a file of it, or a dataset with its entries of these names as the table."""
    if hasattr(source, "read") and hasattr(source, "table"):
        known: Source = source
        return known
    if hasattr(source, "iloc"):
        return open_table(source, id=data.id, features=data.features, exclude=data.exclude, roles=columns)
    check_items(source)
    first = source[0]
    if not isinstance(first, Mapping):
        raise OptionError(
            "source must be a dataset of dicts, or opened by deconfound.data.open_dataset; got "
            f"{type(source).__name__} with items of type {type(first).__name__}. Write open_dataset(dataset, table=…), "
            "or columns={name: place} instead of a table."
        )
    return open_dataset(source, columns=[name for name in dict.fromkeys(columns) if name in first])


def with_categories(config: Config, given: Any) -> Config:
    """The config with `data.types` of what a DataFrame calls categories: confounds, and labels of more than two levels.

    A label of two levels has two classes whatever its type.
    """
    if not hasattr(given, "iloc"):
        return config
    labels = [name for name in config.data.labels if name in given.columns and given[name].nunique() > 2]
    categories = category_columns(given, [*config.design.confound_columns, *labels])
    return config.updated(data={"types": {**dict.fromkeys(categories, "categorical"), **config.data.types}})


def open_source(data: DataOptions, roles: Sequence[str], terms: Sequence[str]) -> Source:
    """Open what `data.source` names; columns with roles (labels, confounds and the like) are no features.

    `terms` are the columns of the design, which are read by their values even where they name people.
    """
    if data.source == GIVEN:
        raise OptionError(
            "the data of this run were given in Python; got none here. Call dc.fit or dc.compare with source=… again."
        )
    return open_any(**data.model_dump(include=READERS), roles=roles, text=_names_only(data, terms))


def _names_only(data: DataOptions, terms: Sequence[str]) -> list[str]:
    """Columns that name rows or people and are nothing else: as numbers they would lose their leading zeros."""
    used = {*data.labels, *terms, *(data.features or ())}
    named = (data.id, data.person, *ID_COLUMNS, PERSON_COLUMN)
    return [name for name in dict.fromkeys(named) if name and name not in used]


def skipping_bad_scans(data: DataOptions) -> DataOptions:
    """The section with bad files left out, where single files of its source may be bad: images or scans."""
    if data.source == GIVEN or not reads_files(data.source, data.options):
        return data
    return data.model_copy(update={"options": {**data.options, "skip_bad": True}})


def current_fingerprint(problem: Problem) -> str:
    """The digest of the data as they are now."""
    known = getattr(problem.source, "current_fingerprint", None)
    fingerprint: str = problem.source.fingerprint if known is None else known()
    return fingerprint
