"""The frame of the command line: its commands, its version, and its streams."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from typing import Annotated

import typer

from deconfound import __version__
from deconfound.cli import commands
from deconfound.cli.audit import audit
from deconfound.cli.options import Command, echo

app = typer.Typer(
    name="deconfound",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Names of columns may contain brackets, which rich would take for styles.
    rich_markup_mode=None,
)
app.command(cls=Command)(commands.init)
app.command("fit", cls=Command, help=commands.FIT)(commands.train)
app.command("compare", cls=Command, help=commands.COMPARE)(commands.train)
app.command(cls=Command)(commands.predict)
app.command(cls=Command)(audit)
# Other packages, such as the lab, add commands of their own.
for entry in entry_points(group="deconfound.commands"):
    for function in entry.load():
        app.command(cls=Command)(function)


def _show_version(should_show: bool) -> None:
    if should_show:
        echo(f"deconfound {__version__}")
        raise typer.Exit


@app.callback()
def frame(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Remove known confounds from neural networks, and measure what is left."""


def main() -> None:
    """Run the command that the arguments of this process name."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a letter of a column name gets a question mark.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    app()
