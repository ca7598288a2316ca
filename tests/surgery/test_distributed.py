"""Two processes on the halves of a batch learn what one process learns on the whole of it."""

import copy

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import deconfound as dc
from tests.conftest import make_cohort

LAYERS = {
    "mdn": {"layer": "mdn"},
    "mdn-batch": {"layer": "mdn", "gram": "batch"},
    "pmdn": {"layer": "pmdn"},
    "rmdn": {"layer": "rmdn"},
    "erase": {"layer": "erase", "at": ["0"]},
}
STEPS = 5
BATCH = 40


def attach(cohort, name):
    torch.manual_seed(3)
    network = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 1)).double()
    example = torch.zeros(2, 5, dtype=torch.float64)
    return dc.normalize(network, cohort.design, **{"at": ["0", "2"], "example": example, **LAYERS[name]}).double()


def train(call, model, cohort, pick, weights=None):
    """Some steps of plain descent, on `pick` of each batch; the loss is a mean over rows."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    label = torch.from_numpy(cohort.table["dx"]).double()[:, None]
    for step, rows in enumerate(torch.arange(STEPS * BATCH).split(BATCH)):
        mine = rows[pick(step)]
        weight = None if weights is None else weights[mine]
        output = call(cohort.features[mine], metadata=cohort.metadata[mine], weight=weight)
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(output, label[mine]).backward()
        optimizer.step()
    return model.state_dict()


def row_weights():
    """Some of them zero; those of one half of a batch add up to other than those of the other."""
    weights = torch.rand(STEPS * BATCH, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2
    return weights * (torch.arange(STEPS * BATCH) % 5 > 0)


def half(rank):
    return lambda step: slice(rank, None, 2)


def uneven(rank):
    """The last batch has 3 rows on one process and 17 on the other."""
    last = (slice(0, 3), slice(3, 20))[rank]
    return lambda step: last if step == STEPS - 1 else slice(rank, None, 2)


def work(rank, folder, picks):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        cohort = make_cohort(STEPS * BATCH)
        learned = {}
        for name in LAYERS:
            for pick in picks:
                model = attach(cohort, name)
                call = DistributedDataParallel(model)
                learned[f"{name} {pick.__name__}"] = train(call, model, cohort, pick(rank))
            model = attach(cohort, name)
            call = DistributedDataParallel(model)
            learned[f"{name} weighted"] = train(call, model, cohort, half(rank), row_weights())
        torch.save(learned, f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """What each of two processes has learned, run once for all tests of this file."""
    folder = tmp_path_factory.mktemp("two")
    processes.spawn(work, args=(str(folder), (half, uneven)), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("weights", [None, row_weights()], ids=["rows alike", "weights"])
@pytest.mark.parametrize("name", LAYERS)
def test_two_processes_on_halves_learn_the_beta_of_one_on_the_whole(learned, name, weights):
    cohort = make_cohort(STEPS * BATCH)
    model = attach(cohort, name)
    start = copy.deepcopy(model.state_dict())
    one = train(model, model, cohort, lambda step: slice(None), weights)
    two = learned[0][f"{name} {'half' if weights is None else 'weighted'}"]
    assert one.keys() == two.keys()
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, rtol=0, atol=1e-6, msg=lambda text, key=key: f"{key}: {text}")
    assert (one["layers.0.beta"] - start["layers.0.beta"]).abs().max() > 0.01


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("sizes", ["half", "uneven"])
def test_both_processes_hold_the_same_state_also_after_an_uneven_last_batch(learned, name, sizes):
    first, second = (each[f"{name} {sizes}"] for each in learned)
    for key, value in first.items():
        assert torch.equal(value, second[key]), key


@pytest.mark.parametrize("name", LAYERS)
def test_an_uneven_last_batch_is_fitted_as_the_rows_that_it_has(learned, name):
    """Before the last step all parameters agree, so its β must be that of the 20 rows in one process."""
    cohort = make_cohort(STEPS * BATCH)
    model = attach(cohort, name)
    one = train(model, model, cohort, lambda step: slice(0, 20) if step == STEPS - 1 else slice(None))
    two = learned[0][f"{name} uneven"]
    torch.testing.assert_close(two["layers.0.beta"], one["layers.0.beta"], rtol=0, atol=1e-6)


def disagree(rank, folder, width):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        cohort = make_cohort(40, seed=0 if width else rank)
        features = 5 + rank if width else 5
        try:
            dc.PMDN(cohort.design, features)(torch.zeros(40, features), cohort.metadata.float())
            said = "nothing"
        except dc.errors.DeconfoundError as error:
            said = str(error)
        torch.save(said, f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("width", [True, False], ids=["widths", "designs"])
def test_processes_that_hold_different_layers_are_told_so_on_each_of_them(tmp_path, width):
    processes.spawn(disagree, args=(str(tmp_path), width), nprocs=2)
    for rank in range(2):
        said = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert said.startswith("the processes of a distributed run must hold the same layer; got different designs or")
