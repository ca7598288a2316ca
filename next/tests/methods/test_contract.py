"""What every method promises: one contract, and for each promise a method that breaks it."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from deconfound.errors import DeconfoundError, ShapeError
from deconfound.methods import METHODS, Batch, LayeredMethod, Method, make_method
from tests.helpers import assert_same_state, state_of
from tests.methods.problem import (
    CASES,
    Problem,
    criterion,
    make_case,
    make_network,
    make_problem,
    outputs,
    train,
)

PROBLEM = make_problem()
# Makes a method with a network of this seed, not fitted.
Make = Callable[[int], Method]


def trained(make: Make, problem: Problem = PROBLEM) -> Method:
    """Return a method that is fitted and has taken three steps."""
    method = make(0)
    method.fit(problem.batches())
    train(method, problem.batches())
    return method


def evaluation_reads_no_label(make: Make) -> None:
    method = trained(make)
    unlabelled = PROBLEM.metadata.clone()
    unlabelled[:, len(PROBLEM.design.confound_columns) :] = torch.nan
    assert unlabelled.isnan().any()
    with_labels = outputs(method, PROBLEM.x, PROBLEM.metadata)
    without = outputs(method, PROBLEM.x, unlabelled)
    assert with_labels.isfinite().all()
    torch.testing.assert_close(without, with_labels, rtol=0, atol=0)


def confounds_are_read_exactly_where_the_method_says_so(make: Make) -> None:
    method = trained(make)
    others = PROBLEM.metadata.roll(7, 0)
    expected = outputs(method, PROBLEM.x, PROBLEM.metadata)
    if method.needs_confounds:
        assert (outputs(method, PROBLEM.x, others) - expected).abs().max() > 1e-4
        with pytest.raises(ShapeError, match="metadata must be the array"):
            outputs(method, PROBLEM.x, None)
    else:
        torch.testing.assert_close(outputs(method, PROBLEM.x, others), expected)
        torch.testing.assert_close(outputs(method, PROBLEM.x, None), expected)


def one_row_alone_is_the_row_in_its_batch(make: Make) -> None:
    method = trained(make)
    together = outputs(method, PROBLEM.x[:5], PROBLEM.metadata[:5])
    alone = [outputs(method, PROBLEM.x[[i]], PROBLEM.metadata[[i]]) for i in range(5)]
    torch.testing.assert_close(torch.cat(alone), together, rtol=1e-4, atol=1e-5)


def evaluation_changes_nothing(make: Make) -> None:
    method = trained(make)
    before = state_of(method)
    outputs(method, PROBLEM.x, PROBLEM.metadata)
    assert_same_state(method, before)


def a_checkpoint_loads_into_a_new_method(make: Make) -> None:
    method = trained(make)
    file = io.BytesIO()
    torch.save(method.state_dict(), file)
    file.seek(0)
    loaded = make(1)
    loaded.load_state_dict(torch.load(file, weights_only=True), strict=True)
    expected = outputs(method, PROBLEM.x, PROBLEM.metadata)
    torch.testing.assert_close(outputs(loaded, PROBLEM.x, PROBLEM.metadata), expected)
    # It trains on as well: nothing that training needs is outside the checkpoint.
    losses = [criterion_of(each) for each in (method, loaded)]
    torch.testing.assert_close(losses[1], losses[0])


def criterion_of(method: Method) -> Tensor:
    """Return the loss of a training batch."""
    return method.train().loss(PROBLEM.batch(slice(40)), criterion).detach()


def refitted_puts_back_what_training_learned(make: Make) -> None:
    method = trained(make)
    before = state_of(method)
    with method.refitted(PROBLEM.batches()):
        outputs(method, PROBLEM.x, PROBLEM.metadata)
    assert_same_state(method, before)
    with pytest.raises(KeyError), method.refitted(PROBLEM.batches()):
        raise KeyError("validation failed")
    assert_same_state(method, before)


def inside_refitted_the_method_is_refitted(make: Make) -> None:
    method = trained(make)
    twin = copy.deepcopy(method)
    twin.refit(PROBLEM.batches())
    with method.refitted(PROBLEM.batches()):
        inside = outputs(method, PROBLEM.x, PROBLEM.metadata)
    torch.testing.assert_close(inside, outputs(twin, PROBLEM.x, PROBLEM.metadata))


def a_copy_is_independent(make: Make) -> None:
    method = trained(make)
    before, twin = state_of(method), copy.deepcopy(method)
    expected = outputs(method, PROBLEM.x, PROBLEM.metadata)
    torch.testing.assert_close(outputs(twin, PROBLEM.x, PROBLEM.metadata), expected)
    train(twin, PROBLEM.batches())
    twin.refit(PROBLEM.batches())
    assert_same_state(method, before)
    assert (outputs(twin, PROBLEM.x, PROBLEM.metadata) - expected).abs().max() > 1e-4


def rows_of_layer_weight_0_take_no_part_in_fitting_confounds(make: Make) -> None:
    weight = (torch.arange(120) % 4 > 0).float()
    garbled = Problem(
        torch.where(weight[:, None] > 0, PROBLEM.x, PROBLEM.x.roll(3, 0)),
        PROBLEM.table,
        PROBLEM.design,
        torch.where(weight[:, None] > 0, PROBLEM.metadata, PROBLEM.metadata.roll(3, 0)),
        PROBLEM.target,
    )
    expected = confound_state(make, PROBLEM, weight)
    for name, value in confound_state(make, garbled, weight).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5)


def confound_state(make: Make, problem: Problem, weight: Tensor | None) -> dict[str, Tensor]:
    """Return all that is fitted about confounds: in `fit`, in a training pass, and in `refit`."""
    method = make(0)
    method.fit(problem.batches(40, weight))
    loss = method.train().loss(problem.batch(layer_weight=weight), criterion)
    state = {name: value.clone() for name, value in method.named_buffers()}
    for name, parameter in method.named_parameters():
        if name.startswith("heads"):
            (state[name],) = torch.autograd.grad(loss, parameter, retain_graph=True)
    method.refit(problem.batches(40, weight))
    for name, value in method.state_dict().items():
        if name.endswith(("beta", "effect._extra_state")) and value.is_floating_point():
            state[f"refitted {name}"] = value
    return state


def a_step_trains_the_whole_network(make: Make) -> None:
    method = make(0)
    method.fit(PROBLEM.batches())
    before = {name: value.detach().clone() for name, value in method.named_parameters()}
    (loss,) = train(method, lambda: [PROBLEM.batch()])
    assert loss.ndim == 0
    assert not loss.requires_grad
    for name, value in method.named_parameters():
        assert value.isfinite().all()
        assert not torch.equal(value, before[name]), name


def every_parameter_has_one_optimizer(make: Make) -> None:
    method = make(0)
    optimizers = method.optimizers(lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    groups = [group["params"] for optimizer in optimizers for group in optimizer.param_groups]
    ids = [id(parameter) for group in groups for parameter in group]
    assert sorted(ids) == sorted(map(id, method.parameters()))


def batches_of_any_size_train(make: Make) -> None:
    for size in (1, 2, 3):
        method = make(0)
        method.fit(PROBLEM.batches())
        for loss in train(method, lambda size=size: [PROBLEM.batch(slice(size))], epochs=3):
            assert loss.isfinite()
        assert outputs(method, PROBLEM.x, PROBLEM.metadata).isfinite().all()


def training_lowers_the_loss(make: Make) -> None:
    """One input shows the label, so that every method can learn it."""
    x = PROBLEM.x.clone()
    x[:, 0] += 4 * PROBLEM.target[:, 0]
    problem = Problem(x, PROBLEM.table, PROBLEM.design, PROBLEM.metadata, PROBLEM.target)
    method = make(0)
    method.fit(problem.batches())
    losses = train(method, problem.batches(), epochs=40)
    assert torch.stack(losses[-3:]).mean() < 0.8 * torch.stack(losses[:3]).mean()


CHECKS = {
    check.__name__: check
    for check in (
        evaluation_reads_no_label,
        confounds_are_read_exactly_where_the_method_says_so,
        one_row_alone_is_the_row_in_its_batch,
        evaluation_changes_nothing,
        a_checkpoint_loads_into_a_new_method,
        refitted_puts_back_what_training_learned,
        inside_refitted_the_method_is_refitted,
        a_copy_is_independent,
        rows_of_layer_weight_0_take_no_part_in_fitting_confounds,
        a_step_trains_the_whole_network,
        every_parameter_has_one_optimizer,
        batches_of_any_size_train,
        training_lowers_the_loss,
    )
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("case", CASES)
def test_the_contract(case, check):
    CHECKS[check](lambda seed: make_case(case, PROBLEM, seed))


def test_every_method_is_under_the_contract():
    """Kills a method that is registered without a case."""
    assert {name for name, _ in CASES.values()} >= METHODS.keys()


@pytest.mark.parametrize("case", ["mdn", "rmdn", "pmdn", "adversarial", "regression", "combat"])
def test_without_weights_the_garbled_rows_would_count(case):
    """The control of the promise about rows of weight 0."""

    def make(seed):
        return make_case(case, PROBLEM, seed)

    weight = (torch.arange(120) % 4 > 0).float()
    state, other = (confound_state(make, PROBLEM, each) for each in (None, weight))
    distances = [(state[name] - other[name]).abs().max() for name in state if state[name].ndim]
    assert max(distances) > 1e-3


class ReadsLabels(Method):
    needs_confounds = True

    def forward(self, x, metadata=None):
        return self.network(x) + metadata[:, :1] + metadata[:, -1:]


class ReadsConfoundsInSecret(Method):
    def forward(self, x, metadata=None):
        return self.network(x) + metadata[:, :1]


class LooksAtItsBatch(Method):
    def forward(self, x, metadata=None):
        return self.network(x - x.mean(0))


class LearnsInEvaluation(Method):
    def __init__(self, network, setting):
        super().__init__(network, setting)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x, metadata=None):
        self.mean.copy_(x.mean() + 1)
        return self.network(x)


class KeepsStateOutsideTheCheckpoint(Method):
    calls = 0

    def forward(self, x, metadata=None):
        self.calls += self.training
        return self.network(x) + 0.01 * self.calls


class RefitsForGood(Method):
    def __init__(self, network, setting):
        super().__init__(network, setting)
        self.register_buffer("mean", torch.zeros(()))

    def refit(self, batches):
        self.mean.copy_(torch.cat([batch.x for batch in batches()]).square().mean())

    def refitted(self, batches):
        self.refit(batches)
        return super().refitted(batches)


class NeverRefitsForValidation(RefitsForGood):
    def forward(self, x, metadata=None):
        return self.network(x) + self.mean

    def refitted(self, batches):
        return Method.refitted(self, batches)


class IsItsOwnCopy(Method):
    def __deepcopy__(self, memo):
        return self


class FitsAllRows(LayeredMethod):
    layer = "pmdn"

    def loss(self, batch: Batch, criterion):
        return super().loss(batch._replace(layer_weight=None), criterion)


class ForgetsTheFirstLayer(Method):
    def optimizers(self, make):
        return [make([*self.network[2:].parameters()])]


class DividesBySpread(Method):
    def forward(self, x, metadata=None):
        spread = x.std() if len(x) > 1 else torch.tensor(0.0)
        return self.network(x) / spread


class NeverLearns(Method):
    def loss(self, batch, criterion):
        return super().loss(batch._replace(target=torch.rand(batch.target.shape)), criterion)


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (ReadsLabels, evaluation_reads_no_label),
        (ReadsConfoundsInSecret, confounds_are_read_exactly_where_the_method_says_so),
        (LooksAtItsBatch, one_row_alone_is_the_row_in_its_batch),
        (LearnsInEvaluation, evaluation_changes_nothing),
        (KeepsStateOutsideTheCheckpoint, a_checkpoint_loads_into_a_new_method),
        (RefitsForGood, refitted_puts_back_what_training_learned),
        (NeverRefitsForValidation, inside_refitted_the_method_is_refitted),
        (IsItsOwnCopy, a_copy_is_independent),
        (FitsAllRows, rows_of_layer_weight_0_take_no_part_in_fitting_confounds),
        (ForgetsTheFirstLayer, a_step_trains_the_whole_network),
        (ForgetsTheFirstLayer, every_parameter_has_one_optimizer),
        (DividesBySpread, batches_of_any_size_train),
        (NeverLearns, training_lowers_the_loss),
    ],
)
def test_the_contract_notices_a_method_that_breaks_it(kind, check):
    with pytest.raises((AssertionError, DeconfoundError)):
        check(lambda seed: kind(make_network(seed), PROBLEM.setting()))


def test_a_method_in_half_precision_is_finite():
    """The layers and heads keep single precision of their own."""
    for name in METHODS:
        method = make_method(name, make_network(), PROBLEM.setting())
        method.fit(PROBLEM.batches())
        with torch.autocast("cpu", torch.bfloat16):
            train(method, PROBLEM.batches())
        assert outputs(method, PROBLEM.x, PROBLEM.metadata).isfinite().all()
        assert all(value.dtype == torch.float32 for value in method.parameters())


def test_methods_take_images():
    """Each method has the shape of the inputs from the example alone."""
    images = PROBLEM.x[:, :, None].expand(-1, -1, 4).reshape(120, 1, 6, 4).clone()
    problem = Problem(images, PROBLEM.table, PROBLEM.design, PROBLEM.metadata, PROBLEM.target)
    for name in METHODS:
        head = [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 1)]
        network = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), *head)
        method = make_method(name, network, problem.setting(at=["0", "4"]))
        method.fit(problem.batches())
        train(method, problem.batches())
        method.refit(problem.batches())
        assert outputs(method, images, problem.metadata).shape == (120, 1)
