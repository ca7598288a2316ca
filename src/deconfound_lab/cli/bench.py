"""`deconfound bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from deconfound_lab.cli.options import progress_on


def bench(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    sections: Annotated[
        str | None,
        typer.Option(
            help="Parts to run, with commas between, in this order: checks, passes, steps, host, growth, metrics, "
            "loading; compiled steps come last. All of them if not given."
        ),
    ] = None,
    modes: Annotated[
        str | None,
        typer.Option(
            help="How whole steps run: eager, compiled, and on a GPU graph. If not given, eager; on a GPU all."
        ),
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Begin nothing after so many minutes.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for <device>.json and <device>.md.")] = Path("runs/bench"),
    again: Annotated[bool, typer.Option("--again", help="Measure anew what an earlier run has measured.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: to see that it runs.")] = False,
    check: Annotated[bool, typer.Option("--check", help="End with an error where a claim does not hold.")] = False,
) -> None:
    """Measure what the layers cost, as ratios to plain networks and plain copies in the same run.

    Every row is stored as it is measured: a run that is stopped keeps what it has, and the same command goes on from
    there as long as code and machine are the same.
    """
    from deconfound_lab.benchmarks.claims import broken
    from deconfound_lab.benchmarks.claims import check as check_claims
    from deconfound_lab.benchmarks.experiment import run
    from deconfound_lab.benchmarks.page import page

    console = Console()

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    try:
        with progress_on(console, "preparing") as progress:
            result = run(
                device, _names(sections), _names(modes), quick=quick, folder=out, again=again, minutes=minutes,
                progress=progress, say=say,
            )  # fmt: skip
    except KeyboardInterrupt as stop:
        console.print("stopped; what was measured is kept, and the same command goes on from here", style="yellow")
        raise typer.Exit(130) from stop
    path = out / f"{device}.json"
    path.with_suffix(".md").write_text(page([result], figure=False))
    console.print(f"Wrote {path} and {path.with_suffix('.md').name}.", highlight=False)
    if result["left_out"]:
        console.print(f"left out, for time: {'; '.join(result['left_out'])}", style="yellow", highlight=False)
    faults, claims = broken(result), check_claims(result)
    if claims and not quick:
        console.print(f"{len(claims) - len(faults)} of {len(claims)} claims held", highlight=False)
    for fault in faults:
        console.print(f"[bold]not held:[/] {fault}", highlight=False)
    if check and faults:
        raise typer.Exit(1)


def _names(given: str | None) -> list[str] | None:
    return None if given is None else [name.strip() for name in given.split(",") if name.strip()]
