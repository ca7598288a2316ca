"""The frame of the command line: its commands, its version, and its streams."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from deconfound import __version__
from deconfound.cli import commands
from deconfound.cli.audit import EXAMPLE, audit
from deconfound.cli.options import echo

app = typer.Typer(
    name="deconfound",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Names of columns may contain brackets, which rich would take for styles.
    rich_markup_mode=None,
)
for command in (commands.init, commands.fit, commands.compare, commands.predict):
    app.command()(command)
app.command(epilog=EXAMPLE)(audit)


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
