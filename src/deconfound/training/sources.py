"""Which reader opens the data of a config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from deconfound.data import Source, open_dataset, open_table, reads_files
from deconfound.data import open_source as open_any
from deconfound.data.datasets import check_items
from deconfound.data.features import as_levels, level_features
from deconfound.design import Design
from deconfound.design.table import Table, as_column, category_columns, is_missing, plain
from deconfound.design.terms import source_columns
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


def given_source(source: Any, columns: Sequence[str], data: DataOptions, text: Sequence[str] = ()) -> Source:
    """A source as it is, a DataFrame as a file of it, or a dataset with its entries of these names as the table.

    Columns of `text` stay text in a DataFrame.
    """
    if hasattr(source, "read") and hasattr(source, "table"):
        known: Source = source
        return known
    if hasattr(source, "iloc"):
        return open_table(source, id=data.id, features=data.features, exclude=data.exclude, roles=columns, text=text)
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


def open_source(data: DataOptions, roles: Sequence[str], terms: Sequence[str], text: Sequence[str] = ()) -> Source:
    """Open what `data.source` names; columns with roles (labels, confounds and the like) are no features.

    `terms` are the columns of the design, which are read by their values even where they name people; those of `text`
    stay text.
    """
    if data.source == GIVEN:
        raise OptionError(
            "the data of this run were given in Python; got none here. Call dc.fit or dc.compare with source=… again."
        )
    return open_any(**data.model_dump(include=READERS), roles=roles, text=[*_names_only(data, terms), *text])


def _names_only(data: DataOptions, terms: Sequence[str]) -> list[str]:
    """Columns that name rows or people and are nothing else: as numbers they would lose their leading zeros."""
    used = {*data.labels, *terms, *(data.features or ())}
    named = (data.id, data.person, *ID_COLUMNS, PERSON_COLUMN)
    return [name for name in dict.fromkeys(named) if name and name not in used]


def text_columns(designs: Sequence[Design], inputs: Sequence[str]) -> list[str]:
    """Columns that were text in training: a new table in which all their cells are numbers holds names all the same."""
    levels = {name for design in designs for name, known in design.levels.items() if {str} & {*map(type, known)}}
    return sorted(levels | {name for name in level_features(inputs) if name not in inputs})


def as_in_training(table: Table, design: Design, labels: bool) -> dict[str, Any]:
    """A table whose cells are the design's levels where they stand for them, without its keep columns unless `labels`.

    No prediction needs a label, and a class that the run has not seen must not stop one.
    """
    confounds = source_columns(design.confounds)
    left_out = set() if labels else {*source_columns(design.keep)} - {*confounds}
    columns = {str(name): table[name] for name in table.keys() if str(name) not in left_out}  # noqa: SIM118
    for name, levels in design.levels.items():
        if name in columns:
            columns[name] = as_levels(as_column(columns[name], name), levels)
    return columns


def without_label(table: Mapping[str, Any], design: Design) -> NDArray[np.bool_]:
    """Which rows have no label: an empty cell, or a class that the design has not seen."""
    found = np.zeros(len(next(iter(table.values()))), dtype=bool)
    for name in source_columns(design.keep):
        if name in table and name not in source_columns(design.confounds):
            known = design.levels.get(name)
            cells = as_column(table[name], name).tolist()
            found |= [is_missing(cell) or (known is not None and plain(cell) not in known) for cell in cells]
    return found


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
