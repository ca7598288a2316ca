"""`deconfound init`, `fit`, `compare` and `predict`: from a table to a run and its predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from deconfound.cli import options
from deconfound.cli.options import echo
from deconfound.cli.progress import show_progress
from deconfound.errors import OptionError

if TYPE_CHECKING:
    import pandas as pd

    from deconfound.runs import Comparison, Run

ConfigFile = Annotated[Path, typer.Argument(help="A config, as `deconfound init` writes it.")]
Changes = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="training.epochs=50 method=mdn")
]
Jobs = Annotated[int, typer.Option(help="Processes that train folds; -1 is one per core.")]
Part = Annotated[
    str | None, typer.Option(metavar="I/N", help="Train the I-th of N parts of the folds: 3/20")
]
Scheduler = Annotated[str | None, typer.Option(help="Address of a Dask scheduler: tcp://…")]
NoAudit = Annotated[bool, typer.Option("--no-audit", help="Measure the performance alone.")]
Table = Annotated[Path, typer.Argument(help="CSV, TSV, Parquet or XLSX, or a BIDS folder.")]


@options.command
def init(  # noqa: PLR0913
    table: Table,
    labels: Annotated[list[str], typer.Option("--label", help="Column to predict. Repeat it.")],
    confounds: options.Confounds,
    source: options.Source = None,
    id: options.Id = None,
    person: options.Person = None,
    positive: options.Positive = None,
    types: options.Types = None,
    leave_out: Annotated[
        str | None, typer.Option(help="Test on each level of this column, such as the site.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The config.")] = Path("config.yaml"),
    force: options.Force = False,
    quiet: options.Quiet = False,
) -> None:
    """Look at a table, and write a config that runs without an edit."""
    from deconfound.runs import propose

    kinds: dict[str, Any] = options.parse_pairs(types, "--type")
    with show_progress(quiet) as on_progress:
        proposal = propose(
            source or table,
            table if source else None,
            labels=labels,
            confounds=confounds,
            id=id,
            person=person,
            positive=positive,
            types=kinds,
            leave_out=leave_out,
            out=out,
            on_progress=on_progress,
        )
    proposal.save(out, force)
    if not quiet:
        notes = [options.translate(note, init) for note in proposal.notes]
        echo("\n".join([*notes, f"Wrote {out}. Next: deconfound fit {out}"]))


@options.command
def fit(  # noqa: PLR0913
    config: ConfigFile,
    changes: Changes = None,
    jobs: Jobs = 1,
    part: Part = None,
    scheduler: Scheduler = None,
    no_audit: NoAudit = False,
    force: options.Force = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train the folds of a config, and audit their predictions. Given again, it goes on."""
    from deconfound.runs import fit as fit_config

    with show_progress(quiet) as on_progress:
        run = fit_config(
            config,
            *(changes or ()),
            jobs=jobs,
            part=_read_part(part),
            scheduler=scheduler,
            audit=not no_audit,
            force=force,
            on_progress=on_progress,
        )
    _show(run, run.to_frame(), as_json, quiet)


@options.command
def compare(  # noqa: PLR0913
    config: ConfigFile,
    changes: Changes = None,
    seeds: Annotated[str | None, typer.Option(help="Train each variant with each: 0,1,2")] = None,
    jobs: Jobs = 1,
    part: Part = None,
    scheduler: Scheduler = None,
    no_audit: NoAudit = False,
    force: options.Force = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train the variants of a config on the same folds, and compare their honest scores."""
    from deconfound.runs import compare as compare_config

    with show_progress(quiet) as on_progress:
        comparison = compare_config(
            config,
            *(changes or ()),
            *([f"compare.seeds=[{seeds}]"] if seeds else ()),
            jobs=jobs,
            part=_read_part(part),
            scheduler=scheduler,
            audit=not no_audit,
            force=force,
            on_progress=on_progress,
        )
    _show(comparison, comparison.to_frame(), as_json, quiet)


@options.command
def predict(  # noqa: PLR0913
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    table: Table,
    source: options.Source = None,
    fold: Annotated[str | None, typer.Option(help="The fold whose model predicts.")] = None,
    unseen: Annotated[
        Literal["error", "mean"] | None, typer.Option(help="What a new site is.")
    ] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Run code that the run names.")] = False,
    out: Annotated[Path, typer.Option(help="A .csv file.")] = Path("predictions.csv"),
    force: options.Force = False,
    quiet: options.Quiet = False,
) -> None:
    """Predict new rows with the models of a run."""
    from deconfound.runs import predict as predict_rows

    given: dict[str, Any] = {"fold": fold, "unseen": unseen, "trust": trust, "force": force}
    frame = predict_rows(run, table, source, out=out, **given)
    if not quiet:
        echo(f"Wrote {out}: {len(frame):,} rows")


def _read_part(part: str | None) -> tuple[int, int] | None:
    """Return the numbers of --part 3/20."""
    if part is None:
        return None
    number, _, count = part.partition("/")
    if not (number.isdigit() and count.isdigit()):
        raise OptionError(f"--part must be I/N, such as 3/20; got {part!r}.")
    return int(number), int(count)


def _show(result: Run | Comparison, frame: pd.DataFrame, as_json: bool, quiet: bool) -> None:
    """Print failures, then the answer and a table, and end with 1 if a fold failed."""
    for place, reason in result.failures.items():
        echo(f"Failed: {place}: {reason}", is_error=True)
    if as_json:
        content = {"folder": str(result.folder), "results": None}
        if len(frame):
            text = (result.folder / "results.json").read_text(encoding="utf-8")
            content["results"] = json.loads(text)
        echo(json.dumps(content, indent=1))
    elif not quiet and len(frame):
        report = result.folder / "report.html"
        table = options.format_table(frame.to_dict("records"))
        echo("\n".join([*filter(None, result.summary), "", table, "", f"Wrote {report}"]))
    elif not quiet:
        echo(f"Folds in {result.folder} are open: other parts train them.")
    if result.failures:
        raise typer.Exit(options.FINDING)
