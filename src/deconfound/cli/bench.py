"""`deconfound bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def bench(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    sections: Annotated[
        str, typer.Option(help="Parts to run, with commas between: checks, passes, steps, growth, metrics, loading.")
    ] = "checks,passes,steps,growth,metrics,loading",
    modes: Annotated[str, typer.Option(help="How whole steps run: eager, compiled, graph.")] = "eager",
    out: Annotated[Path, typer.Option(help="Folder for <device>.json and <device>.md.")] = Path("runs/bench"),
    quick: Annotated[bool, typer.Option(help="Small sizes: to see that it runs.")] = False,
    check: Annotated[bool, typer.Option(help="End with an error where a claim does not hold.")] = False,
) -> None:
    """Measure what the layers cost, as ratios to plain networks and plain copies in the same run."""
    from rich.console import Console

    from deconfound.benchmarks.page import page
    from deconfound.benchmarks.run import broken, run, save

    console = Console()

    def tell(section: str, row: dict[str, Any]) -> None:
        shown = " ".join(f"{key}={value:.4g}" if isinstance(value, float) else f"{value}" for key, value in row.items())
        console.print(f"{section}: {shown}", highlight=False, markup=False)

    result = run(device, sections.split(","), modes.split(","), quick, tell)
    path = save(result, out)
    path.with_suffix(".md").write_text(page([result]))
    console.print(f"Wrote {path} and {path.with_suffix('.md').name}.", highlight=False)
    faults = broken(result)
    for fault in faults:
        console.print(f"[bold]claim does not hold:[/] {fault}", highlight=False)
    if check and faults:
        raise typer.Exit(1)
