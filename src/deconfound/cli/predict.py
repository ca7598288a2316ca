"""`deconfound predict`: a finished run's answer for new people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from deconfound.cli.running import SkipBad, telling


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a run, as `deconfound fit` wrote it.")],
    table: Annotated[
        Path, typer.Argument(help="New rows: CSV, TSV or Parquet with features and confounds, no labels.")
    ],
    images: Annotated[
        Path | None,
        typer.Option(help="Where the samples are, if not in the table: features, NPY, NPZ, a folder of scans."),
    ] = None,
    fold: Annotated[int | None, typer.Option(help="Use one fold's model instead of the mean over all.")] = None,
    out: Annotated[Path, typer.Option(help="CSV to write.")] = Path("predictions.csv"),
    skip_bad: SkipBad = False,
) -> None:
    """Predict new people with the models of a run.

    Each fold's own design, scaling and network are used; the score is the mean over folds, with its standard deviation.

    [bold]Examples[/]

    deconfound predict runs/run new_table.csv

    deconfound predict runs/run new_people.tsv --images new_scans/ --out answers.csv
    """
    from deconfound.data.files import write_text
    from deconfound.training.predicting import predict as predict_rows

    console = Console()
    with telling(console), console.status("predicting"):
        found = predict_rows(run, table, images, fold, skip_bad=skip_bad)
    write_text(out, found.to_csv())
    for line in found.assumed:
        console.print(line, style="yellow", highlight=False, markup=False)
    if found.seen:
        console.print(
            f"{found.seen} of {len(found.ids)} rows carry ids that the run has seen: their scores are not those of new "
            "people",
            style="yellow",
        )
    console.print(f"wrote {out}, {len(found.ids)} rows", highlight=False, markup=False)
