"""A first config for a table, and what is worth knowing about it before training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deconfound.auditing.table_checks import SITES, repeated_people
from deconfound.data import FileSource, Source, check_finite
from deconfound.design.table import absent
from deconfound.errors import TableError
from deconfound.training.checks import number_faults, role_faults
from deconfound.training.config import DataOptions
from deconfound.training.first_look import FirstLook, rare_levels
from deconfound.training.sources import open_source, skipping_bad_scans
from deconfound.training.tasks import read_task
from deconfound.training.template import FirstConfig, schema_text
from deconfound.training.terms import columns_of, read_terms


@dataclass(frozen=True)
class Start:
    """A config to start from.

    Attributes:
        text: YAML with comments.
        schema: The JSON schema of a config, for editors.
        noticed: Sentences about the data.
    """

    text: str
    schema: str
    noticed: tuple[str, ...]


def start_config(
    table: str | Path,
    labels: Sequence[str],
    confounds: Sequence[str],
    source: str | Path | None = None,
    person: str | None = None,
    id: str | None = None,
    folder: str = "runs/run",
    *,
    skip_bad: bool = False,
    schema: str = "",
) -> Start:
    """Look at a table and write the config of a first run.

    Args:
        table: The table with labels and confounds, and with the features unless `source` has them.
        labels: Columns to predict.
        confounds: Columns or terms to remove.
        source: Features, an array, or a folder of images or scans.
        person: The column that names the person of a row.
        id: The column that joins `source` and `table`.
        folder: Where the run will lie.
        skip_bad: Leave out scans that cannot be read or have no row of the table, and warn.
        schema: Where the schema will lie; the first line of the config names it.
    """
    terms, faults = read_terms(confounds, "--confounds")
    columns = columns_of(terms)
    samples, beside = str(source or table), str(table) if source else None
    data = DataOptions(source=samples, label=tuple(labels), table=beside, id=id, person=person)
    data = skipping_bad_scans(data) if skip_bad else data
    opened = open_source(data, [*labels, *columns, *([person] if person else [])], columns)
    data = data.model_copy(update={"options": {**_reading(opened), **data.options}})
    named = {"--label": labels, "--confounds": columns, "--person": [person], "--id": [id]}
    for option, names in named.items():
        faults += absent([name for name in names if name], list(opened.table), option)
    faults += [] if confounds else ["--confounds must name at least one column; got none."]
    faults += role_faults(labels, columns, "--label") + number_faults(opened.table, columns)
    if getattr(opened, "names", ()):
        try:
            check_finite(opened, "mean")
        except TableError as error:
            faults += str(error).split("\n")
    if faults:
        raise TableError("\n".join(faults))
    task, codes = read_task(opened.table, labels, "auto", {}, None)
    look = FirstLook(opened, task, codes, confounds, terms, columns, person or repeated_people(opened.table), id)
    data = data.model_copy(update={"types": dict.fromkeys(look.site_codes, "categorical")})
    site = next((name for name in columns if name.lower() in SITES), None)
    first = FirstConfig(
        data, task, tuple(opened.shape), confounds, look.person, site, folder, any(look.missing.values()),
        look.empty_features, bool(rare_levels(look)),
    )  # fmt: skip
    return Start(first.text(schema), schema_text(), tuple(look.sentences()))


def _reading(source: Source) -> dict[str, Any]:
    """How files are read, for the config to show what can be changed."""
    if not isinstance(source, FileSource):
        return {}
    channels, *edges = source.shape
    if len(edges) == 3:
        return {"shape": edges, "fit": "resample"}
    return {"size": edges, "channels": "rgb" if channels == 3 else "grey", "resize": "stretch"}
