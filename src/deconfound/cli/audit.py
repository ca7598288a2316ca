"""`deconfound audit`: what is left of each confound in predictions that lie in files."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deconfound.cli.bars import passing
from deconfound.errors import DeconfoundWarning, OptionError

_STYLES = {"left": "bold red", "trace": "yellow", "clear": "green", "unanswerable": "dim"}
_WORDS = {"left": "still there", "trace": "trace", "clear": "no sign", "unanswerable": "no answer"}


def audit(
    predictions: Annotated[list[Path], typer.Argument(help="CSV, TSV, Parquet, NPY or NPZ; one file per model.")],
    confounds: Annotated[str, typer.Option(help="Columns that should not be there: age,sex,site")],
    labels: Annotated[str, typer.Option(help="Columns that the model predicts: dx")] = "",
    table: Annotated[Path | None, typer.Option(help="Table with confounds and labels, if not in predictions.")] = None,
    features: Annotated[Path | None, typer.Option(help="Hidden features to measure too: NPY, NPZ, CSV.")] = None,
    outputs: Annotated[
        str, typer.Option(help="What the model put out; by default columns called logit…, score…, pred…")
    ] = "",
    model: Annotated[list[str] | None, typer.Option(help="Several models in one file: NAME=COLUMN,COLUMN")] = None,
    id: Annotated[str | None, typer.Option(help="Column that joins the files.")] = None,
    person: Annotated[str | None, typer.Option(help="Column that names the person of a row.")] = None,
    fold: Annotated[str | None, typer.Option(help="Column with the test fold of a row.")] = None,
    type: Annotated[list[str] | None, typer.Option(help="COLUMN=categorical or COLUMN=numeric.")] = None,
    positive: Annotated[list[str] | None, typer.Option(help="LABEL=LEVEL that a high score stands for.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for audit.html, audit.json and audit.csv.")] = Path("audit"),
    permutations: Annotated[int, typer.Option(help="Permuted tables for each p-value.")] = 499,
    bootstraps: Annotated[int, typer.Option(help="Bootstrap samples for each interval.")] = 500,
    seed: Annotated[int, typer.Option(help="Seed of every random draw.")] = 0,
    check: Annotated[bool, typer.Option(help="Exit with code 1 where a confound is still there.")] = False,
) -> None:
    """Measure what is left of each confound, and write a page about it.

    [bold]Examples[/]

    deconfound audit predictions.csv --confounds age,sex,site --labels dx

    deconfound audit plain.csv pmdn.csv --table people.csv --id participant_id --confounds age,site --labels dx
    """
    from deconfound.auditing import audit as auditing
    from deconfound.cli.audit_inputs import Files, gather, listed, pairs

    console = Console()
    names, targets = listed(confounds), listed(labels)
    files = Files(predictions, table, features, id, [name for name in (id, person) if name])
    roles = [*names, *targets, *(name for name in (person, fold) if name)]
    given = gather(files, roles, listed(outputs), model or [])
    types, levels = pairs(type or [], "--type"), pairs(positive or [], "--positive")
    _make(out)
    bar = passing(console)
    with bar, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconfoundWarning)  # the notes of the result say the same
        task = bar.add_task("reading", total=None)
        result = auditing.audit(
            given.models,
            given.columns,
            confounds=names,
            labels=targets,
            person=person,
            features=given.features,
            fold=fold,
            types=types,
            positive=levels,
            permutations=permutations,
            bootstraps=bootstraps,
            seed=seed,
            progress=lambda what, done, total: bar.update(task, description=what, completed=done, total=total),
        )
    for ending in ("html", "json", "csv"):
        result.save(out / f"audit.{ending}")
    _show(console, result)
    console.print(f"wrote {out / 'audit.html'}, audit.json, audit.csv", highlight=False, markup=False)
    if check and any(item.answer == "left" for item in result.verdicts):
        raise typer.Exit(1)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"--out must be a folder that can be written; got {folder} ({error.strerror}).") from error


def _show(console: Console, result: Any) -> None:
    several = len({item.space for item in result.verdicts}) > 1
    view = Table(title="What is left", title_justify="left")
    for name in ("model", "confound", "verdict", "dcor²", "95 % interval", "p"):
        view.add_column(name)
    for item in result.verdicts:
        main = result.where(model=item.model, space=item.space, confound=item.confound)[0]
        word = f"[{_STYLES[item.answer]}]{_WORDS[item.answer]}[/]"
        numbers = [f"{main.value:.3f}", f"{main.low:.3f} to {main.high:.3f}", f"{main.p:.3f}"]
        who = f"{item.model} ({item.space})" if several else item.model
        view.add_row(escape(who), escape(item.confound), word, *numbers)
    console.print(view)
    for note in result.notes:
        style = "yellow" if note.severity == "warning" else "dim"
        console.print(f"{note.severity}: {note.text}", style=style, highlight=False, markup=False)
