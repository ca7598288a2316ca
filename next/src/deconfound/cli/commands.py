"""`deconfound init`, `fit`, `compare` and `predict`: from a table to a run and its predictions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from deconfound.cli import options
from deconfound.cli.options import echo
from deconfound.cli.progress import show_progress
from deconfound.errors import OptionError

if TYPE_CHECKING:
    from deconfound.runs import Comparison, Run

FIT = "Train the folds of a config, and audit their predictions. Given again, it goes on."
COMPARE = "Train the variants of a config on the same folds, and compare their honest scores."

Table = Annotated[Path, typer.Argument(help="CSV, TSV, Parquet or XLSX, or a BIDS folder.")]


def init(  # noqa: PLR0913
    context: typer.Context,
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
        notes = [options.translate(note, context) for note in proposal.notes]
        echo("\n".join([*notes, f"Wrote {out}. Next: deconfound fit {out}"]))


def train(  # noqa: PLR0913
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="A config, as `deconfound init` writes it.")],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="training.epochs=50 method=mdn"),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes that train folds; -1 is one per core.")] = 1,
    part: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Train the I-th of N parts of the folds: 3/20"),
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Address of a Dask scheduler: tcp://…")
    ] = None,
    no_audit: Annotated[
        bool, typer.Option("--no-audit", help="Measure the performance alone.")
    ] = False,
    force: options.Force = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Run `fit` or `compare`, which have the same options."""
    from deconfound import runs

    function: Any = runs.compare if context.command.name == "compare" else runs.fit
    with show_progress(quiet) as on_progress:
        result = function(
            config,
            *(changes or ()),
            jobs=jobs,
            part=_read_part(part),
            scheduler=scheduler,
            audit=not no_audit,
            force=force,
            on_progress=on_progress,
        )
    _show(result, as_json, quiet)
    if result.failures:
        raise typer.Exit(options.FINDING)


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
    match = re.fullmatch(r"(\d+)/(\d+)", part)
    if match is None:
        raise OptionError(f"--part must be I/N, such as 3/20; got {part!r}.")
    return int(match[1]), int(match[2])


def _show(result: Run | Comparison, as_json: bool, quiet: bool) -> None:
    """Print failures, then the answer and a table."""
    for place, reason in result.failures.items():
        echo(f"Failed: {place}: {reason}", is_error=True)
    rows = result.to_frame().to_dict("records")
    if as_json:
        path = result.folder / "results.json"
        results = json.loads(path.read_text(encoding="utf-8")) if rows else None
        echo(json.dumps({"folder": str(result.folder), "results": results}, indent=1))
    elif rows and not quiet:
        report = result.folder / "report.html"
        lines = [*result.summary, "", options.format_table(rows), "", f"Wrote {report}"]
        echo("\n".join(lines))
    elif not quiet:
        echo(f"Folds in {result.folder} are open: other parts train them.")
