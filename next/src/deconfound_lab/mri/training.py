"""The cells of the MRI experiment, and how one of them is computed.

A cell is one training: an arm, a batch size and a test fold. Another kind of cell, "people", holds
the test people of a fold, so that all tables can be made from the results alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

import deconfound as dc
from deconfound.attach import collect
from deconfound.errors import OptionError
from deconfound.methods import Batch, LayeredMethod, Method, Setting, make_method
from deconfound.training import (
    Focal,
    Fold,
    Part,
    Plain,
    Progress,
    Schedule,
    outputs,
    read_task,
    split_folds,
    train,
)
from deconfound_lab.cohort import simulate_cohort
from deconfound_lab.harness import Cell, use_one_thread
from deconfound_lab.mri.arms import ARMS, FILTERS, TABLE_ARMS, MRINet
from deconfound_lab.mri.measures import (
    CONFOUNDS,
    LABELS,
    measure_accuracies,
    measure_associations,
    measure_within_groups,
)

BATCHES, FOLDS = (20, 80, 160, 240), 5
# Fewer epochs would judge a large batch before it has learned anything.
EPOCHS, STEPS = 30, 300
# At a batch of 20 people. It grows with the square root of the batch size.
LEARNING_RATE, BASE_BATCH = 5e-4, 20
WEIGHT_DECAY, GAMMA = 1e-2, 2.0
# Training stops after this share of the epochs without a better one.
PATIENCE = 0.25
# Scans of training people from which the mean brain is made.
MEAN_BRAIN_SCANS = 256
# Of these cells the features of test people are kept, for the t-SNE figure.
SHOWN_ARMS, SHOWN_BATCH, SHOWN_FOLD = ("mdn", "pmdn-literal", "pmdn"), 80, 0
DIGITS = 4


# What all trainings of the paper's experiment share; `make_cell` describes it.
SETTINGS = {
    "seed": 0,
    "folds": FOLDS,
    "size": 64,
    "people": None,
    "filters": list(FILTERS),
    "epochs": EPOCHS,
    "steps": STEPS,
}


def make_cell(arm: str, batch: int, fold: int, **settings: Any) -> Cell:
    """Return the settings of one training.

    Args:
        arm: A name of `ARMS`.
        batch: The number of people of a batch.
        fold: The number of the test fold.
        **settings: Changes of `SETTINGS`: `seed` of the cohort, the folds, first weights and order;
            number of `folds`; voxels along each axis (`size`); number of `people`, None for those
            of Table 1; `filters` of the network's blocks, [3, 6, 9, 6] in the paper's text; largest
            number of `epochs`, unless they have fewer than `steps` steps.
    """
    unknown = settings.keys() - SETTINGS.keys()
    if unknown:
        raise OptionError(f"There is no setting {unknown.pop()!r}. Write one of {[*SETTINGS]}.")
    return {"arm": arm, "batch": batch, "fold": fold, **SETTINGS, **settings}


def make_people_cell(fold: int, **settings: Any) -> Cell:
    """Return the settings of the cell that holds the test people of a fold."""
    cell = make_cell("people", 0, fold, **settings)
    return {name: cell[name] for name in ("arm", "fold", "seed", "folds", "people")}


def grid() -> list[Cell]:
    """Return all cells: the people, then the arms of Table 2, then the other arms.

    The arms of Table 2, and ours under balance, are trained in all five folds at all batch sizes;
    the others in three folds at two batch sizes.
    """
    cells = [make_people_cell(fold) for fold in range(FOLDS)]
    complete = (*TABLE_ARMS, "pmdn-balanced")
    for fold in range(FOLDS):
        cells += [make_cell(arm, batch, fold) for batch in BATCHES for arm in complete]
    others = [arm for arm in ARMS if arm not in complete]
    for fold in range(3):
        cells += [make_cell(arm, batch, fold) for batch in (20, 160) for arm in others]
    return cells


@dataclass(frozen=True)
class BalancedFocal:
    """The focal loss with γ = 2, in which people with and without a label count half each.

    Weights of a batch have one column for each label, shape `(n, 2)`.

    Attributes:
        shares: The share of training people with each label.
    """

    shares: tuple[float, ...]

    def __call__(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the loss of two labels, 0 or 1, averaged over them."""
        losses = []
        for place, share in enumerate(self.shares):
            target, logit = batch.target[:, place, None], logits[:, place, None]
            weight = torch.where(target[:, 0] > 0, 0.5 / share, 0.5 / (1 - share))
            if batch.weight is not None:
                weight = weight * batch.weight[:, place]
            losses.append(Focal(GAMMA)(logit, batch._replace(target=target, weight=weight)))
        return torch.stack(losses).mean()


