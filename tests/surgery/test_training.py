"""Training as people do it: accumulation, mixed precision, checkpointed activations, clipping, weight decay."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import deconfound as dc

LAYERS = ["mdn", "pmdn", "rmdn"]
AT = ["first", "second", "head"]


class Net(nn.Module):
    """Two blocks and a head; each block may recompute its activations in backward."""

    def __init__(self, recompute=None):
        super().__init__()
        self.first = nn.Linear(5, 8)
        self.second = nn.Linear(8, 6)
        self.head = nn.Linear(6, 1)
        self.recompute = recompute

    def blocks(self, x):
        return torch.relu(self.second(torch.relu(self.first(x))))

    def forward(self, x):
        if self.recompute is None:
            x = self.blocks(x)
        else:
            x = checkpoint(self.blocks, x, use_reentrant=self.recompute == "reentrant")
        return self.head(x)


def attach(design, layer="pmdn", recompute=None, **options):
    torch.manual_seed(1)
    return dc.normalize(
        Net(recompute), design, at=AT, layer=layer, example=torch.zeros(2, 5, requires_grad=True), **options
    )


def batches(cohort, size=50):
    label = torch.from_numpy(cohort.table["dx"]).float()[:, None]
    for rows in torch.arange(cohort.n).split(size):
        yield cohort.features[rows].float().requires_grad_(), cohort.metadata[rows].float(), label[rows]


def loss_of(model, batch):
    x, metadata, label = batch
    return nn.functional.binary_cross_entropy_with_logits(model(x, metadata=metadata), label)


def states(model):
    return {key: value.clone() for key, value in model.state_dict().items()}


def assert_same(one, two, **tolerance):
    for key in one:
        torch.testing.assert_close(one[key], two[key], msg=lambda text, key=key: f"{key}: {text}", **tolerance)


@pytest.mark.parametrize("layer", LAYERS)
def test_gradients_accumulate_to_the_sum_of_the_batches(cohort, layer):
    together, apart = attach(cohort.design, layer), attach(cohort.design, layer)
    total = [torch.zeros_like(parameter) for parameter in apart.parameters()]
    for batch in batches(cohort, 100):
        loss_of(together, batch).backward()
        apart.zero_grad()
        loss_of(apart, batch).backward()
        total = [sum_ + parameter.grad for sum_, parameter in zip(total, apart.parameters(), strict=True)]
    assert_same(states(together), states(apart))
    for parameter, expected in zip(together.parameters(), total, strict=True):
        torch.testing.assert_close(parameter.grad, expected)
        assert expected.abs().max() > 0


@pytest.mark.parametrize("layer", LAYERS)
def test_autocast_to_bfloat16_gives_nearly_the_beta_of_full_precision(cohort, layer):
    full, half = attach(cohort.design, layer), attach(cohort.design, layer)
    for batch in batches(cohort, 100):
        loss_of(full, batch).backward()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(half, batch)
        loss.backward()
    for path, exact in full.layers.items():
        beta = half.layers[path].beta
        assert beta.dtype == torch.float32
        # bfloat16 keeps 8 bits: features differ by about 1 %, and so may what is learned from them.
        assert (beta - exact.beta).norm() < 0.05 * exact.beta.norm()


@pytest.mark.parametrize("layer", LAYERS)
def test_half_precision_with_a_gradient_scaler_that_grows_and_overflows_trains_on(cohort, layer):
    model = attach(cohort.design, layer)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=3)
    scales, losses = [], []
    for _ in range(6):
        for batch in batches(cohort, 50):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = loss_of(model, batch)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
            losses.append(loss.item())
    assert max(scales) > 2.0**14, "the scale has grown"
    assert any(after < before for before, after in itertools.pairwise(scales)), "and overflowed"
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())
    assert sum(losses[-8:]) < sum(losses[:8])


def test_the_scale_of_the_loss_does_not_change_what_is_learned(cohort):
    plain, scaled = attach(cohort.design), attach(cohort.design)
    for batch in batches(cohort, 100):
        plain.zero_grad()
        scaled.zero_grad()
        loss_of(plain, batch).backward()
        (1024 * loss_of(scaled, batch)).backward()
    for one, two in zip(plain.parameters(), scaled.parameters(), strict=True):
        torch.testing.assert_close(1024 * one.grad, two.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("recompute", ["not reentrant", "reentrant"])
@pytest.mark.parametrize("layer", LAYERS)
def test_recomputed_activations_update_beta_once_and_give_the_same_gradients(cohort, layer, recompute):
    kept, recomputed = attach(cohort.design, layer), attach(cohort.design, layer, recompute)
    losses = []  # holds every graph, as a loop that logs its losses does
    for kept_batch, recomputed_batch in zip(batches(cohort), batches(cohort), strict=True):
        for model, batch in ((kept, kept_batch), (recomputed, recomputed_batch)):
            model.zero_grad()
            loss = loss_of(model, batch)
            losses.append(loss)
            loss.backward()
        for one, two in zip(kept.parameters(), recomputed.parameters(), strict=True):
            torch.testing.assert_close(one.grad, two.grad)
        assert_same(states(kept), states(recomputed))


def test_two_forwards_and_one_backward_recompute_each_with_its_own_metadata(cohort):
    kept, recomputed = (attach(cohort.design, "rmdn", recompute) for recompute in (None, "not reentrant"))
    for model in (kept, recomputed):
        warm, *_ = batches(cohort)
        loss_of(model, warm).backward()
        model.zero_grad()
        with model.frozen_statistics():
            first, second, *_ = batches(cohort)
            (loss_of(model, first) + loss_of(model, second)).backward()
    for one, two in zip(kept.parameters(), recomputed.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad)


def test_a_backward_leaves_no_pass_for_a_direct_call(cohort):
    model = attach(cohort.design, recompute="not reentrant")
    batch = next(batches(cohort))
    loss = loss_of(model, batch)
    loss.backward()
    with pytest.raises(dc.errors.DeconfoundError, match="direct call"):
        model.network(batch[0])
    del loss
    assert len(model._carrier._awaiting_backward) == 0


@pytest.mark.parametrize("layer", LAYERS)
def test_clipping_and_weight_decay_do_not_touch_beta(cohort, layer):
    model = attach(cohort.design, layer)
    free = copy.deepcopy(model)
    held = {id(value) for part in model.layers.values() for value in part.state_dict().values()}
    assert not held & {id(parameter) for parameter in model.parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=10.0)
    for mine, other in zip(batches(cohort), batches(cohort), strict=True):
        loss_of(model, mine).backward()
        free.network.load_state_dict(model.network.state_dict())
        loss_of(free, other).backward()
        learned = states(model.layers)
        assert_same(learned, states(free.layers))
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
        optimizer.zero_grad()
        assert_same(learned, states(model.layers))
    assert all(value.abs().max() > 0 for value in (model.layers["first"].beta, model.layers["head"].beta))


def test_the_alternating_layer_trains_with_two_optimisers(cohort):
    model = attach(cohort.design, "pmdn-alternating")
    network, coefficients = dc.split_parameters(model)
    assert len(coefficients) == 3
    optimizers = torch.optim.SGD(network, lr=0.1), torch.optim.SGD(coefficients, lr=0.5)
    losses = []
    for _ in range(4):
        for batch in batches(cohort, 100):
            losses.append(dc.alternating_step(model, lambda batch=batch: loss_of(model, batch), *optimizers).item())
    assert losses[-1] < losses[0]
    assert model.layers["first"].beta.abs().max() > 0.01
    assert model.penalty() < 0.5 * sum(part.beta[-1].numel() for part in model.layers.values()) * 10
