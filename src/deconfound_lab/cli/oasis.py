"""`deconfound reproduce oasis`: real scans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from deconfound.cli.progress import counted
from deconfound_lab.cli.options import Device, Folder, Minutes, ReportOnly, chosen_device


def oasis(
    data: Annotated[
        str,
        typer.Argument(
            help="BIDS folder of OASIS-1, or a file prepared from it; not read with --report-only.", metavar="DATA"
        ),
    ],
    out: Folder = Path("reproduce-oasis"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Small volumes, two arms, two members: for two cores.")
    ] = False,
    device: Device = "auto",
    minutes: Minutes = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", help="Trainings side by side on the device.", min=1)] = 1,
    report_only: ReportOnly = False,
) -> None:
    """Dementia against control on the scans of OASIS-1, with age and sex as confounds, five folds by person.

    Dementia is found in old people only, so age alone has an AUC of .85: a score must also tell people of 60 and older
    apart, and must not go with age within controls.
    """
    from deconfound.data.files import read_json
    from deconfound.training.needs import need
    from deconfound_lab.oasis.page import write_report
    from deconfound_lab.oasis.people import read_people
    from deconfound_lab.oasis.running import RESULTS, run_oasis
    from deconfound_lab.oasis.tables import sentence

    need("matplotlib", "train")
    console = Console()
    if report_only:
        results = read_json(out / RESULTS)
    else:
        place, people = chosen_device(device), read_people(data)
        with counted(console) as bar:
            task = bar.add_task("training", total=None)
            results = run_oasis(
                people,
                quick,
                out,
                place,
                progress=lambda what, done, total: bar.update(task, description=what, completed=done, total=total),
                minutes=minutes,
                jobs=jobs,
            )
    if results is None:
        console.print("Trainings are still to be done: give the same command again.")
        return
    page = write_report(results, out)
    console.print(sentence(results), highlight=False)
    console.print(f"Report: {page}", highlight=False, soft_wrap=True)
