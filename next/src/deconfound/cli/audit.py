"""`deconfound audit`: is a model confounded? Answered for predictions in files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deconfound.cli import options
from deconfound.cli.options import CLEAN, FINDING, UNKNOWN, echo
from deconfound.cli.progress import show_progress
from deconfound.errors import OptionError

if TYPE_CHECKING:
    from deconfound.auditing import Audit

Predictions = Annotated[
    list[Path], typer.Argument(help="CSV, TSV, Parquet, NPY or NPZ: one file per model.")
]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", metavar="NAME=COLUMN", help="Several models in one file."),
]
Out = Annotated[
    Path | None, typer.Option(help="The page: .html, or .json or .csv.", show_default="audit.html")
]


def audit(  # noqa: PLR0913
    context: typer.Context,
    predictions: Predictions,
    confounds: options.Confounds,
    labels: options.Labels = None,
    table: Annotated[Path | None, typer.Option(help="Table of people.")] = None,
    id: options.Id = None,
    features: Annotated[Path | None, typer.Option(help="Features to audit as well.")] = None,
    models: Models = None,
    outputs: Annotated[str | None, typer.Option(help="Columns of outputs: prob_AD,prob_CN")] = None,
    classes: Annotated[str | None, typer.Option(help="Class of each column: AD,CN")] = None,
    positive: options.Positive = None,
    person: options.Person = None,
    fold: Annotated[str | None, typer.Option(help="Column of test folds.")] = None,
    weight: Annotated[str | None, typer.Option(help="Column of row weights.")] = None,
    types: options.Types = None,
    planted: Annotated[
        float, typer.Option(min=0, help="Size of planted leaks in sd; 0 leaves them out.")
    ] = 0.5,
    permutations: Annotated[int, typer.Option(help="Permutations for each p-value.")] = 499,
    bootstraps: Annotated[int, typer.Option(help="Samples for each interval.")] = 500,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
    out: Out = None,
    force: options.Force = False,
    as_json: options.Json = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="End with 1 for a leak, 3 if none could be excluded, else 0."),
    ] = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure what is left of confounds in predictions, and write a page about it.

    Example: deconfound audit predictions.csv --table people.csv --id participant_id
    --confound age --confound site --label dx --positive AD
    """
    if check and not planted > 0:
        raise OptionError("--check needs planted leaks. Write --planted .5 or another size.")
    target = out if out is not None or as_json else Path("audit.html")
    _check_target(target, [*predictions, *filter(None, (table, features))], force)
    from deconfound.auditing import audit_files
    from deconfound.metrics import Resampling

    columns = options.parse_pairs(models, "--model")
    kinds: dict[str, Any] = options.parse_pairs(types, "--type")
    with show_progress(quiet) as on_progress:
        result = audit_files(
            predictions,
            confounds=confounds,
            labels=labels or (),
            table=table,
            id=id,
            features=features,
            models={name: options.split_list(text) for name, text in columns.items()},
            outputs=options.split_list(outputs),
            classes=options.split_list(classes),
            positive=positive,
            person=person,
            fold=fold,
            weight=weight,
            types=kinds,
            resampling=Resampling(permutations, bootstraps, seed),
            planted=planted or None,
            on_progress=on_progress,
        )
    if target is not None:
        result.save(target)
    if as_json:
        echo(json.dumps(result.to_dict(), indent=1, allow_nan=False))
    elif not quiet:
        lines = [*result.summary, "", options.format_table(_list_verdicts(result)), ""]
        # The answer has some of the notes already.
        notes = [str(note) for note in result.notes if note.text not in result.summary[2]]
        lines += [*result.about.reading, *(options.translate(note, context) for note in notes)]
        echo("\n".join([*lines, f"Wrote {target}"]))
    if check:
        code, reason = _judge(result)
        echo(reason, is_error=as_json)
        raise typer.Exit(code)


def _check_target(target: Path | None, read: Iterable[Path], force: bool) -> None:
    """Refuse a file that must not be written, before anything is measured."""
    if target is None:
        return
    if target.suffix not in (".html", ".json", ".csv"):
        raise OptionError(f"--out {str(target)!r} must end with .html, .json or .csv.")
    if not target.parent.is_dir() or not os.access(target.parent, os.W_OK):
        raise OptionError(f"--out cannot write into the folder {str(target.parent)!r}.")
    if not target.exists():
        return
    if any(path.exists() and path.samefile(target) for path in read):
        raise OptionError(f"--out {str(target)!r} is read by this command. Write another name.")
    if target.is_dir() or not force:
        raise OptionError(f"--out {str(target)!r} exists. Write --force or another name.")


def _judge(result: Audit) -> tuple[int, str]:
    """Return the code of `--check` and the sentence that states its reason."""
    from deconfound.auditing import LEAST_POWER

    leaks, unknown, blind = [], [], []
    for verdict in result.verdicts:
        pair = f"{verdict.confound!r} in {verdict.model!r}"
        # A leak may be in one label group alone, where fewer people show it.
        power = min((plant.share.value for plant in verdict.sensitivity), default=0.0)
        if verdict.answer == "found":
            leaks.append(pair)
        elif verdict.answer == "no answer":
            unknown.append(pair)
        elif power < LEAST_POWER:
            blind.append(pair)
    if leaks:
        return FINDING, f"Check failed: leaks were found ({', '.join(leaks)})."
    if unknown:
        return UNKNOWN, f"Check impossible: confounds have no answer ({', '.join(unknown)})."
    if blind:
        return UNKNOWN, (
            f"Check impossible: leaks of {result.about.planted} sd in all rows or in one label "
            f"group would be found in fewer than {LEAST_POWER:.0%} of trials ({', '.join(blind)})."
        )
    return CLEAN, "Check passed: no leak was found, but planted leaks were."


def _list_verdicts(result: Audit) -> list[dict[Any, Any]]:
    """Return the rows of the table of verdicts."""
    from deconfound.auditing import format_interval, format_p

    frame = result.to_frame()
    frame["grade"] = frame["grade"].where(frame["answer"] == "found", "–")
    intervals = map(format_interval, frame["low"], frame["high"])
    frame["95 % interval"] = [interval or "–" for interval in intervals]
    frame["p (Holm)"] = frame["holm"].map(format_p)
    names = ["model", "confound", "answer", "grade", "effect", "95 % interval", "p (Holm)"]
    return frame[names].to_dict("records")
