"""On a GPU, where backward runs in other threads: NCCL, mixed precision, recomputed activations, compiled code."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import deconfound as dc

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

LAYERS = ["mdn", "pmdn", "rmdn"]


class Net(nn.Module):
    def __init__(self, recompute=False):
        super().__init__()
        self.fc1 = nn.Linear(5, 8)
        self.fc2 = nn.Linear(8, 1)
        self.recompute = recompute

    def forward(self, x):
        hidden = checkpoint(self.fc1, x, use_reentrant=False) if self.recompute else self.fc1(x)
        return self.fc2(torch.relu(hidden))


def attach(cohort, layer, recompute=False):
    torch.manual_seed(0)
    network = Net(recompute).cuda()
    return dc.normalize(network, cohort.design, at=["fc1", "fc2"], layer=layer, example=torch.zeros(2, 5).cuda()).cuda()


def train(call, model, cohort):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows in torch.arange(cohort.n).split(80):
        x, metadata = cohort.features[rows].float().cuda(), cohort.metadata[rows].float()
        optimizer.zero_grad()
        call(x, metadata=metadata).square().mean().backward()
        optimizer.step()
    return model.state_dict()


def assert_same(one, two, **tolerance):
    assert one["layers.fc1.beta"].is_cuda
    assert one["layers.fc1.beta"].abs().max() > 0.01
    for key, value in one.items():
        torch.testing.assert_close(value, two[key], msg=lambda text, key=key: f"{key}: {text}", **tolerance)


@pytest.mark.parametrize("layer", LAYERS)
def test_one_process_with_nccl_learns_what_it_learns_without(cohort, layer, tmp_path):
    plain = attach(cohort, layer)
    expected = train(plain, plain, cohort)
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        model = attach(cohort, layer)
        assert_same(train(DistributedDataParallel(model, device_ids=[0]), model, cohort), expected)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("layer", LAYERS)
def test_recomputed_activations_give_the_same_training(cohort, layer):
    kept, recomputed = attach(cohort, layer), attach(cohort, layer, recompute=True)
    assert_same(train(kept, kept, cohort), train(recomputed, recomputed, cohort))


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Inductor and Dynamo use deprecated parts of torch
def test_compiled_code_gives_the_numbers_of_eager_code(cohort, layer):
    eager = attach(cohort, layer)
    model = copy.deepcopy(eager)
    compiled = torch.compile(model, fullgraph=True)
    expected, got = train(eager, eager, cohort), train(compiled, model, cohort)
    for path in ("fc1", "fc2"):
        key = f"layers.{path}.beta"
        torch.testing.assert_close(got[key], expected[key], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("layer", LAYERS)
def test_half_precision_with_a_gradient_scaler_stays_finite(cohort, layer):
    model = attach(cohort, layer)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**14, growth_interval=3)
    for _ in range(6):
        for rows in torch.arange(cohort.n).split(80):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(cohort.features[rows].float().cuda(), metadata=cohort.metadata[rows]).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())
    assert model.layers["fc1"].beta.abs().max() > 0.01
