"""`deconfound fit`: one method, cross-validated, into one folder."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from deconfound.cli.running import (
    ConfigPath,
    Jobs,
    Overrides,
    SkipBad,
    Slurm,
    SlurmWith,
    cluster_of,
    run_all,
    skipping,
    stop_on,
    telling,
)


def fit(
    config: ConfigPath,
    overrides: Overrides = None,
    jobs: Jobs = 1,
    slurm: Slurm = False,
    slurm_with: SlurmWith = None,
    skip_bad: SkipBad = False,
) -> None:
    """Train one method on every fold of a config, and test it.

    Everything lies in the folder `run.folder`. If the command is killed, give
    it again: finished folds stay, the one that was running goes on, and the
    numbers are those of an unbroken run.

    [bold]Examples[/]

    deconfound fit config.yaml

    deconfound fit config.yaml method=mdn training.batch_size=32 run.folder=runs/mdn --jobs 4

    deconfound fit config.yaml --slurm --slurm-with slurm_partition=gpu --slurm-with timeout_min=120
    """
    from deconfound.training.checking import look
    from deconfound.training.loading import load_config
    from deconfound.training.run import gather

    console = Console()
    chosen = skipping(load_config(config, overrides or (), look), skip_bad)
    with telling(console):
        failed = run_all(console, [chosen], jobs, cluster_of(slurm, slurm_with))
    stop_on(failed, chosen.run.folder)
    folder = Path(chosen.run.folder)
    content = gather(folder)
    view = Table(title=f"{chosen.method.name} · {len(content['folds'])} folds", title_justify="left")
    for name in ("measure", "mean", "sd over folds"):
        view.add_column(name, justify="left" if name == "measure" else "right")
    for name, item in content["metrics"].items():
        cells = ["–" if item[key] is None else f"{item[key]:.3f}" for key in ("mean", "sd")]
        view.add_row(name.replace("_", " "), *cells)
    console.print(view)
    console.print(f"wrote {folder / 'results.json'}", highlight=False, markup=False)
