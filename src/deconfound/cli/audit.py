"""`deconfound audit`: what is left of each confound in predictions that lie in files."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from deconfound.cli.options import listed, pairs, show_verdicts
from deconfound.cli.progress import stage_progress
from deconfound.errors import DeconfoundWarning, OptionError

FILES = ("audit.html", "audit.json", "audit.csv", "card.md")


Predictions = Annotated[
    list[Path], typer.Argument(help="CSV, TSV, Parquet, NPY or NPZ, one file per model; or folders of runs.")
]
Outputs = Annotated[str, typer.Option(help="What the model put out; by default columns called logit…, score…, pred…")]
Card = Annotated[
    Path | None, typer.Option(help="Write a model card here: .md, or .card.json; the author completes it.")
]


def audit(
    predictions: Predictions,
    confounds: Annotated[str, typer.Option(help="Columns that should not be there: age,sex,site")] = "",
    labels: Annotated[str, typer.Option(help="Columns that the model predicts: dx")] = "",
    table: Annotated[Path | None, typer.Option(help="Table with confounds and labels, if not in predictions.")] = None,
    features: Annotated[Path | None, typer.Option(help="Hidden features to measure too: NPY, NPZ, CSV.")] = None,
    outputs: Outputs = "",
    model: Annotated[list[str] | None, typer.Option(help="Several models in one file: NAME=COLUMN,COLUMN")] = None,
    id: Annotated[str | None, typer.Option(help="Column that joins the files.")] = None,
    person: Annotated[str | None, typer.Option(help="Column that names the person of a row.")] = None,
    fold: Annotated[str | None, typer.Option(help="Column with the test fold of a row.")] = None,
    type: Annotated[list[str] | None, typer.Option(help="COLUMN=categorical or COLUMN=numeric.")] = None,
    positive: Annotated[list[str] | None, typer.Option(help="LABEL=LEVEL that a high score stands for.")] = None,
    classes: Annotated[str, typer.Option(help="Class of each output column, in their order: AD,CN,MCI")] = "",
    out: Annotated[Path, typer.Option(help="Folder for audit.html, .json, .csv and card.md.")] = Path("audit"),
    html: Annotated[Path | None, typer.Option(help="Write the page here; then only what is named is written.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the numbers here.")] = None,
    card: Card = None,
    figures: Annotated[Path | None, typer.Option(help="Folder for every figure as SVG and PNG.")] = None,
    permutations: Annotated[int, typer.Option(help="Permuted tables for each p-value.")] = 499,
    bootstraps: Annotated[int, typer.Option(help="Bootstrap samples for each interval.")] = 500,
    seed: Annotated[int, typer.Option(help="Seed of every random draw.")] = 0,
    check: Annotated[bool, typer.Option(help="Exit with code 1 where a confound is still there.")] = False,
) -> None:
    """Measure what is left of each confound, and write a page about it.

    Of a folder that `deconfound fit` wrote, the out-of-fold outputs are measured; it says itself what are confounds,
    labels and people. Nothing in it is executed.

    [bold]Examples[/]

    deconfound audit predictions.csv --confounds age,sex,site --labels dx

    deconfound audit plain.csv pmdn.csv --table people.csv --id participant_id --confounds age,site --labels dx

    deconfound audit runs/run
    """
    from deconfound.auditing import audit_files

    files = _named(html, json, card) or [out / name for name in FILES]
    lists = {"confounds": confounds, "labels": labels, "outputs": outputs, "classes": classes}
    named = {"model": model, "type": type, "positive": positive}
    asked: dict[str, Any] = {"table": table, "features": features, "id": id, "person": person, "fold": fold}
    if all(path.is_dir() for path in predictions):
        from deconfound.training.outputs import audit_folders

        for option, value in (lists | asked | named).items():
            if value:
                raise OptionError(
                    f"--{option} must be left out with the folder of a run; got {value!r}. The run says it itself."
                )
        measure = partial(audit_folders, predictions)
    elif confounds:
        columns: dict[str, Any] = {name: listed(text) for name, text in lists.items()}
        models, types, high = (pairs(given or [], f"--{option}") for option, given in named.items())
        columns |= {"models": {name: listed(text) for name, text in models.items()}, "types": types, "positive": high}
        measure = partial(audit_files, predictions, **columns, **asked)
    else:
        raise OptionError("--confounds must be given with files; got none. Name the columns that should not be there.")
    console = Console()
    with _folders(path.parent for path in files):
        with stage_progress(console) as progress, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeconfoundWarning)  # the notes of the result say the same
            result = measure(permutations=permutations, bootstraps=bootstraps, seed=seed, progress=progress)
        for path in files:
            result.save(path)
    drawn = [] if figures is None else result.save_figures(figures)
    show_verdicts(console, result)
    more = f" and {len(drawn)} figures in {figures}" if drawn else ""
    console.print(f"wrote {', '.join(map(str, files))}{more}", highlight=False, markup=False, soft_wrap=True)
    if check and any(item.found for item in result.verdicts):
        raise typer.Exit(1)


def _named(html: Path | None, json: Path | None, card: Path | None) -> list[Path]:
    """The files that were asked for by name, each with an ending that says what it holds."""
    wanted = {"--html": (html, (".html",)), "--json": (json, (".json",)), "--card": (card, (".md", ".card.json"))}
    for option, (path, endings) in wanted.items():
        if path is not None and not str(path).endswith(endings):
            raise OptionError(f"{option} must be a file that ends in {' or '.join(endings)}; got {path}.")
    return [path for path, _ in wanted.values() if path is not None]


@contextmanager
def _folders(wanted: Iterable[Path]) -> Iterator[None]:
    """Folders that are made first, lest something is measured that cannot be written; those of a refused audit go."""
    lacking = [each for folder in wanted for each in reversed((folder, *folder.parents)) if not each.is_dir()]
    with ExitStack() as undo:
        for each in dict.fromkeys(lacking):
            try:
                each.mkdir(exist_ok=True)
            except OSError as error:
                got = f"{each} ({error.strerror})"
                raise OptionError(f"--out must be a folder that can be written; got {got}.") from error
            undo.callback(_remove_empty, each)
        yield
        undo.pop_all()


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # somebody has put something into it
        folder.rmdir()
