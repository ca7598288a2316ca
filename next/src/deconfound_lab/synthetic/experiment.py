"""The synthetic experiment: every way of training at every batch size, and what is measured.

A cell is one training of one arm. Its settings are those of `make_cell`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

import deconfound as dc
from deconfound.attach import collect
from deconfound.methods import LayeredMethod, Method, Setting, make_method
from deconfound.metrics import within_group_dcor_sqr
from deconfound.training import Part, Plain, Progress, Schedule, binary_cross_entropy, train
from deconfound_lab.harness import Cell, use_one_thread
from deconfound_lab.synthetic.images import SyntheticImages, synthetic_images
from deconfound_lab.synthetic.networks import MEASURED_BEFORE, NETWORKS, SyntheticCNN

IMAGES_PER_GROUP = 1000
TEST_IMAGES_PER_GROUP = 10_000
# Distance correlations need the distances of all pairs.
DCOR_IMAGES_PER_GROUP = 2000
# Test seeds start here, so that no seed is used for training and for tests.
FIRST_TEST_SEED = 100_000

LEAST_STEPS, LEAST_EPOCHS = 1500, 10
# A validation reads all validation images twice, once for the refit.
LEAST_STEPS_BETWEEN_VALIDATIONS = 50
# Up to this batch size the learning rate rises during the first epoch. Otherwise Adam's first
# steps, which are as large as later ones, kill all hidden units of some networks, plain ones too.
LARGEST_WARMED_BATCH = 20
# Test images in one forward pass. More than a few hundred do not fit into a CPU's cache.
PREDICTED_ROWS = 200
# Batches on which the outputs of training and evaluation mode are compared.
COMPARED_BATCHES = 20


@dataclass(frozen=True)
class Arm:
    """One way of training.

    Attributes:
        title: What tables call it.
        method: A method of `make_method`.
        options: Options of the method.
        norm: What stands before each ReLU of the CNN, before the layer of the method.
        lr: Adam's learning rate of the network.
        is_refitted: Whether coefficients are refitted to the validation images before the best
            state is chosen. The published methods are not.
        least_batch: The smallest batch from which the arm can learn anything.
    """

    title: str
    method: str = "none"
    options: Mapping[str, Any] = field(default_factory=dict)
    norm: str = "none"
    lr: float = 1e-4
    is_refitted: bool = True
    least_batch: int = 1


# Algorithm 1 in one pass, with a fixed step η₁ on whitened metadata.
PUBLISHED_OPTIONS = {"gradient": "frozen", "step": 0.02}

ARMS = {
    "plain": Arm("plain CNN"),
    "batchnorm": Arm("BatchNorm", norm="batch", least_batch=2),
    "adversarial": Arm(
        "adversarial", "adversarial", {"weight": 0.2, "warmup": 100}, least_batch=20
    ),
    "mdn": Arm("MDN", "mdn"),
    "rmdn": Arm("R-MDN", "rmdn"),
    "pmdn-published": Arm(
        "PMDN, published", "pmdn", PUBLISHED_OPTIONS, norm="layer", is_refitted=False
    ),
    "pmdn-literal": Arm(
        "PMDN, published, two passes",
        "deconfound_lab.baselines:LiteralPMDN",
        norm="layer",
        is_refitted=False,
    ),
    "pmdn-authors": Arm(
        "PMDN, authors' code",
        "deconfound_lab.baselines:AuthorsPMDN",
        norm="layer",
        lr=1e-5,
        is_refitted=False,
    ),
    "pmdn": Arm("PMDN", "pmdn"),
    # What LayerNorm alone does, and what it does to our PMDN.
    "layernorm": Arm("LayerNorm", norm="layer"),
    "pmdn-layernorm": Arm("PMDN after LayerNorm", "pmdn", norm="layer"),
    "pmdn-joint": Arm("PMDN, Eq. 8", "deconfound_lab.baselines:JointPMDN", {"penalty": 1.0}),
}
FIGURE_ARMS = (
    "plain",
    "batchnorm",
    "adversarial",
    "mdn",
    "rmdn",
    "pmdn-published",
    "pmdn-literal",
    "pmdn-authors",
    "pmdn",
)
WEIGHTED_ARMS = ("plain", "batchnorm", "adversarial", "mdn", "rmdn", "pmdn-published", "pmdn")


def make_cell(  # noqa: PLR0913
    arm: str,
    batch: int,
    seed: int = 0,
    *,
    kind: str = "one",
    weights: str | None = None,
    network: str = "cnn",
    order: str = "random",
    steps: int | None = None,
    lr: float | None = None,
) -> Cell:
    """Return the settings of one training.

    Args:
        arm: A name of `ARMS`.
        batch: The number of images of a batch.
        seed: The seed of images, first weights and order.
        kind: What the images hold, as in `synthetic_images`.
        weights: "overlap" draws training images by weights under which group and confounds are
            independent, and weighs validation images.
        network: A name of `NETWORKS`.
        order: "random"; or "sorted", one pass over the images in the order of their site.
        steps: Training steps; None takes 1,500 steps or 10 epochs, whichever is more.
        lr: Adam's learning rate; None takes that of the arm.
    """
    epoch = 2 * IMAGES_PER_GROUP // batch
    return {
        "arm": arm,
        "batch": batch,
        "seed": seed,
        "kind": kind,
        "weights": weights,
        "network": network,
        "order": order,
        "steps": steps or max(LEAST_STEPS, LEAST_EPOCHS * epoch),
        "lr": lr or ARMS[arm].lr,
    }


def grid() -> list[Cell]:
    """Return all cells, the most informative first.

    One seed of Figure 2 at batch 200 and 20 comes first, then batch 2 and 1, the smaller questions,
    and further seeds. Batches of 1,000 and 2,000 take half an hour each on a CPU and come last.
    """
    small = ("plain", "mdn", "rmdn", "pmdn-published", "pmdn")
    cells = [make_cell(arm, batch) for batch in (20, 200) for arm in FIGURE_ARMS]
    cells += [make_cell(arm, 2) for arm in FIGURE_ARMS if ARMS[arm].least_batch <= 2]
    cells += _online_cells()
    cells += [make_cell(arm, 20, weights="overlap") for arm in WEIGHTED_ARMS]
    cells += [make_cell(arm, 20) for arm in ("layernorm", "pmdn-layernorm", "pmdn-joint")]
    kinds = ("width", "two", "sites")
    cells += [make_cell(arm, 20, kind=kind) for kind in kinds for arm in ("plain", "mdn", "pmdn")]
    cells += _network_cells(0)
    cells += [make_cell(arm, 200, weights="overlap") for arm in WEIGHTED_ARMS]
    cells += [make_cell(arm, 1) for arm in small]
    for seed in (1, 2):
        for batch in (20, 2, 200):
            arms = [arm for arm in FIGURE_ARMS if ARMS[arm].least_batch <= batch]
            cells += [make_cell(arm, batch, seed) for arm in arms]
        cells += _network_cells(seed)
        cells += [make_cell(arm, 20, seed, weights="overlap") for arm in WEIGHTED_ARMS]
        cells += [make_cell(arm, 1, seed) for arm in small]
        cells += [make_cell(arm, 200, seed, weights="overlap") for arm in WEIGHTED_ARMS]
    for batch in (1000, 2000):
        cells += [make_cell(arm, batch, seed) for seed in range(3) for arm in FIGURE_ARMS]
    return cells


def _online_cells() -> list[Cell]:
    """One pass over images that come one at a time, at random or first all of one site."""
    return [
        make_cell(arm, 1, kind="sites", order=order, steps=2 * IMAGES_PER_GROUP)
        for order in ("random", "sorted")
        for arm in ("plain", "mdn", "rmdn", "pmdn")
    ]


def _network_cells(seed: int) -> list[Cell]:
    """Short trainings of the GRU and the transformer, which learn at a higher rate."""
    arms = ("plain", "mdn", "pmdn")
    sizes = ((20, 600, arms), (2, 1000, ("mdn", "pmdn")))
    return [
        make_cell(arm, batch, seed, network=network, steps=steps, lr=1e-3)
        for network in ("gru", "transformer")
        for batch, steps, arms in sizes
        for arm in arms
    ]


class SortedPart(Part):
    """The images of a part in the order in which they lie, as if they came online."""

    def order(
        self, seed: int, epoch: int, batch_size: int, rank: int = 0, processes: int = 1
    ) -> list[Tensor]:
        """Return the positions of each batch, from the first image to the last."""
        return list(torch.arange(len(self)).split(batch_size))


@dataclass(frozen=True)
class Problem:
    """The images of one cell, and the design that knows the training images alone.

    Attributes:
        design: Fitted to the training images.
        fitting: The training images.
        held_out: The validation images.
        tests: Test images, on which the confound is "associated" with the group or "independent".
    """

    design: dc.Design
    fitting: Part
    held_out: Part
    tests: Mapping[str, SyntheticImages]


def make_problem(
    cell: Cell,
    per_group: int = IMAGES_PER_GROUP,
    test_per_group: int = TEST_IMAGES_PER_GROUP,
) -> Problem:
    """Draw the images of a cell. Training, validation and test images have different seeds."""
    seed, kind = cell["seed"], cell["kind"]
    fitting, held_out = (
        synthetic_images(per_group, 10 * seed + part, kind=kind) for part in (0, 1)
    )
    first = FIRST_TEST_SEED + 10 * seed
    tests = {
        confound: synthetic_images(test_per_group, first + part, confound, kind)
        for part, confound in enumerate(("associated", "independent"))
    }
    draw = design_weight = held_out_weight = None
    if cell["weights"] == "overlap":
        weights = dc.balance(fitting.table, ["group"], fitting.confounds)
        draw, design_weight = weights.row_weight, weights.design_weight
        # Validation images are weighed together with training images, as in the library.
        together = pd.concat([fitting.table, held_out.table], ignore_index=True)
        weight = dc.balance(together, ["group"], fitting.confounds).row_weight[len(fitting.table) :]
        held_out_weight = weight / weight.mean()
    design = dc.Design(fitting.confounds, keep=["group"]).fit(fitting.table, design_weight)
    rows = torch.arange(len(fitting.group))
    kind_of_part = Part
    if cell["order"] == "sorted":
        kind_of_part = SortedPart
        # Images lie in the order of their groups, which a site must not have.
        shuffled = np.random.default_rng(seed).permutation(len(rows))
        sites = fitting.table["site"].to_numpy()[shuffled]
        rows = torch.from_numpy(shuffled[np.argsort(sites, kind="stable")])
    return Problem(
        design,
        kind_of_part(
            fitting.images,
            rows,
            torch.from_numpy(design.encode(fitting.table))[rows],
            fitting.group.float()[rows, None],
            draw=_tensor(draw),
        ),
        Part(
            held_out.images,
            torch.arange(len(held_out.group)),
            torch.from_numpy(design.encode(held_out.table)),
            held_out.group.float()[:, None],
            weight=_tensor(held_out_weight),
            layer_weight=_tensor(held_out_weight),
        ),
        tests,
    )


def _tensor(weight: NDArray[np.float64] | None) -> Tensor | None:
    return None if weight is None else torch.from_numpy(weight).float()


def make_cell_method(cell: Cell, problem: Problem) -> Method:
    """Return the method of a cell around a new network; equal seeds give equal first weights."""
    arm = ARMS[cell["arm"]]
    with torch.random.fork_rng():
        torch.manual_seed(cell["seed"])
        kind = NETWORKS[cell["network"]]
        network = kind(arm.norm) if kind is SyntheticCNN else kind()
        example = problem.fitting.batch(torch.arange(2)).x
        setting = Setting(problem.design, example)
        return make_method(arm.method, network, setting, method_options(arm))


def method_options(arm: Arm) -> dict[str, Any]:
    """Return the options of an arm's method, with one coefficient per pixel, as in the paper."""
    is_layered = arm.method in ("mdn", "rmdn", "pmdn") or arm.method.endswith("LiteralPMDN")
    return {**({"per": "feature"} if is_layered else {}), **arm.options}


