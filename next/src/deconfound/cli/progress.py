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

# A log of thousands of epochs or files would hide everything else.
SECONDS_BETWEEN_LINES = 1.0


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
        totals: list[int] = []

        def update(step: int, steps: int, description: str) -> None:
            # Another number of steps is another stage, whose steps take another time.
            if totals[-1:] != [steps]:
                totals.append(steps)
                progress.reset(task)
            progress.update(task, description=description, completed=step, total=steps)

        yield update


class _LinePrinter:
    """Prints the first and last step of each stage, and between them one line a second at most."""

    def __init__(self) -> None:
        self._first, self._steps, self._start, self._latest = 0, 0, 0.0, 0.0

    def __call__(self, step: int, steps: int, description: str) -> None:
        now = time.monotonic()
        # Reading files and comparing rows, the first steps, take another time than those after.
        is_stage = steps != self._steps or step <= 2
        if is_stage:
            self._first, self._steps, self._start = step, steps, now
        if not is_stage and step < steps and now - self._latest < SECONDS_BETWEEN_LINES:
            return
        self._latest, remaining = now, ""
        if step > self._first:
            pace = (now - self._start) / (step - self._first)
            remaining = f" (about {pace * (steps - step):.0f} s remaining)"
        echo(f"step {step} of {steps}: {description}{remaining}", is_error=True)
