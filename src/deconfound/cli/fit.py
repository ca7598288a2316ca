"""`deconfound fit`: one method, cross-validated and audited, into one folder."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from deconfound.cli.options import (
    ConfigPath,
    Jobs,
    Overrides,
    SkipBad,
    Slurm,
    SlurmWith,
    cluster_of,
    number,
    resumable,
    show_verdicts,
    show_warnings,
)
from deconfound.cli.progress import run_progress


def fit(
    config: ConfigPath,
    overrides: Overrides = None,
    jobs: Jobs = 1,
    slurm: Slurm = False,
    slurm_with: SlurmWith = None,
    skip_bad: SkipBad = False,
    audit: Annotated[
        bool | None, typer.Option("--audit/--no-audit", help="Audit the out-of-fold outputs; run.audit by default.")
    ] = None,
) -> None:
    """Train one method on every fold of a config, test it, and audit what is left.

    Everything lies in the folder `run.folder`. If the command is killed, give
    it again: finished folds stay, the one that was running goes on, and the
    numbers are those of an unbroken run.

    [bold]Examples[/]

    deconfound fit config.yaml

    deconfound fit config.yaml method=mdn training.batch_size=32 run.folder=runs/mdn --jobs 4

    deconfound fit config.yaml --slurm --slurm-with slurm_partition=gpu --slurm-with timeout_min=120
    """
    from deconfound.training import fit as fit_config

    console = Console()
    with resumable(console), show_warnings(console), run_progress(console) as progress:
        found = fit_config(
            config,
            *(overrides or ()),
            jobs=jobs,
            cluster=cluster_of(slurm, slurm_with),
            audit=audit,
            skip_bad=skip_bad,
            progress=progress,
        )
    method = found.results["identity"]["method"]["name"]
    view = Table(title=f"{method} · {len(found.results['folds'])} folds", title_justify="left")
    for name in ("measure", "mean", "sd over folds"):
        view.add_column(name, justify="left" if name == "measure" else "right")
    for name, item in found.metrics.items():
        view.add_row(name.replace("_", " "), number(item["mean"]), number(item["sd"]))
    console.print(view)
    for problem in (problem for fold in found.results["folds"] for problem in fold["problems"]):
        console.print(problem["text"], style="yellow", highlight=False, markup=False)
    if found.audit is not None:
        show_verdicts(console, found.audit)
    console.print(f"wrote {', '.join(map(str, found.files))}", highlight=False, markup=False, soft_wrap=True)
