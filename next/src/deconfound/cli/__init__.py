"""The command line: `deconfound init`, `fit`, `compare`, `predict` and `audit`.

Commands import the library when they run, so that `deconfound --help` takes no time.
"""

from deconfound.cli.app import app, main
from deconfound.cli.options import format_table

__all__ = ["app", "format_table", "main"]
