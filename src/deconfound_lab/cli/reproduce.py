"""`deconfound reproduce`: the paper's experiments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from deconfound.cli.progress import counted
from deconfound_lab.cli.options import Device, Folder, Minutes, ReportOnly, chosen_device

if TYPE_CHECKING:
    from rich.progress import Progress

    from deconfound_lab.mri.results import Results

reproduce = typer.Typer(
    help="Run the paper's experiments again, with every method, and write tables, figures and a report.",
    no_args_is_help=True,
)


@reproduce.command()
def synthetic(
    out: Folder = Path("reproduce-synthetic"),
    quick: Annotated[bool, typer.Option("--quick", help="A small version for two cores, about five minutes.")] = False,
    device: Device = "auto",
    minutes: Minutes = None,
    report_only: ReportOnly = False,
) -> None:
    """Section 3.1: synthetic images with a known ceiling, every method at every batch size, Figure 2.

    The whole grid is for a GPU, in parts if need be (--minutes); --quick shows the same thing in small.
    """
    from deconfound.data.files import read_json
    from deconfound.training.needs import need
    from deconfound_lab.synthetic.grid import full_grid, quick_grid
    from deconfound_lab.synthetic.page import sentence, write_report
    from deconfound_lab.synthetic.problems import TEST_PER_GROUP
    from deconfound_lab.synthetic.running import RESULTS, run_grid
    from deconfound_lab.synthetic.tables import Results

    need("matplotlib", "train")  # for the figure, which is drawn after hours
    console = Console()
    device = chosen_device(device)
    cells = quick_grid() if quick else full_grid()
    if report_only:
        content = read_json(out / RESULTS)
    else:
        per_group = 1000 if quick else TEST_PER_GROUP
        seconds = None if minutes is None else 60 * minutes
        with counted(console) as bar:
            content = run_grid(
                cells,
                out,
                device,
                seconds=seconds,
                test_per_group=per_group,
                started=lambda cell: _task(bar, cell.key, max(cell.steps, cell.long) * max(1, len(cell.stages))),
            )
    results = Results(content)
    page = write_report(results, out)
    left = len(cells) - len(content["cells"])
    if left and not report_only:
        console.print(f"{left} of {len(cells)} cells are still to be done: give the same command again.")
    console.print(sentence(results), highlight=False)
    console.print(f"Report: {page}", highlight=False, soft_wrap=True)


@reproduce.command()
def mri(
    out: Folder = Path("reproduce-mri"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Small volumes, one fold, one batch size: a few minutes on two cores.")
    ] = False,
    device: Device = "auto",
    minutes: Minutes = None,
    report_only: ReportOnly = False,
    maps: Annotated[
        bool,
        typer.Option("--maps", help="Only train a PMDN with a layer in the first block, and map its coefficients."),
    ] = False,
) -> None:
    """Section 3.2 on a simulated cohort of the paper's Table 1: 3D ResNet, two labels, Table 2 and the t-SNE figure.

    The paper's MRIs are not public; the cohort has the same people with simulated volumes, and a test set in which the
    labels are independent of age, sex and site. What is trained so far is summarised, and the same command goes on, on
    another machine too if the folder is copied there.
    """
    from deconfound.training.needs import need
    from deconfound_lab.mri.page import remake
    from deconfound_lab.mri.running import run_maps, run_mri

    need("matplotlib", "train")
    console, place = Console(), chosen_device(device)
    if report_only:
        results: Results | None = remake(out)
    elif maps:
        with _ticking(console, "simulating the cohort") as tick:
            written = run_maps(quick, out, place, tick)
        for file in written:
            console.print(f"wrote {file}", highlight=False, markup=False, soft_wrap=True)
        return
    else:
        with _ticking(console, "simulating the cohort") as tick:
            results = run_mri(quick, out, place, tick, minutes=minutes)
    if results is None:
        console.print("No training is finished yet: give the same command again.")
        return
    _show(console, results)
    console.print(f"Report: {out / 'report.html'}", highlight=False, soft_wrap=True)


def _show(console: Console, results: Results) -> None:
    """The two measures that count, and what is missing; the rest is on the page."""
    from rich.table import Table

    from deconfound_lab.mri.page import sentence
    from deconfound_lab.mri.tables import gaps, not_first

    view = Table(title="accuracy, independent people · correlation within groups", title_justify="left")
    view.add_column("")
    for batch in results.batches:
        view.add_column(f"batch {batch}", justify="right")
    for arm in results.present:
        lines = [results.find(batch, arm) for batch in results.batches]
        cells = [f"{line.independent.mean:.1%} · {line.within_mean.mean:.3f}" if line else "–" for line in lines]
        view.add_row(results.title(arm), *cells)
    console.print(view)
    for text in (sentence(results), *not_first(results), *gaps(results)):
        console.print(f"• {text}", highlight=False, markup=False)


@contextmanager
def _ticking(console: Console, first: str) -> Iterator[Callable[[str, int, int], None]]:
    """A bar, and what tells it (what, done, total)."""
    with counted(console) as bar:
        task = bar.add_task(first, total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def _task(bar: Progress, name: str, total: int) -> Any:
    task = bar.add_task(name, total=total)
    return lambda step: bar.update(task, completed=step)
