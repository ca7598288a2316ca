"""What every method promises, as one function per promise; a new method is under all of them by being registered."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from deconfound.errors import OptionError
from deconfound.methods import Loss, Method, TrainingBatch
from deconfound.training import bce
from tests.methods.problem import Problem, fit, make_network, make_problem, prepare

Check = Callable[[type[Method]], None]
CHECKS: dict[str, Check] = {}


def promise(check: Check) -> Check:
    CHECKS[check.__name__] = check
    return check


@cache
def problem() -> Problem:
    return make_problem(120)


@cache
def _trained(kind: type[Method]) -> bytes:
    """One training for all the checks of a method, which each get a copy."""
    model = prepare(kind, problem())
    fit(model, problem(), epochs=4)
    file = io.BytesIO()
    pickle.dump(model, file)
    return file.getvalue()


def trained(kind: type[Method]) -> Method:
    model: Method = pickle.loads(_trained(kind))
    return model


def answers(model: Method, x: Tensor | None = None, metadata: Tensor | None = None) -> Tensor:
    model.eval()
    with torch.no_grad():
        return model(problem().x if x is None else x, problem().metadata if metadata is None else metadata)


def state(model: Method) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


@promise
def it_trains_and_the_loss_falls(kind):
    history = fit(prepare(kind, problem()), problem(), epochs=40)
    assert np.isfinite(history).all()
    assert np.mean(history[-6:]) < 0.95 * np.mean(history[:3])


@promise
def its_eval_output_reads_the_confounds_exactly_if_it_says_so(kind):
    model = trained(kind)
    other = problem().metadata.roll(1, 0)
    changed = not torch.equal(answers(model), answers(model, metadata=other))
    assert changed == kind.reads_confounds


@promise
def its_eval_output_never_reads_the_labels(kind):
    model = trained(kind)
    table = {name: values for name, values in problem().table.items() if name != "dx"}
    without = torch.from_numpy(problem().design.encode(table))
    assert without[:, -1].isnan().all()
    assert torch.equal(answers(model), answers(model, metadata=without))


@promise
def its_eval_output_is_the_networks_own_shape_and_type(kind):
    model = trained(kind)
    assert answers(model).shape == (len(problem()), 1)
    assert answers(model).dtype == torch.float32
    assert torch.isfinite(answers(model)).all()


@promise
def its_eval_output_of_a_row_does_not_depend_on_other_rows(kind):
    model = trained(kind)
    rows = [slice(i, i + 1) for i in range(5)]
    single = torch.cat([answers(model, problem().x[row], problem().metadata[row]) for row in rows])
    torch.testing.assert_close(single, answers(model)[:5], atol=1e-5, rtol=1e-5)


@promise
def eval_changes_nothing(kind):
    model = trained(kind)
    before = state(model)
    answers(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@promise
def a_checkpoint_loads_into_a_method_prepared_on_other_rows(kind):
    model = trained(kind)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = make_problem(90, seed=8, like=problem())
    fresh = prepare(kind, other)
    assert not torch.equal(answers(fresh), answers(model))
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(answers(fresh), answers(model))


@promise
def a_checkpoint_is_restored_without_training_rows(kind):
    model = trained(kind)
    unknown = torch.full_like(problem().metadata[:1], torch.nan)
    one = TrainingBatch(problem().x[:1], unknown, unknown[:, :1])
    setting = problem().setting(training=lambda: iter([one]))
    fresh = kind.restore(make_network(), setting, model.state_dict())
    assert torch.equal(answers(fresh), answers(model))


@promise
def a_training_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(kind):
    model, fresh = trained(kind), prepare(kind, problem())
    fresh.load_state_dict(model.state_dict())
    for ours, theirs in zip(model.own_optimizers(), fresh.own_optimizers(), strict=True):
        theirs.load_state_dict(copy.deepcopy(ours.state_dict()))
    assert fit(model, problem()) == fit(fresh, problem())
    assert torch.equal(answers(model), answers(fresh))


@promise
def copies_answer_alike_and_train_apart(kind):
    model = trained(kind)
    before, expected = state(model), answers(model)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(answers(twin), expected)
        fit(twin, problem())
        assert not torch.equal(answers(twin), expected)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(answers(model), expected)


@promise
def every_parameter_has_one_optimizer(kind):
    model = prepare(kind, problem())
    own = [parameter for each in model.own_optimizers() for group in each.param_groups for parameter in group["params"]]
    held = [id(parameter) for parameter in [*model.network_parameters(), *own]]
    assert sorted(held) == sorted(id(parameter) for parameter in model.parameters())
    assert {id(p) for p in model.network.parameters()} <= {id(p) for p in model.network_parameters()}


@promise
def a_step_reaches_every_parameter_of_the_networks_optimizer(kind):
    model = trained(kind).train()
    batch = next(iter(problem().batches()))
    model.before_step(batch)
    loss = model.loss(batch, bce)
    assert isinstance(loss, Loss)
    assert loss.total.shape == ()
    assert all(part.shape == () and not part.requires_grad for part in loss.parts.values())
    model.zero_grad()
    loss.total.backward()
    for parameter in model.network_parameters():
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()


@promise
def batches_of_any_size_train_from_the_smallest_on(kind):
    few = make_problem(40)
    for size in (kind.smallest_batch, 3, 37):
        model = prepare(kind, few)
        history = fit(model, few, size=size)
        if size == 3:
            assert len(history) == 14  # the last batch has one row
        assert np.isfinite(history).all()
        assert torch.isfinite(answers(model, few.x, few.metadata)).all()


@promise
def it_moves_and_casts_as_one(kind):
    model = trained(kind).double().eval()
    single = answers(trained(kind))
    double = answers(model, problem().x.double(), problem().metadata.double())
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), single, atol=1e-4, rtol=1e-4)
    meta = trained(kind).to("meta")
    assert all(value.is_meta for name, value in meta.state_dict().items() if "_extra_state" not in name)


@promise
def preparing_leaves_the_modes_of_the_network_alone(kind):
    network = nn.Sequential(nn.Linear(8, 12), nn.Dropout(), nn.Linear(12, 1))
    network[1].eval()
    prepare(kind, problem(), network)
    assert [module.training for module in network] == [True, False, True]


@promise
def a_network_with_several_outputs_keeps_them(kind):
    network = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 3))
    model = prepare(kind, problem(), network)
    assert answers(model).shape == (len(problem()), 3)


@promise
def weights_of_one_hardly_change_what_it_learns_and_others_do(kind):
    high = torch.where(problem().x[:, 0] > problem().x[:, 0].median(), 1.9, 0.1)
    learned = []
    for weight in (None, torch.ones(120), high):
        rows = replace(problem(), weight=weight)
        if weight is not None and not kind.takes_weights:
            with pytest.raises(OptionError, match=f"rows of method '{kind.name}' must come without weights"):
                prepare(kind, rows)
            return
        model = prepare(kind, rows)
        fit(model, rows, epochs=3)
        model.eval().refit(rows.batches)
        learned.append(answers(model))
    none, one, other = learned
    assert (other - one).abs().mean() > 5e-2
    if kind.name != "last-layer":  # which balances rows by itself where they have no weights
        assert (one - none).abs().mean() < (other - one).abs().mean() / 10
