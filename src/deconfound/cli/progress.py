"""How the commands show that they are at work: bars on a terminal, plain lines where the output goes to a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

# Plain lines come at most so often, in seconds.
LINE_EVERY = 10.0


@contextmanager
def run_progress(console: Console) -> Iterator[Callable[[Any], None]]:
    """A callback for `fit`, `compare` and `predict` that shows each stage, and failed folds as they fail."""
    with _bar(console) if console.is_terminal else _plain_lines(console) as show:

        def on_progress(state: Any) -> None:
            show(state.stage, state.text, state.done, state.total)
            if state.failed is not None:
                console.print(f"{state.failed.job.name} failed: {state.failed.error}", style="red", markup=False)

        yield on_progress


@contextmanager
def stage_progress(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """A callback `(what, done, total)` for an audit."""
    with _bar(console) if console.is_terminal else _plain_lines(console) as show:
        yield lambda what, done, total: show("auditing", what, done, total)


@contextmanager
def _bar(console: Console) -> Iterator[Callable[[str, str, float, float], None]]:
    """One bar that goes away in the end, with elapsed and remaining time."""
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    times = (TextColumn("elapsed"), TimeElapsedColumn(), TextColumn("remaining"), TimeRemainingColumn())
    bar = Progress(TextColumn("{task.description}"), BarColumn(), *times, console=console, transient=True)
    with bar:
        shown: dict[str, Any] = {}

        def show(stage: str, text: str, done: float, total: float) -> None:
            if stage not in shown:  # a stage begins with its own clock
                for old in shown.values():
                    bar.remove_task(old)
                shown.clear()
                shown[stage] = bar.add_task(stage, total=total or None)
            bar.update(shown[stage], description=escape(text), completed=done, total=total or None)

        yield show


@contextmanager
def _plain_lines(console: Console) -> Iterator[Callable[[str, str, float, float], None]]:
    """Lines for a log file: when a stage begins and ends, and now and then between."""
    began: dict[str, tuple[float, float]] = {}
    last = [-LINE_EVERY]

    def show(stage: str, text: str, done: float, total: float) -> None:
        now = time.monotonic()
        first = stage not in began
        start, before = began.setdefault(stage, (now, done))
        if not first and done < total and now - last[0] < LINE_EVERY:
            return
        last[0] = now
        elapsed = now - start
        line = f"{stage}: {text}" if text else stage
        if not first and total:
            line += f" · elapsed {_clock(elapsed)}"
            if before < done < total:
                line += f" · remaining about {_clock(elapsed / (done - before) * (total - done))}"
        console.print(line, style="dim", highlight=False, markup=False, soft_wrap=True)

    yield show


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