@dataclass(frozen=True, eq=False)
class BrainScale:
    """Scans minus the mean brain, in units of one sd, so that training starts at the differences.

    Attributes:
        mean: The mean of training scans, shape `(1, size, size, size)`.
        sd: The sd of their differences from it.
    """

    mean: Tensor
    sd: Tensor

    @classmethod
    def of_scans(cls, scans: Tensor) -> BrainScale:
        """Return the scale of training scans `(n, 1, size, size, size)`."""
        values = scans.float()
        mean = values.mean(dim=0)
        return cls(mean, (values - mean).std())

    def __call__(self, scans: Tensor) -> Tensor:
        """Return inputs of the network from stored scans."""
        return (scans.float() - self.mean) / self.sd


@dataclass(frozen=True)
class Problem:
    """The people of one cell, and what is fitted to its training people alone.

    Attributes:
        design: Age, sex and site are removed, HIV and impairment are kept.
        fitting: The training people.
        held_out: The validation people.
        criterion: The loss.
        tests: The test people of the fold ("associated"), and as many people as in the whole cohort
            whose labels are independent of the confounds ("independent").
        test_people: Their tables.
    """

    design: dc.Design
    fitting: Part
    held_out: Part
    criterion: BalancedFocal
    tests: Mapping[str, Part]
    test_people: Mapping[str, pd.DataFrame]


def split_people(cell: Cell) -> tuple[pd.DataFrame, Fold]:
    """Return the table of the cohort and the fold of a cell. No scan is made."""
    settings = {name: cell[name] for name in ("seed", "people")}
    table = simulate_cohort(**settings).table
    task = read_task(table, LABELS)
    folds = split_folds(table, task, folds=cell["folds"], stratum="site", seed=cell["seed"])
    return table, folds[cell["fold"]]


def make_problem(cell: Cell, device: torch.device) -> Problem:
    """Return the people of a cell on a device."""
    _, fold = split_people(cell)
    scans, table = cohort = load_cohort(0, cell, device)
    independent = load_cohort(1, cell, device)
    train_rows, held_out_rows = fold.train, fold.validation
    if ARMS[cell["arm"]].is_oracle:
        # As many people as the other arms learn from. None of them is tested.
        scans, table = load_cohort(2, cell, device)
        order = np.random.default_rng(cell["fold"]).permutation(len(table))
        sizes = np.cumsum([len(train_rows), len(held_out_rows)])
        train_rows, held_out_rows, _ = np.split(order, sizes)
    people = table.iloc[train_rows]
    labels = people[list(LABELS)].to_numpy()
    design_weight, shares = None, labels.mean(axis=0)
    fitting_weights, held_out_weights = dict[str, Tensor](), dict[str, Tensor]()
    if ARMS[cell["arm"]].is_balanced:
        weights = weigh_people(table, train_rows, held_out_rows)
        balance, fitting_weights, held_out_weights = weights
        design_weight = balance.design_weight
        shares = np.average(labels, axis=0, weights=balance.weights)
    design = dc.Design(CONFOUNDS, keep=LABELS, unseen="mean").fit(people, design_weight)
    scale = BrainScale.of_scans(scans[torch.from_numpy(train_rows[:MEAN_BRAIN_SCANS])])

    def part(
        samples: tuple[Tensor, pd.DataFrame],
        rows: NDArray[np.int64],
        columns: Sequence[str],
        **options: Any,
    ) -> Part:
        x, own = samples[0], samples[1].iloc[rows]
        metadata = torch.from_numpy(design.encode(own[list(columns)]))
        target = torch.tensor(own[list(LABELS)].to_numpy(), dtype=torch.float32)
        places = torch.from_numpy(rows)
        return Part(x, places, metadata, target, prepare=scale, device=device, **options)

    everything = (*CONFOUNDS, *LABELS)
    everyone = np.arange(len(independent[1]))
    return Problem(
        design,
        part((scans, table), train_rows, everything, **fitting_weights),
        part((scans, table), held_out_rows, everything, **held_out_weights),
        BalancedFocal(tuple(float(share) for share in shares)),
        # Labels of test people are not encoded, as for new people.
        {
            "associated": part(cohort, fold.test, CONFOUNDS),
            "independent": part(independent, everyone, CONFOUNDS),
        },
        {"associated": cohort[1].iloc[fold.test], "independent": independent[1]},
    )


