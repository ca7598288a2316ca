"""The command line: thin commands over public functions, one file each."""

from __future__ import annotations

import sys
import traceback
from importlib.metadata import entry_points
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from deconfound import __version__
from deconfound.cli.audit import audit
from deconfound.cli.compare import compare
from deconfound.cli.fit import fit
from deconfound.cli.init import init
from deconfound.cli.predict import predict
from deconfound.errors import DeconfoundError

__all__ = ["app", "main"]

app = typer.Typer(
    name="deconfound",
    help="Train networks whose features do not carry known confounders, and measure what is left.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.command()(audit)
app.command()(init)
app.command()(fit)
app.command()(compare)
app.command()(predict)
for _entry in sorted(entry_points(group="deconfound.commands"), key=lambda entry: entry.name):
    _command = _entry.load()
    if isinstance(_command, typer.Typer):
        app.add_typer(_command, name=_entry.name)
    else:
        app.command(_entry.name)(_command)

_debug = False


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"deconfound {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Read the options that all commands share."""
    global _debug
    _debug = debug


def main() -> None:
    """Run a command; an error is one message, and exit code 2 where it is one that the library expects, else 1."""
    try:
        app()
    except Exception as error:
        if _debug:
            traceback.print_exc()
        text, expected = str(error), isinstance(error, DeconfoundError)
        if not expected:
            hint = "This is a fault of deconfound: please report it; `deconfound --debug …` shows where it happened."
            text = f"{type(error).__name__}: {text}\n{hint}"
        Console(stderr=True).print(f"[bold red]error:[/] {escape(text)}", highlight=False)
        sys.exit(2 if expected else 1)
