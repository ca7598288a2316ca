"""What the commands share: options, and how warnings and verdicts are shown."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deconfound.errors import DeconfoundWarning, OptionError


def complete_override(incomplete: str) -> list[str]:
    """Completions of `method=…`, for a shell."""
    from deconfound.methods import METHODS

    return [f"method={name}" for name in METHODS if f"method={name}".startswith(incomplete)]


def complete_methods(incomplete: str) -> list[str]:
    """Completions of the last of several methods between commas."""
    from deconfound.methods import METHODS

    head, comma, last = incomplete.rpartition(",")
    return [f"{head}{comma}{name}" for name in METHODS if name.startswith(last)]


ConfigPath = Annotated[str, typer.Argument(help="YAML file, as `deconfound init` writes it.", metavar="CONFIG")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Changes of the config: training.lr=0.01 splits.folds=10",
        metavar="[KEY=VALUE]…",
        autocompletion=complete_override,
    ),
]
Jobs = Annotated[int, typer.Option("--jobs", "-j", help="Folds that run at a time; -1 is one per core.")]
Slurm = Annotated[
    bool, typer.Option("--slurm", help="Send the folds to a SLURM cluster as an array, and wait for them.")
]
SkipBad = Annotated[
    bool,
    typer.Option("--skip-bad", help="Go on without images or scans that cannot be read or have no row; name them."),
]
SlurmWith = Annotated[
    list[str] | None,
    typer.Option(help="Parameter of submitit: slurm_partition=gpu, timeout_min=120, gpus_per_node=1, mem_gb=16."),
]
_STYLES = {
    "strong": "bold red",
    "clear": "red",
    "weak": "yellow",
    "faint": "yellow",
    "none found": "green",
    "no answer": "dim",
}


@contextmanager
def show_warnings(console: Console) -> Iterator[None]:
    """What the library warns of, on the console: once each, without the line of code that it comes from."""
    shown: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", DeconfoundWarning)
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any, **named: Any) -> None:
            if not issubclass(category, DeconfoundWarning):
                others(message, category, *rest, **named)
            elif str(message) not in shown:
                shown.add(str(message))
                console.print(f"[yellow]warning:[/] {escape(str(message))}", highlight=False, soft_wrap=True)

        warnings.showwarning = show
        yield


@contextmanager
def resumable(console: Console) -> Iterator[None]:
    """A run that is stopped by hand says how to go on; its second and later processes say nothing at all."""
    from deconfound.training.fold import follower

    console.quiet = follower()
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:  # Lightning makes the second of the first
        console.print("stopped; give the same command again to go on from here", style="yellow")
        raise typer.Exit(130) from stop


def listed(text: str) -> list[str]:
    """The parts of an option between commas; what stands in brackets or double quotes is left whole."""
    parts, depth, quoted = [""], 0, False
    for letter in text:
        quoted ^= letter == '"'
        depth += 0 if quoted else (letter == "(") - (letter == ")")
        if letter == "," and depth <= 0 and not quoted:
            parts.append("")
        elif letter != '"':
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def pairs(given: Sequence[str], option: str) -> dict[str, str]:
    """The parts of an option that is given as NAME=VALUE, several times."""
    wrong = [item for item in given if "=" not in item]
    if wrong:
        raise OptionError(f"{option} must be NAME=VALUE; got {wrong[0]!r}.")
    names = [item.split("=", 1)[0] for item in given]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise OptionError(f"{option} must give each name once; got {twice[0]!r} twice.")
    return dict(item.split("=", 1) for item in given)


def cluster_of(slurm: bool, given: Sequence[str] | None) -> Any:
    """The cluster that the options name, or None."""
    from deconfound.errors import need
    from deconfound.training.workers import Cluster

    if not slurm and not given:
        return None
    parameters: dict[str, Any] = {}
    for item in given or ():
        key, equals, value = item.partition("=")
        if not equals:
            raise OptionError(f"--slurm-with must be KEY=VALUE; got {item!r}.")
        parameters[key] = need("yaml", "train").safe_load(value)
    name = str(parameters.pop("cluster", "slurm"))
    return Cluster(name, parameters, 5.0 if name == "slurm" else 0.2)


def show_verdicts(console: Console, result: Any) -> None:
    """How the outputs were read, a line per verdict, then the notes of an audit."""
    for note in result.notes:
        if note.kind == "reading":
            console.print(f"read as: {note.text}", highlight=False, markup=False)
    several = len({item.space for item in result.verdicts}) > 1
    view = Table(title="What is left", title_justify="left")
    for name in ("model", "confound", "verdict", "dcor²", "95 % interval", "p", "p (Holm)"):
        view.add_column(name)
    for item in result.verdicts:
        numbers = ["–"] * 4
        if item.statistic:
            where = {"model": item.model, "space": item.space, "confound": item.confound}
            main = result.where(**where, statistic=item.statistic)[0]
            reach = f"{main.low:.3f} to {main.high:.3f}" if main.low == main.low else "–"
            numbers = [f"{main.value:.3f}", reach, f"{item.p:.3f}", f"{item.p_holm:.3f}"]
        who = f"{item.model} ({item.space})" if several else item.model
        view.add_row(escape(who), escape(item.confound), f"[{_STYLES[item.grade]}]{item.grade}[/]", *numbers)
    console.print(view)
    for note in result.notes:
        if note.kind != "reading":
            style = "yellow" if note.severity == "warning" else "dim"
            console.print(f"{note.severity}: {note.text}", style=style, highlight=False, markup=False)


def number(value: float | None, sign: str = "") -> str:
    """Three digits, or a dash where there is no value."""
    return "–" if value is None else f"{value:{sign}.3f}"
