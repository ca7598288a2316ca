"""Two real processes under DistributedDataParallel equal one process on all rows."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import deconfound as dc
from tests.attach.cohort import make_cohort, make_mlp

LAYERS = ["pmdn", "mdn", "rmdn"]
STEPS = 5


def make_model(cohort, layer):
    """Return an MLP with two layers in float64, in which sums have no order to speak of."""
    network = make_mlp().double()
    return dc.normalize(network, cohort.design, ["0", "2"], cohort.inputs[:2].double(), layer=layer)


def train(called, cohort, rows_of_step):
    """Take a few steps of SGD on weighted rows."""
    optimizer = torch.optim.SGD(called.parameters(), 0.1)
    weight = 0.5 + torch.arange(len(cohort.inputs)) % 3
    for step in range(STEPS):
        rows = rows_of_step(step)
        logits = called(
            cohort.inputs[rows].double(), metadata=cohort.metadata[rows], weight=weight[rows]
        )
        loss = nn.functional.binary_cross_entropy_with_logits(
            logits[:, 0], cohort.target[rows].double()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train_half(rank, folder):
    """Train on one half of each step's 24 rows; write what was learned."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    cohort = make_cohort()
    for layer in LAYERS:
        model = make_model(cohort, layer)
        train(
            DistributedDataParallel(model),
            cohort,
            lambda step: slice(24 * step + 12 * rank, 24 * step + 12 * (rank + 1)),
        )
        half = slice(60 * rank, 60 * (rank + 1))
        with model.refitted([(cohort.inputs[half].double(), cohort.metadata[half])], prior=0):
            refitted = {name: part.beta.clone() for name, part in model.layers.items()}
        state = {"trained": model.state_dict(), "refitted": refitted}
        torch.save(state, f"{folder}/{layer}-{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_equal_one_on_the_same_rows(tmp_path):
    """Parameters, coefficients and counts to 1e-6 (acceptance 14); also the refit.

    Kills β of one process, a mean of means, and gradients' averages without an exchange.
    """
    mp.spawn(train_half, args=(str(tmp_path),), nprocs=2)
    cohort = make_cohort()
    for layer in LAYERS:
        model = make_model(cohort, layer)
        train(model, cohort, lambda step: slice(24 * step, 24 * (step + 1)))
        for rank in range(2):
            other = torch.load(tmp_path / f"{layer}-{rank}.pt")
            torch.testing.assert_close(other["trained"], model.state_dict(), atol=1e-6, rtol=1e-6)
        model.refit([(cohort.inputs.double(), cohort.metadata)], prior=0)
        for name, part in model.layers.items():
            torch.testing.assert_close(other["refitted"][name], part.beta, atol=1e-6, rtol=1e-6)
