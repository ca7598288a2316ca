"""`deconfound predict`: a finished run's answer for new people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from deconfound.cli.options import SkipBad, show_warnings
from deconfound.cli.progress import run_progress

Unseen = Literal["mean", "adapt", "error"]


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a run, as `deconfound fit` wrote it.")],
    table: Annotated[
        Path, typer.Argument(help="New rows: CSV, TSV, Parquet or XLSX with features and confounds, no labels.")
    ],
    images: Annotated[
        Path | None,
        typer.Option(help="Where the samples are, if not in the table: features, NPY, NPZ, a folder of scans."),
    ] = None,
    fold: Annotated[int | None, typer.Option(help="Use one fold's model instead of the mean over all.")] = None,
    unseen: Annotated[
        Unseen | None,
        typer.Option(help="A site that the run has not seen: an error, the mean of known ones, or adapt to its rows."),
    ] = None,
    out: Annotated[Path, typer.Option(help="CSV to write.")] = Path("predictions.csv"),
    skip_bad: SkipBad = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Execute the network's own code (module:callable) that the run names.")
    ] = False,
    guard_formulas: Annotated[
        bool, typer.Option("--guard-formulas", help="Put ' before text that a spreadsheet would take for a formula.")
    ] = False,
) -> None:
    """Predict new people with the models of a run.

    Each fold's own design, scaling and network are used; the score is the mean over folds, with its standard deviation.

    [bold]Examples[/]

    deconfound predict runs/run new_table.csv

    deconfound predict runs/run new_people.tsv --images new_scans/ --out answers.csv

    deconfound predict runs/run new_site.csv --unseen adapt
    """
    from deconfound.training import predict as predict_rows

    console = Console()
    with show_warnings(console), run_progress(console) as progress:
        found = predict_rows(
            run, table, images, fold=fold, unseen=unseen, trust=trust, skip_bad=skip_bad, progress=progress
        )
    found.to_csv(out, guard_formulas=guard_formulas)
    for line in found.assumed:
        console.print(line, style="yellow", highlight=False, markup=False)
    if found.without_score:
        console.print(
            f"{found.without_score} of {len(found.ids)} rows have no finite score, and so no class", style="yellow"
        )
    if found.seen:
        console.print(
            f"{found.seen} of {len(found.ids)} rows carry ids, or are of people, that the run has seen: their scores "
            "are not those of new people",
            style="yellow",
        )
    rows = "row" if len(found.ids) == 1 else "rows"
    console.print(f"wrote {out}, {len(found.ids)} {rows}", highlight=False, markup=False, soft_wrap=True)
