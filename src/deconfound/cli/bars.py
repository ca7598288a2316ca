"""The progress bars of the commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


def counted(console: Console) -> Progress:
    """A bar for work whose steps are counted; it stays on the screen, with the time left while it runs."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    count = TextColumn("{task.completed}/{task.total}")
    return Progress(TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn(), console=console)


def passing(console: Console) -> Progress:
    """A bar for a few stages of unequal length; it goes away when they are done."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    described = TextColumn("{task.description}")
    return Progress(described, BarColumn(), TimeElapsedColumn(), console=console, transient=True)