def weigh_people(
    table: pd.DataFrame, train_rows: NDArray[np.int64], held_out_rows: NDArray[np.int64]
) -> tuple[dc.Balance, dict[str, Tensor], dict[str, Tensor]]:
    """Return overlap weights, under which each label is independent of the confounds.

    The loss of each label has weights of its own, shape `(n, 2)`, because a site without people of
    a class has no weight for that label alone. Confounds are fitted under their mean.

    Returns:
        The balance of the training people; the weights of their part, and of the validation part.
    """
    fitting = dc.balance(table.iloc[train_rows], LABELS, CONFOUNDS)
    # Validation people alone are too few to weigh, so they are weighed with training people.
    together = dc.balance(table.iloc[[*train_rows, *held_out_rows]], LABELS, CONFOUNDS)
    parts = []
    for balance, start in ((fitting, 0), (together, len(train_rows))):
        pair = {"weight": balance.weights[start:], "layer_weight": balance.row_weight[start:]}
        own = {name: torch.from_numpy(weight).float() for name, weight in pair.items()}
        parts.append({name: weight / weight.mean(dim=0) for name, weight in own.items()})
    return fitting, parts[0], parts[1]


def load_cohort(kind: int, cell: Cell, device: torch.device) -> tuple[Tensor, pd.DataFrame]:
    """Return the scans and the table of a cohort.

    Args:
        kind: 0 is the cohort of Table 1. 1 are independent people, for tests. 2 are further
            independent people, for the oracle.
        cell: The cell.
        device: Where scans lie.
    """
    people = cell["people"]
    if kind > 0 and people is not None:
        people = 4 * -(-people // 4)
    return _open_cohort(cell["size"], cell["seed"] + kind, kind > 0, people, str(device))


@lru_cache(maxsize=3)
def _open_cohort(
    size: int, seed: int, independent: bool, people: int | None, device: str
) -> tuple[Tensor, pd.DataFrame]:
    cohort = simulate_cohort(size, seed, independent=independent, people=people, device=device)
    # Scans stay bytes on the device until a batch needs them.
    return torch.tensor(np.array(cohort.samples().x), device=device), cohort.table


def make_cell_method(cell: Cell, problem: Problem) -> Method:
    """Return the method of a cell around a new network; arms of a fold start from equal weights."""
    arm = ARMS[cell["arm"]]
    with torch.random.fork_rng():
        torch.manual_seed(1000 * cell["seed"] + cell["fold"])
        network = MRINet(cell["size"], cell["filters"], arm.norm)
        example = problem.fitting.batch(torch.arange(2)).x.cpu()
        setting = Setting(problem.design, example, list(arm.at) or None)
        is_layered = arm.method in ("mdn", "rmdn", "pmdn") or arm.method.endswith("LiteralPMDN")
        options = {**({"per": "feature"} if is_layered else {}), **arm.options}
        return make_method(arm.method, network, setting, options)


def make_schedule(cell: Cell, rows: int) -> Schedule:
    """Return the schedule of a cell with this number of training people."""
    epochs = max(cell["epochs"], math.ceil(cell["steps"] / math.ceil(rows / cell["batch"])))
    return Schedule(
        epochs=epochs,
        batch_size=cell["batch"],
        optimizer="adamw",
        lr=LEARNING_RATE * math.sqrt(cell["batch"] / BASE_BATCH),
        weight_decay=WEIGHT_DECAY,
        patience=math.ceil(PATIENCE * epochs),
    )


def fit_cell(cell: Cell, problem: Problem, device: torch.device) -> tuple[Method, Progress]:
    """Train the method of a cell by the library's loop."""
    arm = ARMS[cell["arm"]]
    method = make_cell_method(cell, problem)
    # The adversary's weight rises from 0 between one and two warm-ups.
    warmup = 2 * arm.options.get("warmup", 0)

    def forget_warmup(progress: Progress) -> None:
        """Leave epochs out of the choice in which the adversary does not work yet."""
        if progress.step < warmup and not progress.is_finished:
            progress.best, progress.best_state = {}, {}

    progress = train(
        method,
        problem.fitting,
        problem.held_out,
        problem.criterion,
        make_schedule(cell, len(problem.fitting)),
        launcher=Plain(device),
        seed=1000 * cell["seed"] + cell["fold"],
        refit=arm.is_refitted,
        on_validation=forget_warmup,
    )
    return method, progress


def compute_cell(cell: Cell) -> dict[str, Any]:
    """Return the test people of a fold, or train a cell and measure it as trained and refitted."""
    if cell["arm"] == "people":
        table, fold = split_people(cell)
        own = table.iloc[fold.test].round({"age": DIGITS})
        return {name: own[name].tolist() for name in (*CONFOUNDS, "group", *LABELS)}
    use_one_thread()
    device = Plain().device
    problem = make_problem(cell, device)
    method, progress = fit_cell(cell, problem, device)
    method.load_state_dict(progress.best_state)
    result: dict[str, Any] = {
        "step": int(progress.best["step"]),
        "validation_loss": progress.best["validation_loss"],
        "as_trained": measure(method, problem),
    }
    if isinstance(method, LayeredMethod):
        method.refit(problem.held_out.batches)
        result["refitted"] = measure(method, problem)
    if cell["arm"] in SHOWN_ARMS and (cell["batch"], cell["fold"]) == (SHOWN_BATCH, SHOWN_FOLD):
        with collect(method.network) as collector:
            outputs(method, problem.tests["associated"])
        result["features"] = round_rows(collector.features())
    return result


def measure(method: Method, problem: Problem) -> dict[str, Any]:
    """Measure a network, as it is, on test people and on independent people.

    Returns:
        `scores`, the two logits of each test person; their `associations` with the
        confounds; `within` groups, the same; accuracies of the four `groups`; and `independent`,
        their mean among people whose labels are independent of the confounds. Chance is .25.
    """
    logits = {name: outputs(method, part).cpu().numpy() for name, part in problem.tests.items()}
    tested, people = logits["associated"], problem.test_people["associated"]
    within = measure_within_groups(tested, people)
    independent = measure_accuracies(logits["independent"], problem.test_people["independent"])
    return {
        "scores": round_rows(torch.from_numpy(tested)),
        "associations": measure_associations(tested, people),
        "within": {name: float(values[0]) for name, values in within.items()},
        "groups": measure_accuracies(tested, people),
        "independent": float(np.mean(list(independent.values()))),
    }


def round_rows(values: Tensor) -> list[list[float]]:
    """Return numbers `(n, k)` as plain lists, with the digits that a figure needs."""
    rows: list[list[float]] = values.cpu().double().numpy().round(DIGITS).tolist()
    return rows
