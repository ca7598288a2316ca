"""Options that the experiments' commands share, and what all of these commands do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from deconfound.errors import OptionError, need

if TYPE_CHECKING:
    from deconfound_lab.harness import Experiment, Progress

Folder = Annotated[Path, typer.Option(help="Folder of the results; the same command goes on where it stopped.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto.")]
Minutes = Annotated[
    float | None,
    typer.Option(help="Start no further training after so many minutes; 0 only summarises what is there.", min=0),
]
Jobs = Annotated[int, typer.Option("--jobs", "-j", help="Trainings side by side on the device.", min=1)]
Variant = Annotated[
    str | None,
    typer.Option(
        help="A less kind cohort: curved-age, age-disease, sex-tied, unseen-site (of the independent people) or "
        "swapped (5 % of ages and sites)."
    ),
]
ReportOnly = Annotated[
    bool, typer.Option("--report-only", help="Only make figures, tables and page from results.json again.")
]


def chosen_device(name: str) -> str:
    """Either "cpu" or "cuda", as it is there."""
    import torch

    if name not in ("auto", "cpu", "cuda"):
        raise OptionError(f"--device must be auto, cpu or cuda; got {name!r}.")
    if name == "cuda" and not torch.cuda.is_available():
        raise OptionError("--device must be there; got 'cuda' where torch finds no GPU. Use --device cpu.")
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name


def reproduce_experiment(
    kind: type[Experiment],
    make: Callable[[], Experiment],
    out: Path,
    *,
    minutes: float | None,
    jobs: int = 1,
    report_only: bool,
) -> dict[str, Any] | None:
    """Run an experiment or, to make its report again, only read its results; say how far it is and where the page is.

    `make` is not called where only the report is asked for. Returns the results, if there are any.
    """
    from deconfound_lab.harness.experiment import remake, run_experiment
    from deconfound_lab.harness.page import REPORT

    need("matplotlib", "train")  # for the figures, which are drawn after hours
    console = Console()
    if report_only:
        results: dict[str, Any] | None = remake(kind, out)
    else:
        with progress_on(console, "preparing") as progress:
            run = run_experiment(make(), out, minutes=minutes, jobs=jobs, progress=progress)
        results = run.results
        if run.finished < run.cells:
            console.print(f"{run.finished} of {run.cells} cells are finished: give the same command again to go on.")
    if results is not None:
        console.print(kind.page(results, out).summary, highlight=False)
        console.print(f"Report: {out / REPORT}", highlight=False, soft_wrap=True)
    return results


def counted(console: Console) -> Bar:
    """A bar for work whose steps are counted; it stays on the screen, with the time left while it runs."""
    count = TextColumn("{task.completed}/{task.total}")
    return Bar(TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn(), console=console)


@contextmanager
def progress_on(console: Console, first: str) -> Iterator[Progress]:
    """A bar, and what tells it (what, done, total)."""
    with counted(console) as bar:
        task = bar.add_task(first, total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
