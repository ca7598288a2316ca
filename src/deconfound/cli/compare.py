"""`deconfound compare`: methods on the same folds and seeds, in one report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deconfound.cli.bars import passing
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


def compare(
    config: ConfigPath,
    overrides: Overrides = None,
    methods: Annotated[str, typer.Option(help="The first is what the others are compared with: none,mdn,pmdn")] = "",
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
    from deconfound.data.files import write_text
    from deconfound.training.checking import look
    from deconfound.training.comparison import compare as compare_runs
    from deconfound.training.comparison import entries
    from deconfound.training.comparison_page import comparison_page, sentences
    from deconfound.training.loading import load_config

    console = Console()
    wanted = {"methods": methods, "seeds": seeds, "batch_sizes": batch_sizes}
    lists = [f"compare.{key}=[{text}]" for key, text in wanted.items() if text]
    chosen = skipping(load_config(config, [*(overrides or ()), *lists], look), skip_bad)
    lines = entries(chosen)
    runs = [run for line in lines for run in line.runs.values()]
    with telling(console):
        failed = run_all(console, runs, jobs, cluster_of(slurm, slurm_with))
        broken = {outcome.job.config.method.name for outcome in failed}
        whole = [line for line in lines if line.method not in broken]
        if not whole:
            stop_on(failed, chosen.run.folder)
        with passing(console) as bar:
            task = bar.add_task("comparing", total=None)
            content, _ = compare_runs(
                chosen, whole, lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
            )
    folder = Path(chosen.run.folder)
    write_text(folder / "report.html", comparison_page(content))
    _show(console, content)
    for sentence in sentences(content):
        console.print(f"• {sentence}", highlight=False, markup=False)
    console.print(f"wrote {folder / 'report.html'} and results.json", highlight=False, markup=False)
    stop_on(failed, chosen.run.folder)


def _show(console: Console, content: dict[str, Any]) -> None:
    first = next(iter(content["lines"][0]["measures"]))
    view = Table(title=f"{len(content['folds'])} folds · differences to {content['base']}", title_justify="left")
    for name in ("method", first.replace("_", " "), "difference", *(f"{name} left" for name in content["confounds"])):
        view.add_column(name, justify="left" if name == "method" else "right")
    for line in content["lines"]:
        item = line["measures"][first]
        change = item["difference"]
        cells = [_number(item["mean"])]
        told = f"{_number(change['mean'], '+')} ({_number(change['low'], '+')} to {_number(change['high'], '+')})"
        cells.append("" if line["name"] == content["base"] else told)
        cells += [_number(line["measures"][f"left/outputs/{name}"]["mean"]) for name in content["confounds"]]
        view.add_row(escape(line["name"]), *cells)
    console.print(view)


def _number(value: float | None, sign: str = "") -> str:
    return "–" if value is None else f"{value:{sign}.3f}"
