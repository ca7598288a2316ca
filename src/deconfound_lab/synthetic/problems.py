"""The images and the design of a cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import deconfound as dc
from deconfound_lab.synthetic.grid import TRAINING_IMAGES
from deconfound_lab.synthetic.images import AMPLITUDES, Ranges, SyntheticImages, synthetic_images

TEST_PER_GROUP = 10_000


@dataclass(frozen=True)
class Part:
    """Images on the device that trains, with all that a method may read of them."""

    x: Tensor
    metadata: Tensor
    target: Tensor

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class Problem:
    """What a cell trains and validates on, and the images that test it."""

    design: dc.Design
    train: Part
    validation: Part
    tests: dict[str, SyntheticImages]


def encoded(data: SyntheticImages, design: dc.Design, device: torch.device, labels: bool = True) -> Part:
    """Images as a design encodes them; without labels, as a user's new people."""
    table: Any = data.table if labels else data.columns
    metadata = torch.from_numpy(design.encode(table))
    return Part(*(each.to(device) for each in (data.images, metadata, data.group.float())))


def draw(problem: str, seed: int, per_group: int, confound: Any = "tied", main: Ranges = AMPLITUDES) -> SyntheticImages:
    """Images of a kind of problem."""
    reading = "width" if problem == "width" else "amplitude"
    kind = {"width": "one", "curved-linear": "curved"}.get(problem, problem)
    return synthetic_images(per_group, seed, confound, kind=kind, reading=reading, main=main)


def confounds_of(problem: str) -> list[Any]:
    """What the design of a problem removes."""
    others: dict[str, list[Any]] = {
        "two": ["confound", "second"],
        "sites": ["site"],
        "curved": [dc.Spline("confound", df=5)],
    }
    return others.get(problem, ["confound"])


def make_problem(
    problem: str,
    seed: int,
    device: torch.device,
    main: Ranges = AMPLITUDES,
    test_per_group: int = TEST_PER_GROUP,
    design: dc.Design | None = None,
) -> Problem:
    """Training, validation and test images of one seed; a design of their own sees the training images alone."""
    half = TRAINING_IMAGES // 2
    train, validation = (draw(problem, 10 * seed + part, half, main=main) for part in (0, 1))
    design = design or dc.Design(confounds=confounds_of(problem), keep=["group"]).fit(train.table)
    tests = {
        name: draw(problem, 100_000 + 10 * seed + part, test_per_group, name, main)
        for part, name in enumerate(("tied", "independent"))
    }
    return Problem(design, encoded(train, design, device), encoded(validation, design, device), tests)
