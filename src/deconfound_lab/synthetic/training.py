"""The trainings of a cell: which images train, validate and test, and what is measured when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import deconfound as dc
from deconfound.methods import Setting
from deconfound.training import InMemoryTrainer, Samples, Schedule, bce
from deconfound_lab.footing import kind_of, refits, trained_with
from deconfound_lab.synthetic.images import AMPLITUDES, Ranges, SyntheticImages, ceiling, images_on
from deconfound_lab.synthetic.measures import accuracy, gap, measure, outputs
from deconfound_lab.synthetic.networks import NETWORKS
from deconfound_lab.synthetic.plan import TRAINING_IMAGES, Setup

TEST_PER_GROUP = 10_000
Tick = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""


@dataclass(frozen=True)
class Problem:
    """What a training trains and validates on, and the images that test it."""

    design: dc.Design
    train: Samples
    validation: Samples
    tests: dict[str, SyntheticImages]


def make_problem(
    problem: str,
    seed: int,
    device: torch.device,
    main: Ranges = AMPLITUDES,
    test_per_group: int = TEST_PER_GROUP,
    design: dc.Design | None = None,
    balanced: bool = False,
) -> Problem:
    """Training, validation and test images of one seed; a design of their own sees the training images alone."""
    half = TRAINING_IMAGES // 2
    train, validation = (draw(problem, device, 10 * seed + part, half, main=main) for part in (0, 1))
    weights = [weights_of(each, problem) if balanced else None for each in (train, validation)]
    if design is None:
        design = dc.Design(confounds=confounds_of(problem), keep=["group"]).fit(train.table, weight=weights[0])
    tests = {
        name: draw(problem, device, 100_000 + 10 * seed + part, test_per_group, name, main)
        for part, name in enumerate(("tied", "independent"))
    }
    images = [labelled(*each, design) for each in zip((train, validation), weights, strict=True)]
    return Problem(design, images[0], images[1], tests)


def draw(
    problem: str,
    device: torch.device,
    seed: int,
    per_group: int,
    confound: str = "tied",
    main: Ranges = AMPLITUDES,
) -> SyntheticImages:
    """Images of a kind of problem."""
    reading = "width" if problem == "width" else "amplitude"
    kind = {"width": "one", "curved-linear": "curved"}.get(problem, problem)
    return images_on(device, per_group, seed, confound, kind, reading, main)


def confounds_of(problem: str) -> list[Any]:
    """What the design of a problem removes."""
    others: dict[str, list[Any]] = {
        "two": ["confound", "second"],
        "sites": ["site"],
        "curved": [dc.Spline("confound", df=5)],
    }
    return others.get(problem, ["confound"])


def weights_of(data: SyntheticImages, problem: str) -> NDArray[np.float64]:
    """Overlap weights, under which group and confounds are independent among these images."""
    return dc.balance(data.table, ["group"], confounds_of(problem), types={"group": "categorical"}).row_weight


def labelled(data: SyntheticImages, weight: NDArray[np.float64] | None, design: dc.Design) -> Samples:
    """Images with metadata and labels: to train and validate with."""
    device = data.images.device
    metadata = torch.from_numpy(design.encode(data.table)).to(device)
    known = None if weight is None else torch.from_numpy(weight).float().to(device)
    return Samples(data.images, metadata, data.group.float(), weight=known)


def make_trainer(setup: Setup, seed: int, problem: Problem, steps: int, made: Any = None) -> InMemoryTrainer:
    """A training of so many steps, on a GPU captured as graphs: a network this small waits for its own launches.

    Args:
        setup: What is trained.
        seed: Of the network and of the order of batches.
        problem: The images.
        steps: Training steps.
        made: A method that goes on; a new one by default.
    """
    device = problem.train.x.device
    if made is None:
        torch.manual_seed(seed)
        network, places = NETWORKS[setup.network]
        setting = Setting(problem.design, places, lambda: problem.train.batches(TRAINING_IMAGES), lr=setup.lr)
        options = trained_with(setup.method, setup.options)
        made = kind_of(setup.method).prepare(network().to(device), setting, **options).to(device)
    warm_up = setup.warm_up / steps
    schedule = Schedule(
        steps=steps, batch_size=setup.batch, lr=setup.lr, optimizer="adam", validate_every=setup.validate_every,
        rate=(lambda share: min(1.0, share / warm_up)) if warm_up else None, capture=device.type == "cuda",
        eval_batch=TRAINING_IMAGES,
    )  # fmt: skip
    return InMemoryTrainer(made, problem.train, problem.validation, bce, schedule, seed=seed)


def run_setup(
    setup: Setup, device: torch.device, tick: Tick, test_per_group: int = TEST_PER_GROUP
) -> list[dict[str, Any]]:
    """Train every seed of a cell and measure it."""
    if setup.stages:
        return [run_stages(setup, seed, device, tick, test_per_group) for seed in setup.seeds]
    last = max(setup.steps, setup.long)
    problems = [
        make_problem(setup.problem, seed, device, test_per_group=test_per_group, balanced=setup.balanced)
        for seed in setup.seeds
    ]
    trainers = [make_trainer(setup, seed, each, last) for seed, each in zip(setup.seeds, problems, strict=True)]
    measured: list[dict[str, Any]] = [{"seed": seed} for seed in setup.seeds]
    for step in range(1, last + 1):
        validates = step % setup.validate_every == 0 or step in (setup.steps, last)
        for trainer, problem, result in zip(trainers, problems, measured, strict=True):
            trainer.step()
            if validates:
                trainer.validate()
            if step == setup.steps:
                result.update(_measured(trainer, problem, setup.batch))
            if step == last and setup.long:
                trainer.load(trainer.state(), refit=True)
                result["long"] = measure(trainer.method, problem.design, problem.tests)
        if step % 50 == 0 or step == last:
            trainers[-1].wait()
            tick(step, last)
    return measured


def _measured(trainer: InMemoryTrainer, problem: Problem, batch: int) -> dict[str, Any]:
    """The network of the best validation loss, refitted and as trained, and the last one; then training goes on."""
    now = trainer.state()
    found: dict[str, Any] = {"best_step": int(trainer.best_step), "validation_loss": float(trainer.best_loss)}
    for name, state, refit in (("as_trained", trainer.best, False), ("last", now, True), ("best", trainer.best, True)):
        trainer.load(state, refit=refit)
        found[name] = measure(trainer.method, problem.design, problem.tests)
    found["gap"] = gap(trainer, problem.train, batch)
    trainer.load(now)
    return found


def run_stages(setup: Setup, seed: int, device: torch.device, tick: Tick, test_per_group: int) -> dict[str, Any]:
    """Data that drift: one network goes through the stages, and is measured on every stage after each.

    The main effect fades from stage to stage (ceilings 75, 68.75, 62.5, 56.25 and 50 %) while the confound stays tied
    to the group, so that a network which follows the confound does better and better than it should. The design stays
    that of the first stage.
    """
    design = None
    problems = []
    for stage, main in enumerate(setup.stages):
        number = 1000 + 50 * seed + stage
        made = make_problem(setup.problem, number, device, main, test_per_group, design, setup.balanced)
        design = made.design
        problems.append(made)
    tables: dict[str, list[list[float]]] = {"as trained": [], "refitted": []}
    if not refits(setup.method):
        del tables["refitted"]
    network: Any = None
    for stage, problem in enumerate(problems):
        trainer = make_trainer(setup, seed, problem, setup.steps, network)
        for step in range(1, setup.steps + 1):
            trainer.step()
            if step % 50 == 0:
                tick(stage * setup.steps + step, len(problems) * setup.steps)
        state, network = trainer.state(), trainer.method
        for judged, table in tables.items():
            trainer.load(state, refit=judged == "refitted")
            tied = [(each.tests["tied"], each.design) for each in problems]
            table.append([accuracy(outputs(network, own, data)[0], data.group) for data, own in tied])
        trainer.load(state)
    ceilings = [ceiling(main) for main in setup.stages]
    found = {name: {"accuracy": table, **transfer(table, ceilings)} for name, table in tables.items()}
    return {"seed": seed, "ceilings": ceilings, **found}


def transfer(accuracy: list[list[float]], ceilings: list[float]) -> dict[str, float]:
    """How far accuracies lie from their ceilings, in the past, the present and the future of each stage.

    Args:
        accuracy: Of stage j after training on stage i, `[i][j]`.
        ceilings: The best accuracy of each stage without the confound.

    Returns:
        `deviation`: the mean of |accuracy − ceiling| over stages just trained. `backward`: of stages trained before
        the present one. `forward`: of stages still to come.
    """
    away = [[abs(value - best) for value, best in zip(row, ceilings, strict=True)] for row in accuracy]
    stages = range(len(away))

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    return {
        "deviation": mean([away[i][i] for i in stages]),
        "backward": mean([away[i][j] for i in stages for j in stages if j < i]),
        "forward": mean([away[i][j] for i in stages for j in stages if j > i]),
    }
