"""The files of the MRI experiment: one for each finished training, so that a folder goes on on any machine."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deconfound.data.files import only_one, read_json, write_bytes, write_json
from deconfound.errors import RunError
from deconfound.training.needs import listed_faults
from deconfound_lab.cohort.cohort import Cohort
from deconfound_lab.mri.fold import Outcome
from deconfound_lab.mri.plan import ARMS, Arm, Plan

ABOUT = "experiment.json"
Cell = tuple[int, int, str]
"""Batch size, fold, arm."""

# Which trainings there are changes nothing in any of them, so a plan may grow in the same folder.
_WHICH = ("batch_sizes", "run_folds", "arms", "bootstraps")
_ARRAYS = ("rows", "logits", "features", "independent")


@dataclass(frozen=True)
class Kept:
    """A finished training.

    Attributes:
        outcome: What it gave.
        arm: What was trained.
        provenance: Where and with what.
    """

    outcome: Outcome
    arm: Mapping[str, Any]
    provenance: Mapping[str, Any]


def claim(out: Path, plan: Plan, cohort: Cohort) -> None:
    """Mark the folder as this experiment's, or refuse one that is another's.

    The cohort's fingerprint is one of its settings, not of its voxels, which differ in the last bit between a CPU and
    a GPU.
    """
    own = {name: value for name, value in plan.to_dict().items() if name not in _WHICH}
    if not (out / ABOUT).exists():
        write_json(out / ABOUT, {"plan": own, "data": cohort.fingerprint})
        return
    found = read_json(out / ABOUT)
    was = found.get("plan", {})
    other = [f"{name} {was.get(name)!r} instead of {own[name]!r}" for name in own if was.get(name) != own[name]]
    if not other and found.get("data") != cohort.fingerprint:
        other = ["another cohort"]
    if other:
        raise RunError(f"{out} must hold this experiment; got one with {', '.join(other)}. Choose another folder.")


def read_kept(out: Path, plan: Plan) -> dict[Cell, Kept]:
    """The finished trainings of a plan; every file that is broken, or of an arm that has changed, is named."""
    found: dict[Cell, Kept] = {}
    faults = []
    for cell in plan.cells():
        path = place_of(out, cell)
        if not path.exists():
            continue
        try:
            found[cell] = read_training(path)
        except RunError as error:
            faults.append(str(error))
            continue
        if found[cell].arm != definition(cell[2]):
            faults.append(
                f"{path} must be a training of the arm {cell[2]!r} as it is; got one of {dict(found[cell].arm)}. "
                "Delete it to have it made again, or choose another folder."
            )
    if faults:
        raise RunError(faults[0] if len(faults) == 1 else listed_faults(str(out), faults))
    return found


def read_training(path: Path) -> Kept:
    """One finished training."""
    try:
        with np.load(path, allow_pickle=False) as kept:
            about = json.loads(str(kept["about"]))
            arrays = {name: kept[name] for name in _ARRAYS}
        arm, provenance = about.pop("arm"), about.pop("provenance")
        return Kept(Outcome(**arrays, **about), arm, provenance)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} must be a finished training; got {error}. Delete it to have it made again.") from error


def write_training(out: Path, cell: Cell, outcome: Outcome, provenance: Mapping[str, Any]) -> None:
    """Keep a finished training, and forget that it failed before."""
    about = {"history": outcome.history, "best": outcome.best, "seconds": outcome.seconds}
    about |= {"arm": definition(cell[2]), "provenance": provenance}
    content = io.BytesIO()
    arrays = {name: getattr(outcome, name) for name in _ARRAYS}
    np.savez_compressed(content, about=np.array(json.dumps(about)), **arrays)
    write_bytes(place_of(out, cell), content.getvalue())
    _failure(out, cell).unlink(missing_ok=True)


def write_failure(out: Path, cell: Cell, error: Exception) -> None:
    """Keep what stopped a training."""
    write_json(_failure(out, cell), {"error": str(error).strip().splitlines()[0] or type(error).__name__})


def read_failures(out: Path, plan: Plan) -> dict[str, str]:
    """What stopped trainings of a plan, by their names."""
    files = [(cell, _failure(out, cell)) for cell in plan.cells()]
    return {name_of(cell): read_json(file)["error"] for cell, file in files if file.exists()}


@contextmanager
def held(out: Path, name: str) -> Iterator[bool]:
    """Whether a piece of the work is this process's: False while another is at it. The hold ends with the process."""
    with ExitStack() as stack:
        try:
            stack.enter_context(only_one(out / "trainings" / ".held" / name))
        except RunError:
            yield False
            return
        yield True


def definition(arm: str) -> dict[str, Any]:
    """What an arm is, in plain values."""
    known: Arm = ARMS[arm]
    plain: dict[str, Any] = json.loads(json.dumps(asdict(known)))
    return plain


def name_of(cell: Cell) -> str:
    """A training in words."""
    batch, fold, arm = cell
    return f"{arm}, batch {batch}, fold {fold}"


def place_of(out: Path, cell: Cell) -> Path:
    """The file of a training."""
    batch, fold, arm = cell
    return out / "trainings" / f"{arm}-batch{batch}-fold{fold}.npz"


def _failure(out: Path, cell: Cell) -> Path:
    return place_of(out, cell).with_suffix(".failed.json")
