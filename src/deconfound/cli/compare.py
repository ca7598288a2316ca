"""`deconfound compare`: methods on the same folds and seeds, in one report."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deconfound.cli.options import (
    ConfigPath,
    Jobs,
    Overrides,
    SkipBad,
    Slurm,
    SlurmWith,
    cluster_of,
    complete_methods,
    number,
    resumable,
    show_warnings,
)
from deconfound.cli.progress import run_progress


def compare(
    config: ConfigPath,
    overrides: Overrides = None,
    methods: Annotated[
        str,
        typer.Option(
            help="The first is what the others are compared with: none,mdn,pmdn", autocompletion=complete_methods
        ),
    ] = "",
    seeds: Annotated[str, typer.Option(help="A run for each: 0,1,2")] = "",
    batch_sizes: Annotated[str, typer.Option(help="A run for each: 16,64,256")] = "",
    jobs: Jobs = 1,
    slurm: Slurm = False,
    slurm_with: SlurmWith = None,
    skip_bad: SkipBad = False,
) -> None:
    """Train several methods on the same folds and seeds, and compare cost and what is left.

    Writes `results.json`, `report.html` and one folder a run below
    `run.folder`. Give the command again to go on after a kill, or with more
    methods or seeds: finished runs are not repeated.

    [bold]Examples[/]

    deconfound compare config.yaml --methods none,mdn,pmdn,adversarial

    deconfound compare config.yaml --methods none,pmdn --seeds 0,1,2 --jobs 4 run.folder=runs/compare
    """
    from deconfound.training import compare as compare_config

    console = Console()
    wanted = {"methods": methods, "seeds": seeds, "batch_sizes": batch_sizes}
    lists = [f"compare.{key}=[{text}]" for key, text in wanted.items() if text]
    with resumable(console), show_warnings(console), run_progress(console) as progress:
        found = compare_config(
            config,
            *(overrides or ()),
            *lists,
            jobs=jobs,
            cluster=cluster_of(slurm, slurm_with),
            skip_bad=skip_bad,
            progress=progress,
        )
    _show(console, found.results)
    for sentence in found.sentences:
        console.print(f"• {sentence}", highlight=False, markup=False)
    console.print(f"wrote {', '.join(map(str, found.files))}", highlight=False, markup=False, soft_wrap=True)
    found.raise_if_failed()


def _show(console: Console, content: Any) -> None:
    first = next(iter(content["lines"][0]["measures"]))
    view = Table(title=f"{len(content['folds'])} folds · differences to {content['base']}", title_justify="left")
    for name in ("method", first.replace("_", " "), "difference", *(f"{name} left" for name in content["confounds"])):
        view.add_column(name, justify="left" if name == "method" else "right")
    for line in content["lines"]:
        item = line["measures"][first]
        change = item["difference"]
        interval = f"{number(change['low'], '+')} to {number(change['high'], '+')}"
        shown = "" if line["name"] == content["base"] else f"{number(change['mean'], '+')} ({interval})"
        cells = [number(item["mean"]), shown]
        cells += [number(line["measures"][f"left/outputs/{name}"]["mean"]) for name in content["confounds"]]
        view.add_row(escape(line["name"]), *cells)
    console.print(view)
