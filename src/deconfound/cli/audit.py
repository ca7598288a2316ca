"""`deconfound audit`: what is left of each confound in predictions that lie in files."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deconfound.cli.audit_files import (
    OUTPUT_PREFIXES,
    Columns,
    Content,
    id_column,
    matched_rows,
    read_file,
    stacked,
    usual_outputs,
)
from deconfound.cli.bars import passing
from deconfound.design.table import absent
from deconfound.errors import DeconfoundWarning, OptionError, TableError

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
    from deconfound import auditing

    console = Console()
    names, targets = _listed(confounds), _listed(labels)
    roles = [*names, *targets, *(name for name in (person, fold) if name)]
    text = [name for name in (id, person) if name]
    files = [read_file(path, text) for path in predictions]
    base = read_file(table, text) if table else files[0]
    key = id_column(id, [*files, base] if table else files)
    if key is not None and key not in text:
        files = [read_file(path, [*text, key]) for path in predictions]
        base = read_file(table, [*text, key]) if table else files[0]
    rows = matched_rows(files[0], base, key)
    columns = _roles(base, roles, rows, files[0])
    models: dict[str, Any] = {}
    for file in files:
        order = matched_rows(files[0], file, key)
        skip = {*roles, key or ""}
        models |= {name: values[order] for name, values in _models(file, _listed(outputs), model or [], skip).items()}
    hidden = _features(features, files[0], key, list(models), text) if features else None
    bar = passing(console)
    with bar, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconfoundWarning)  # the notes of the result say the same
        task = bar.add_task("reading", total=None)
        result = auditing.audit(
            models,
            columns,
            confounds=names,
            labels=targets,
            person=person,
            features=hidden,
            fold=fold,
            types=_pairs(type or [], "--type"),
            positive=_pairs(positive or [], "--positive"),
            permutations=permutations,
            bootstraps=bootstraps,
            seed=seed,
            progress=lambda what, done, total: bar.update(task, description=what, completed=done, total=total),
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"--out must be a folder that can be written; got {out} ({error.strerror}).") from error
    for ending in ("html", "json", "csv"):
        result.save(out / f"audit.{ending}")
    _show(console, result)
    console.print(f"wrote {out / 'audit.html'}, audit.json, audit.csv", highlight=False, markup=False)
    if check and any(item.answer == "left" for item in result.verdicts):
        raise typer.Exit(1)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _pairs(given: list[str], option: str) -> dict[str, str]:
    wrong = [item for item in given if "=" not in item]
    if wrong:
        raise OptionError(f"{option} must be NAME=VALUE; got {wrong[0]!r}.")
    return dict(item.split("=", 1) for item in given)


def _roles(base: Content, roles: list[str], rows: np.ndarray[Any, Any], first: Content) -> Columns:
    """The columns of confounds, labels, person and fold, in the order of the predictions."""
    faults = absent(roles, [*dict.fromkeys([*base.columns, *first.columns])], "--confounds, --labels and the like")
    if faults:
        raise TableError("\n".join(f"{base.path}: {fault}" for fault in faults))
    found = {}
    for name in roles:
        source = base.columns if name in base.columns else first.columns
        found[name] = base.columns[name][rows] if source is base.columns else first.columns[name]
    return found


def _models(file: Content, outputs: list[str], named: list[str], skip: set[str]) -> Columns:
    """Arrays of outputs by model name, from the named columns, or from those that are called like outputs."""
    if file.arrays:
        return {name or file.path.stem: array for name, array in file.arrays.items()}
    groups = {name: _listed(columns) for name, columns in _pairs(named, "--model").items()}
    if not groups:
        groups = {file.path.stem: outputs or usual_outputs(file.columns, skip)}
    for name, columns in groups.items():
        faults = absent(columns, list(file.columns), f"outputs of {name!r}")
        if faults:
            raise TableError(f"{file.path}: {faults[0]}")
        if not columns:
            others = ", ".join(c for c in file.columns if c not in skip) or "none"
            raise TableError(
                f"{file.path} must have columns of outputs called {', '.join(OUTPUT_PREFIXES[:5])}…; got {others}. "
                "Name them with --outputs."
            )
    return {name: stacked(file, columns) for name, columns in groups.items()}


def _features(path: Path, first: Content, key: str | None, models: list[str], text: list[str]) -> dict[str, Any]:
    """Features by model name; a file with one array belongs to the one model, or to all of them."""
    content = read_file(path, [*text, *([key] if key else [])])
    order = matched_rows(first, content, key if key in content.columns else None)
    if content.columns:
        numeric = [values for name, values in content.columns.items() if name != key and values.dtype.kind == "f"]
        if not numeric:
            raise TableError(f"{path} must have columns of numbers; got {', '.join(content.columns)}.")
        return {models[0] if len(models) == 1 else "features": np.column_stack(numeric)[order]}
    one = list(content.arrays) == [""]
    name = models[0] if len(models) == 1 else path.stem
    return {name if one else given: array[order] for given, array in content.arrays.items()}


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