def make_schedule(cell: Cell) -> Schedule:
    """Return the schedule of a cell, as in the paper with Adam and a constant learning rate."""
    epoch = 2 * IMAGES_PER_GROUP // cell["batch"]
    is_warmed = cell["batch"] <= LARGEST_WARMED_BATCH
    return Schedule(
        epochs=-(-cell["steps"] // epoch),
        batch_size=cell["batch"],
        optimizer="adam",
        lr=cell["lr"],
        weight_decay=0.0,
        warmup_steps=min(epoch, cell["steps"] // 5) if is_warmed else 0,
        validate_every=max(epoch, LEAST_STEPS_BETWEEN_VALIDATIONS),
    )


def train_cell(cell: Cell) -> dict[str, Any]:
    """Train one cell on one thread, and measure it as trained and refitted."""
    use_one_thread()
    problem = make_problem(cell)
    method, progress = fit_cell(cell, problem)
    method.load_state_dict(progress.best_state)
    result = {
        "step": int(progress.best["step"]),
        "validation_loss": progress.best.get("validation_loss"),
        "gap": mode_gap(method, problem.fitting, cell["batch"]),
        "as_trained": measure(method, problem),
    }
    if isinstance(method, LayeredMethod):
        method.refit(problem.held_out.batches)
        result["refitted"] = measure(method, problem)
    return result


def fit_cell(cell: Cell, problem: Problem) -> tuple[Method, Progress]:
    """Train the method of a cell by the library's loop."""
    method = make_cell_method(cell, problem)
    is_online = cell["order"] == "sorted"
    progress = train(
        method,
        problem.fitting,
        # Nobody who learns online can choose the best state afterwards.
        None if is_online else problem.held_out,
        binary_cross_entropy,
        make_schedule(cell),
        launcher=Plain("cpu"),
        seed=cell["seed"],
        refit=ARMS[cell["arm"]].is_refitted,
    )
    return method, progress


def measure(method: Method, problem: Problem) -> dict[str, float]:
    """Measure a network, as it is, on test images whose groups it does not read.

    Returns:
        `accuracy`, where the confound is associated with the group as in training. `independent`,
        the accuracy where it is not. `dcor2`, the paper's squared distance correlation of confounds
        and the first fully connected layer's output, within groups and averaged; `dcor2_logit`, the
        same of the logit.
    """
    measures: dict[str, float] = {}
    for name, data in problem.tests.items():
        logits, features = predict(method, problem.design, data)
        is_right = (logits[:, 0] > 0) == (data.group == 1)
        measures["accuracy" if name == "associated" else name] = float(is_right.double().mean())
        if name == "associated":
            half = len(data.group) // 2
            some = np.r_[: min(half, DCOR_IMAGES_PER_GROUP)]
            rows = np.r_[some, half + some]
            arrays = data.confound_numbers()[rows], data.group.numpy()[rows]
            measures["dcor2"] = within_group_dcor_sqr(features.numpy()[rows], *arrays)
            measures["dcor2_logit"] = within_group_dcor_sqr(logits.numpy()[rows], *arrays)
    return measures


@torch.no_grad()
def predict(method: Method, design: dc.Design, data: SyntheticImages) -> tuple[Tensor, Tensor]:
    """Return logits `(n, 1)`, and the first fully connected layer's output, `(n, d)`.

    Only the confounds are encoded, as for new people whose label nobody knows.
    """
    method.eval()
    metadata = torch.from_numpy(design.encode(data.table[data.confounds]))
    part = Part(data.images, torch.arange(len(data.images)), metadata, data.group.float()[:, None])
    rows = torch.arange(len(part)).split(PREDICTED_ROWS)
    batches = (part.batch(some) for some in rows)
    with collect(method.network, MEASURED_BEFORE, where="before") as collector:
        logits = torch.cat([method(batch.x, batch.metadata) for batch in batches])
    return logits, collector.features()


@torch.no_grad()
def mode_gap(method: Method, part: Part, batch_size: int) -> float:
    """Return how far logits of training mode lie from those of evaluation mode, in sd of the logit.

    The root mean square difference on batches of the size that was trained with. What a training
    forward pass learns is put back after each batch.
    """
    state = {name: value.clone() for name, value in method.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    positions = torch.randperm(len(part), generator=generator)[: COMPARED_BATCHES * batch_size]
    evaluated, trained = [], []
    for some in positions.split(batch_size):
        batch = part.batch(some)
        evaluated.append(method.eval()(batch.x, batch.metadata))
        trained.append(method.train()(batch.x, batch.metadata))
        method.load_state_dict(state)
    method.eval()
    difference = (torch.cat(trained) - torch.cat(evaluated)).double().square().mean().sqrt()
    return float(difference / torch.cat(evaluated).double().std())
