"""What `fit` and `compare` share: options, the progress bar, and the report of jobs that failed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from deconfound.errors import DeconfoundWarning, OptionError

if TYPE_CHECKING:
    from deconfound.training.config import Config

ConfigPath = Annotated[str, typer.Argument(help="YAML file, as `deconfound init` writes it.", metavar="CONFIG")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Changes of the config: training.lr=0.01 splits.folds=10", metavar="[KEY=VALUE]…"),
]
Jobs = Annotated[int, typer.Option("--jobs", "-j", help="Folds that run at a time; -1 is one per core.")]
Slurm = Annotated[
    bool, typer.Option("--slurm", help="Send the folds to a SLURM cluster as an array, and wait for them.")
]
SkipBad = Annotated[
    bool,
    typer.Option("--skip-bad", help="Go on without scans that cannot be read or have no row of the table; name them."),
]
SlurmWith = Annotated[
    list[str] | None,
    typer.Option(help="Parameter of submitit: slurm_partition=gpu, timeout_min=120, gpus_per_node=1, mem_gb=16."),
]


def skipping(config: Config, skip_bad: bool) -> Config:
    """The config, with bad scans left out where that is asked for."""
    from deconfound.training.sources import reads_scans

    if not skip_bad:
        return config
    if not reads_scans(config.data):
        raise OptionError(
            f"--skip-bad must be given with scans; got data.source {config.data.source!r}, which holds none. Leave it "
            "out."
        )
    return replace(config, data=replace(config.data, options={**config.data.options, "skip_bad": True}))


@contextmanager
def telling(console: Console) -> Iterator[None]:
    """What the library warns of, on the console: once each, without the line of code that it comes from."""
    told: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", DeconfoundWarning)
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any, **named: Any) -> None:
            if not issubclass(category, DeconfoundWarning):
                others(message, category, *rest, **named)
            elif str(message) not in told:
                told.add(str(message))
                console.print(f"[yellow]warning:[/] {escape(str(message))}", highlight=False, soft_wrap=True)

        warnings.showwarning = show
        yield


def cluster_of(slurm: bool, given: Sequence[str] | None) -> Any:
    """The cluster that the options name, or None."""
    from deconfound.training.jobs import Cluster
    from deconfound.training.needs import need

    if not slurm and not given:
        return None
    parameters: dict[str, Any] = {}
    for item in given or ():
        key, equals, value = item.partition("=")
        if not equals:
            raise OptionError(f"--slurm-with must be KEY=VALUE; got {item!r}.")
        parameters[key] = need("yaml", "train").safe_load(value)
    name = str(parameters.pop("cluster", "slurm"))
    return Cluster(name, parameters, 5.0 if name == "slurm" else 0.2)


def run_all(console: Console, configs: Sequence[Any], jobs: int, cluster: Any) -> list[Any]:
    """Run what is not finished, behind a bar with the time left; the outcomes that failed."""
    from deconfound.training.fold import follower
    from deconfound.training.jobs import execute, plan

    if follower():
        console.quiet = True
    with console.status("reading the data"):
        todo, done = plan(configs)
    if not todo:
        console.print(f"all {done} folds are finished already", style="dim")
        return []
    if done:
        console.print(f"going on: {done} of {done + len(todo)} folds are finished", style="dim")
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(), console=console, transient=True,
    )  # fmt: skip
    failed: list[Any] = []
    with bar:
        task = bar.add_task(f"{len(todo)} folds", total=len(todo))
        ended = [0]

        def tick(job: Any, epoch: int, epochs: int, loss: float) -> None:
            text = f"{escape(job.name)} · epoch {epoch} · validation loss {loss:.4f}"
            bar.update(task, description=text, completed=ended[0] + epoch / epochs)

        def watch(outcome: Any, number: int, total: int) -> None:
            ended[0] = number
            bar.update(task, completed=number, description=f"{number} of {total} folds")
            if outcome.error is not None:
                failed.append(outcome)
                bar.console.print(
                    f"[red]{escape(outcome.job.name)} failed:[/] {escape(outcome.error)}", highlight=False
                )

        try:
            execute(todo, jobs, cluster, watch, tick)
        except (KeyboardInterrupt, SystemExit) as stop:  # Lightning makes the second of the first
            bar.stop()
            console.print("stopped; give the same command again to go on from here", style="yellow")
            raise typer.Exit(130) from stop
    if follower():  # the first process of a distributed run does the rest
        raise typer.Exit
    return failed


def stop_on(failed: Sequence[Any], total: str) -> None:
    """End with an error that counts the failed folds, after all others are finished."""
    from deconfound.errors import RunError

    if failed:
        first = failed[0]
        raise RunError(
            f"every fold of {total} must be finished; got {len(failed)} that failed, first {first.job.name}: "
            f"{first.error.rstrip('.')}. The others are kept: mend this and give the same command again."
        ) from RuntimeError(first.details)  # --debug shows it
