"""`deconfound reproduce`: the paper's experiments, and real scans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from deconfound_lab.cli.options import (
    Device,
    Folder,
    Jobs,
    Minutes,
    ReportOnly,
    chosen_device,
    progress_on,
    reproduce_experiment,
)

reproduce = typer.Typer(
    help="Run the paper's experiments again, with every method, and write tables, figures and a report.",
    no_args_is_help=True,
)


@reproduce.command()
def synthetic(
    out: Folder = Path("reproduce-synthetic"),
    quick: Annotated[bool, typer.Option("--quick", help="A small version for two cores, about five minutes.")] = False,
    networks: Annotated[
        bool, typer.Option("--networks", help="A recurrent network and a transformer instead: minutes on two cores.")
    ] = False,
    device: Device = "auto",
    minutes: Minutes = None,
    jobs: Jobs = 1,
    report_only: ReportOnly = False,
) -> None:
    """Section 3.1: synthetic images with a known ceiling, every method at every batch size, Figure 2.

    The whole grid is for a GPU, in parts if need be (--minutes); --quick shows the same thing in small.
    """
    from deconfound_lab.synthetic.experiment import SyntheticExperiment
    from deconfound_lab.synthetic.plan import network_grid

    place, setups = chosen_device(device), None
    if networks:
        setups = [replace(setup, balanced=balanced) for balanced in (False, True) for setup in network_grid()]
    reproduce_experiment(
        SyntheticExperiment, lambda: SyntheticExperiment(quick or networks, place, setups=setups), out,
        minutes=minutes, jobs=jobs, report_only=report_only,
    )  # fmt: skip


@reproduce.command()
def mri(
    out: Folder = Path("reproduce-mri"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Small volumes, one fold, one batch size: a few minutes on two cores.")
    ] = False,
    device: Device = "auto",
    minutes: Minutes = None,
    jobs: Jobs = 1,
    report_only: ReportOnly = False,
    robustness: Annotated[
        bool,
        typer.Option(
            "--robustness", help="One thing changed at a time: less kind cohorts, seeds, initialisations, filters."
        ),
    ] = False,
    arms: Annotated[
        str | None, typer.Option(help="Which arms, with commas between, such as `oracle,baseline,pmdn-balanced`.")
    ] = None,
    search: Annotated[
        bool,
        typer.Option("--search", help="Try three candidates of each method on a cohort of another seed, one fold."),
    ] = False,
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
    from deconfound_lab.mri.experiment import MriExperiment
    from deconfound_lab.mri.maps import FILE, write_files
    from deconfound_lab.mri.plan import FULL, QUICK, SEARCH
    from deconfound_lab.mri.robustness import RobustnessExperiment

    console, place = Console(), chosen_device(device)
    if robustness:
        reproduce_experiment(
            RobustnessExperiment, lambda: RobustnessExperiment(place, show=True), out, minutes=minutes, jobs=jobs,
            report_only=report_only,
        )  # fmt: skip
        return
    plan = SEARCH if search else QUICK if quick else FULL
    if arms is not None:
        chosen = tuple(name.strip() for name in arms.split(","))
        plan = replace(plan, parts=tuple(replace(part, arms=chosen) for part in plan.parts))
    if maps:
        with progress_on(console, "simulating the cohort") as progress:
            MriExperiment(device=place, plan=plan, show=True).make_maps(out, progress)
        for file in (out / FILE, *write_files(out)):
            console.print(f"wrote {file}", highlight=False, markup=False, soft_wrap=True)
        return
    reproduce_experiment(
        MriExperiment, lambda: MriExperiment(device=place, plan=plan, show=True), out, minutes=minutes, jobs=jobs,
        report_only=report_only,
    )  # fmt: skip


@reproduce.command()
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
    jobs: Jobs = 1,
    report_only: ReportOnly = False,
) -> None:
    """Dementia against control on the scans of OASIS-1, with age and sex as confounds, five folds by person.

    Dementia is found in old people only, so age alone has an AUC of .85: a score must also tell people of 60 and older
    apart, and must not go with age within controls.
    """
    from deconfound_lab.oasis.experiment import OasisExperiment

    place = chosen_device(device)
    reproduce_experiment(
        OasisExperiment, lambda: OasisExperiment(data, quick, place, show=True), out, minutes=minutes, jobs=jobs,
        report_only=report_only,
    )  # fmt: skip
