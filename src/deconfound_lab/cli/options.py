"""Options that the experiments' commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deconfound.errors import OptionError

Folder = Annotated[Path, typer.Option(help="Folder of the results; the same command goes on where it stopped.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto.")]
Minutes = Annotated[
    float | None,
    typer.Option(help="Start no further training after so many minutes; 0 only summarises what is there.", min=0),
]
ReportOnly = Annotated[
    bool, typer.Option("--report-only", help="Only make figures, tables and page from results.json again.")
]


def chosen_device(name: str) -> str:
    """Either "cpu" or "cuda", as it is there."""
    import torch

    if name not in ("auto", "cpu", "cuda"):
        raise OptionError(f"--device must be auto, cpu or cuda; got {name!r}.")
    if name == "cuda" and not torch.cuda.is_available():
        raise OptionError("--device must be there; got 'cuda' where torch finds no GPU. Use --device cpu.")
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name
