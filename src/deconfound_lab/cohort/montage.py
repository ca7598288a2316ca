"""One picture of the simulated cohort: the base, what each effect changes, and the sites side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from deconfound.errors import OptionError, need
from deconfound_lab.cohort.anatomy import EXTENT
from deconfound_lab.cohort.effects import coefficients, load_template
from deconfound_lab.cohort.people import TABLE_ONE
from deconfound_lab.cohort.rendering import Draws, Renderer, draw
from deconfound_lab.cohort.strengths import Strengths

EFFECTS: dict[str, dict[str, float]] = {
    "impairment: severity 0 → 2.5": {"mci": 2.5},
    "HIV: severity 0 → 2.5": {"hiv": 2.5},
    "age: 55 → 75": {"age": 75.0},
    "sex: F → M": {"male": 1.0},
}
_START = {"mci": 0.0, "hiv": 0.0, "age": 55.0, "male": 0.0}


def draw_montage(path: str | Path, *, size: int = 64, anatomy: str = "procedural", seed: int = 0) -> Path:
    """Draw the montage as PNG; people at the sites have the individual variation of this seed."""
    drawing = need("matplotlib.figure", "train")
    if Path(path).suffix.lower() != ".png":
        raise OptionError(f"the montage must be written to a .png; got {str(path)!r}.")
    strengths = Strengths()
    renderer = Renderer(load_template(anatomy, size), strengths, size, torch.device("cpu"))
    figure = drawing.Figure(figsize=(11, 12.4), layout="constrained")
    grid = figure.subplots(3 + 1 + len(EFFECTS) // 2, 6)
    average = _average(size)
    start = _brain(renderer, strengths, average, {})
    _row(grid[0], [(start, "a person of 55, as tissue")], {"cmap": "gray", "vmin": 0, "vmax": 1})
    changes = [(_brain(renderer, strengths, average, latents) - start, name) for name, latents in EFFECTS.items()]
    for line in range(len(changes) // 2):
        _row(grid[1 + line], changes[2 * line : 2 * line + 2], {"cmap": "RdBu_r", "vmin": -0.3, "vmax": 0.3})
    for line, site in enumerate(TABLE_ONE):
        people = []
        for number in range(2):
            draws = draw((seed, line, number), size)
            brain = _brain(renderer, strengths, draws, {"age": TABLE_ONE[site].age[0], "male": float(number)})
            scan = renderer.scan(brain, site, draws).numpy() / 1000
            people.append((torch.from_numpy(scan), f"{site}, {'man' if number else 'woman'} of mean age"))
        _row(grid[3 + line], people, {"cmap": "gray", "vmin": 0, "vmax": 1.05})
    for place in grid.ravel():
        place.set_axis_off()
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)
    return path


def _average(size: int) -> Draws:
    """A person who differs from the template in nothing."""
    person = draw((0,), size)
    return Draws(*(np.zeros_like(values) for values in vars(person).values()))


def _brain(renderer: Renderer, strengths: Strengths, draws: Draws, latents: dict[str, float]) -> torch.Tensor:
    values = _START | latents
    age, mci, hiv = (np.array([values[name]]) for name in ("age", "mci", "hiv"))
    tissue, motion = coefficients(age, mci, hiv, draws.modes[None], strengths)
    return renderer.brain(tissue[0], motion[0], values["male"] == 1.0, draws)


def _row(places: NDArray[Any], volumes: list[tuple[torch.Tensor, str]], options: dict[str, Any]) -> None:
    """Three cuts of each volume, side by side; a single volume is cut in six places."""
    heights = [[0.53], [0.55], [0.64]] if len(volumes) > 1 else [[0.36, 0.53], [0.45, 0.55], [0.5, 0.64]]
    cuts = [(axis, height) for axis, several in zip((2, 1, 0), heights, strict=True) for height in several]
    shown = [(volume, name, *cut) for volume, name in volumes for cut in cuts]
    for number, (place, (volume, name, axis, height)) in enumerate(zip(places, shown, strict=True)):
        size = volume.shape[0]
        across, up = (i for i in range(3) if i != axis)
        picture = volume.select(axis, int(height * size)).T.numpy()
        place.imshow(picture, origin="lower", aspect=EXTENT[up] / EXTENT[across], **options)
        if number % len(cuts) == (1 if len(volumes) > 1 else 0):
            place.set_title(name, fontsize=11, loc="center" if len(volumes) > 1 else "left")
