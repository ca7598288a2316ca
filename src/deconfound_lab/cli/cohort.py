"""`deconfound cohort`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from deconfound.errors import OptionError
from deconfound_lab.cli.options import Variant


def cohort(
    out: Annotated[Path | None, typer.Argument(help="A new or empty folder for the scans.")] = None,
    size: Annotated[int, typer.Option(help="Edge of the cubic volumes.")] = 64,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal cohorts.")] = 0,
    people: Annotated[int | None, typer.Option(help="How many; the paper's 1,262 by default.")] = None,
    independent: Annotated[
        bool, typer.Option("--independent", help="A test set whose labels are independent of site, sex and age.")
    ] = False,
    anatomy: Annotated[str, typer.Option(help="procedural, or icbm152 (needs nilearn).")] = "procedural",
    variant: Variant = None,
    jobs: Annotated[int | None, typer.Option(help="Threads; one per core by default.", min=1)] = None,
    device: Annotated[str, typer.Option(help="Where volumes are computed.")] = "cpu",
    montage: Annotated[Path | None, typer.Option(help="Draw slices of base, effects and sites to this PNG.")] = None,
) -> None:
    """Simulate the paper's cohort of 1,262 MRIs, with a known truth, and write it as a BIDS folder.

    Sites, groups, sexes and ages are those of the paper's Table 1. The latents that no real cohort has stand in
    phenotype/severity.tsv.
    """
    from deconfound_lab.cohort.cohort import simulate_cohort
    from deconfound_lab.cohort.cohort_files import write_bids
    from deconfound_lab.cohort.montage import draw_montage
    from deconfound_lab.cohort.truth import bayes_accuracy

    if out is None and montage is None:
        raise OptionError("a folder OUT or --montage must be given; got neither.")
    console = Console()
    if montage is not None:
        draw_montage(montage, size=size, anatomy=anatomy, seed=seed)
        console.print(f"wrote {montage}", highlight=False, markup=False)
    if out is None:
        return
    simulated = simulate_cohort(
        size, seed, independent=independent, people=people, anatomy=anatomy, variant=variant, device=device
    )
    write_bids(simulated, out, jobs=jobs)
    console.print(_table(simulated.table))
    best = f"Best possible accuracy: {bayes_accuracy():.1%} without confounds"
    tied = "" if independent else f", {bayes_accuracy(confounds=True):.1%} with the site's help"
    console.print(f"{best}{tied}.", highlight=False)
    console.print(f"wrote {len(simulated)} scans to {out}", highlight=False, markup=False)


def _table(columns: Any) -> Table:
    from deconfound_lab.cohort.counting import paper_table_one, table_one
    from deconfound_lab.cohort.people import GROUPS

    view = Table(title="Table 1, simulated and the paper's", title_justify="left")
    for head in ("site", "", *GROUPS, "F/M", "age"):
        view.add_column(head, justify="left" if head in ("site", "") else "right")
    paper = {line.site: line for line in paper_table_one()}
    for line in table_one(columns):
        for who, each in (("simulated", line), ("paper", paper[line.site])):
            counts = [str(each.groups[group]) for group in GROUPS]
            age = f"{each.age:.2f} ± {each.age_sd:.2f}"
            view.add_row(each.site if each is line else "", who, *counts, f"{each.women}/{each.men}", age)
    return view
