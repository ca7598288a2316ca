"""Progress on stderr: a bar on a terminal, and plain lines in a pipe or a log file."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from deconfound.cli.options import echo

if TYPE_CHECKING:
    from deconfound.auditing import OnProgress


@contextmanager
def show_progress(is_quiet: bool) -> Iterator[OnProgress | None]:
    """Yield a function that shows each step, with an estimate of the time that is left."""
    if is_quiet:
        yield None
    elif sys.stderr.isatty():
        with _show_bar() as on_progress:
            yield on_progress
    else:
        yield _LinePrinter()


@contextmanager
def _show_bar() -> Iterator[OnProgress]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    text = TextColumn("{task.description}", markup=False)
    columns = (text, BarColumn(), TextColumn("remaining"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("reading files", total=None)

        def update(step: int, steps: int, description: str) -> None:
            progress.update(task, description=description, completed=step - 1, total=steps)

        yield update


class _LinePrinter:
    """Prints one line per step."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def __call__(self, step: int, steps: int, description: str) -> None:
        if step == 2:
            # Reading files and comparing rows take another time than the tests that follow.
            self._start = time.monotonic()
        remaining = ""
        if step > 2:
            seconds = (time.monotonic() - self._start) / (step - 2) * (steps - step + 1)
            remaining = f" (about {seconds:.0f} s remaining)"
        echo(f"step {step} of {steps}: {description}{remaining}", is_error=True)
