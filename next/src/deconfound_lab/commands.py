"""The lab's commands, which the entry point group `deconfound.commands` joins to `deconfound`.

Each is a plain function. The command line of the library registers those of `COMMANDS` and shows
their errors as it shows its own. They import the lab when they run, so that help takes no time.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deconfound.errors import OptionError, nearest_names

if TYPE_CHECKING:
    from deconfound_lab.harness import Experiment

# Each is a function that returns an `Experiment`. A new experiment needs a line here only.
EXPERIMENTS = {
    "synthetic": "deconfound_lab.synthetic:synthetic_experiment",
    "mri": "deconfound_lab.mri:mri_experiment",
}

Seed = Annotated[int, typer.Option(help="The seed of everything that is random.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what exists.")]


def demo(
    seed: Seed = 0,
    steps: Annotated[int, typer.Option(help="Training steps of each network.")] = 300,
    out: Annotated[Path, typer.Option(help="The page of the audit.")] = Path("demo.html"),
    force: Force = False,
) -> None:
    """Train a plain network and one with PMDN on synthetic images, and audit both (a minute)."""
    from deconfound_lab.demo import describe, make_table, run_demo
    from deconfound_lab.harness import use_one_thread
    from deconfound_lab.report import to_markdown

    _check_target(out, force)
    use_one_thread()
    results, audit = run_demo(seed, steps, on_progress=_report)
    typer.echo(to_markdown(make_table(results)))
    typer.echo("\n" + describe(*results.values()))
    typer.echo(f"\nThe audit of both: {audit.save(out)}")


def reproduce(
    name: Annotated[str, typer.Argument(help="The experiment: synthetic or mri.")],
    folder: Annotated[Path, typer.Option(help="Holds the cells that are done.")] = Path("results"),
    docs: Annotated[
        Path | None, typer.Option(help="Holds NAME.json and NAME.md; by default the folder.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Compute these cells: batch=20")
    ] = None,
    jobs: Annotated[int, typer.Option(help="The number of processes.")] = 1,
    minutes: Annotated[float | None, typer.Option(help="Start no cell after this time.")] = None,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Compute nothing; make JSON and page again.")
    ] = False,
) -> None:
    """Repeat an experiment of the paper; the same command goes on where it was stopped."""
    from deconfound_lab.harness import Experiment, load_cells, run_experiment

    experiment = load_experiment(name)
    if not report_only:
        cells = select_cells(experiment, only or [])
        chosen = Experiment(name, cells, experiment.compute, experiment.page)
        run_experiment(chosen, folder / name, jobs=jobs, minutes=minutes, on_progress=_report_cell)
    own = load_cells(experiment, folder / name)
    results = publish(experiment, own, docs or folder)
    done = sum("result" in cell for cell in results.cells)
    typer.echo(f"{done} cells of {name} are in {(docs or folder) / name}.json and .md.")


def cohort(
    folder: Annotated[Path, typer.Argument(help="The BIDS folder to write.")],
    size: Annotated[int, typer.Option(help="Voxels along each axis of a scan.")] = 64,
    people: Annotated[int | None, typer.Option(help="People; all 1,262 by default.")] = None,
    independent: Annotated[
        bool, typer.Option("--independent", help="Draw diagnoses independently of confounds.")
    ] = False,
    seed: Seed = 0,
) -> None:
    """Simulate the paper's MRI cohort and write it as a BIDS folder."""
    simulate_cohort = _import("deconfound_lab.cohort:simulate_cohort")
    if folder.exists() and any(folder.iterdir()):
        raise OptionError(f"folder {str(folder)!r} is not empty. Write another one.")
    simulated = simulate_cohort(size, seed, independent=independent, people=people)
    simulated.write_bids(folder)
    typer.echo(f"{len(simulated.table)} people are in {folder}.")


COMMANDS = (demo, reproduce, cohort)


def load_experiment(name: str) -> Experiment:
    """Return an experiment by its name."""
    if name not in EXPERIMENTS:
        raise OptionError(f"There is no experiment {name!r}. {nearest_names(name, EXPERIMENTS)}")
    experiment: Experiment = _import(EXPERIMENTS[name])()
    return experiment


def select_cells(experiment: Experiment, settings: list[str]) -> list[dict[str, Any]]:
    """Return the cells with all of these settings, each written as KEY=VALUE."""
    cells = list(experiment.cells)
    known = {key: value for cell in cells for key, value in cell.items()}
    for text in settings:
        key, _, value = text.partition("=")
        if key not in known:
            raise OptionError(f"No cell has a setting {key!r}. {nearest_names(key, known)}")
        cells = [cell for cell in cells if cell.get(key) == _parse(value)]
    if not cells:
        raise OptionError(f"No cell has the settings {' '.join(settings)}. Name fewer of them.")
    return cells


def publish(experiment: Experiment, own: Any, docs: Path) -> Any:
    """Join results with those in the JSON of the documentation, save them, and fill the page.

    A cell that is computed here replaces the older one of the JSON.
    """
    from deconfound_lab.harness import Results
    from deconfound_lab.report import write_page

    path = docs / f"{experiment.name}.json"
    results = own.add(Results.load(path)) if path.exists() else own
    results.save(path)
    write_page(experiment.name, experiment.page(results), results, docs)
    return results


def _import(target: str) -> Any:
    """Return an object by "module:name"."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def _parse(value: str) -> Any:
    """Return a number or null as JSON writes it, and anything else as text."""
    try:
        return json.loads(value)
    except ValueError:
        return value


def _check_target(path: Path, force: bool) -> None:
    if path.exists() and not force:
        raise OptionError(f"--out {str(path)!r} exists. Write --force or another name.")


def _report(text: str) -> None:
    typer.echo(text, err=True)


def _report_cell(done: int, total: int, text: str) -> None:
    _report(f"{done} of {total} cells: {text}")
