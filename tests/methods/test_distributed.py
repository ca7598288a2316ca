"""Two processes, each with half of every batch, train one and the same model, under every method."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from deconfound.methods import METHODS, TrainingBatch
from deconfound.training import bce
from tests.methods.problem import make_problem, prepare

# Those whose step on a batch is the mean of the steps on its halves, or that exchange what they learn.
SAME_AS_ONE = ["none", "mdn", "pmdn", "pmdn-alternating", "rmdn", "input-residualize", "covariate"]
# combat's package is slow to import in two more processes, and once fitted it trains as input-residualize does.
TRAINED = [name for name in METHODS if name != "combat"]
ROWS, BATCH = 120, 40
# The same again where rows have weights.
WEIGHTED = ["none", "mdn", "pmdn", "pmdn-alternating", "rmdn"]


class Step(nn.Module):
    """What an engine wraps for several processes: the whole training step."""

    def __init__(self, method):
        super().__init__()
        self.method = method

    def forward(self, batch):
        self.method.before_step(batch)
        return self.method.loss(batch, bce).total


def train(call, method, problem, share, weighted=False):
    optimizer = torch.optim.SGD(method.network_parameters(), lr=0.05)
    weight = torch.linspace(0.1, 1.9, BATCH)[share] if weighted else None
    for batch in problem.batches(BATCH):
        tensors = (batch.x, batch.metadata, batch.target, batch.controls)
        part = TrainingBatch(*(each[share] for each in tensors), weight=weight)
        optimizer.zero_grad()
        call(part).backward()
        optimizer.step()
    return {name: parameter.detach().clone() for name, parameter in method.named_parameters()}


def work(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        problem, learned = make_problem(ROWS), {}
        for name in TRAINED:
            torch.manual_seed(0)
            step = Step(prepare(name, problem))
            learned[name] = train(DistributedDataParallel(step), step.method, problem, slice(rank, None, 2))
        for name in WEIGHTED:
            torch.manual_seed(0)
            step = Step(prepare(name, problem))
            call = DistributedDataParallel(step)
            learned[f"weighted {name}"] = train(call, step.method, problem, slice(rank, None, 2), weighted=True)
        torch.save(learned, f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    processes.spawn(work, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("name", TRAINED)
def test_both_processes_hold_the_same_parameters(learned, name):
    start = dict(prepare(name, make_problem(ROWS)).named_parameters())
    assert any(not torch.equal(value, start[key]) for key, value in learned[0][name].items())
    for key, value in learned[0][name].items():
        assert torch.equal(value, learned[1][name][key]), key


@pytest.mark.parametrize("name", [*SAME_AS_ONE, *(f"weighted {name}" for name in WEIGHTED)])
def test_two_processes_learn_what_one_learns_on_whole_batches(learned, name):
    problem = make_problem(ROWS)
    torch.manual_seed(0)
    step = Step(prepare(name.removeprefix("weighted "), problem))
    alone = train(step, step.method, problem, slice(None), weighted=name.startswith("weighted"))
    for key, value in alone.items():
        torch.testing.assert_close(learned[0][name][key], value, atol=2e-4, rtol=1e-3)
