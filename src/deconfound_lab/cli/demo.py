"""`deconfound demo`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from deconfound.errors import OptionError
from deconfound_lab.cli.options import counted


def demo(
    steps: Annotated[int, typer.Option(help="Training steps for each network.", min=1)] = 1000,
    batch: Annotated[int, typer.Option(help="Images in a batch.", min=1)] = 20,
    seed: Annotated[int, typer.Option(help="Seed of data and networks.")] = 0,
    out: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("deconfound-demo.html"),
) -> None:
    """Train a CNN on confounded synthetic images, plain and with PMDN, and show what each has learned.

    The images hold a main effect and a confound that both go with the group. A network that leaves the confound
    alone can reach 83.3 % at most; more than that is the confound's doing.
    """
    from deconfound.data import write_text
    from deconfound_lab.demo import HEAD, NETWORKS, audit, lines, page, sentence, train
    from deconfound_lab.synthetic.images import CEILING

    if out.suffix != ".html" or out.is_dir():
        raise OptionError(f"--out must be a file that ends in .html; got {out}.")
    if seed < 0:
        raise OptionError(f"--seed must be at least 0; got {seed}.")
    console = Console()
    results = {}
    with counted(console) as bar:
        for name, method in NETWORKS.items():
            task = bar.add_task(f"training {name}", total=steps)
            results[name] = train(method, steps, batch, seed, partial(bar.advance, task))
        task = bar.add_task("auditing both", total=None)
        report = audit(results, seed, lambda what, done, total: bar.update(task, completed=done, total=total))
        bar.update(task, completed=1, total=1)
    table = Table(title=f"Images not seen in training; ceiling without the confound {CEILING:.1%}")
    for head in HEAD:
        table.add_column(head, justify="left" if not head else "right")
    for line in lines(results):
        table.add_row(*line)
    console.print(table)
    console.print(sentence(*results.values()))
    write_text(out, page(results, report))
    console.print(f"Report: {out.resolve()}", highlight=False, soft_wrap=True)
