"""`deconfound init`: a commented config for a table, after a look at it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from deconfound.cli.options import SkipBad, listed, show_warnings
from deconfound.errors import OptionError


def init(
    table: Annotated[Path, typer.Argument(help="CSV, TSV, Parquet or XLSX with labels and confounds.")],
    label: Annotated[str, typer.Option(help="Column to predict; several with commas.")],
    confounds: Annotated[str, typer.Option(help="Columns to remove: age,sex,site or 'spline(age),\"head size, mm\"'.")],
    source: Annotated[
        Path | None,
        typer.Option(
            "--source", "--images", help="Features, NPY, NPZ, a folder of images or scans, if not in the table."
        ),
    ] = None,
    person: Annotated[str | None, typer.Option(help="Column that names the person of a row.")] = None,
    id: Annotated[str | None, typer.Option(help="Column that joins source and table.")] = None,
    out: Annotated[Path, typer.Option(help="Config to write.")] = Path("config.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the config.")] = False,
    skip_bad: SkipBad = False,
) -> None:
    """Look at a table, say what is worth knowing, and write a config to start from.

    A JSON schema is written beside the config: editors complete and check its keys by it.

    [bold]Examples[/]

    deconfound init table.csv --label dx --confounds age,sex,site

    deconfound init labels.csv --images photographs/ --label lesion --confounds age,clinic

    deconfound init participants.tsv --source features.csv --label diagnosis --confounds 'site,spline(age),sex'
    """
    from deconfound.data.files import write_text
    from deconfound.training import start_config

    console = Console()
    if out.exists() and not force:
        raise OptionError(f"--out must be a new file; got {out}, which is there. Add --force to overwrite it.")
    schema = out.with_name(f"{out.stem}.schema.json")
    with show_warnings(console), console.status("looking at the table"):
        made = start_config(
            table, listed(label), listed(confounds), source, person, id, skip_bad=skip_bad, schema=schema.name
        )
    write_text(out, made.text)
    write_text(schema, made.schema)
    for line in made.noticed:
        console.print(f"• {line}", highlight=False, markup=False)
    console.print(f"wrote {out}; next: deconfound fit {out}", highlight=False, markup=False, soft_wrap=True)
