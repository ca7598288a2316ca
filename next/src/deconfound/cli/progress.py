"""Progress on stderr: a bar on a terminal, and plain lines in a pipe or a log file."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from deconfound.cli.options import echo

if TYPE_CHECKING:
    from deconfound.data import OnProgress

# A log of thousands of epochs or files would hide everything else.
SECONDS_BETWEEN_LINES = 1.0


@contextmanager
def show_progress(is_quiet: bool) -> Iterator[OnProgress | None]:
    """Yield a function that shows the number of finished steps, that of all, and a text."""
    if is_quiet:
        yield None
    elif not sys.stderr.isatty():
        yield _LinePrinter()
    else:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        text = TextColumn("{task.description}", markup=False)
        columns = (text, BarColumn(), TextColumn("remaining"), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("reading files", total=None)

            def update(step: int, steps: int, description: str) -> None:
                # Another number of steps is another stage, whose steps take another time.
                if progress.tasks[0].total != steps:
                    progress.reset(task)
                progress.update(task, description=description, completed=step, total=steps)

            yield update


class _LinePrinter:
    """Prints the first and last step of each stage, and between them one line a second at most."""

    def __init__(self) -> None:
        self._steps, self._latest = 0, 0.0

    def __call__(self, step: int, steps: int, description: str) -> None:
        now = time.monotonic()
        is_end = step == steps or steps != self._steps
        if is_end or now - self._latest >= SECONDS_BETWEEN_LINES:
            self._steps, self._latest = steps, now
            echo(f"step {step} of {steps}: {description}", is_error=True)
