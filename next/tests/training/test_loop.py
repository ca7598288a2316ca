"""The training loop: what is fitted to which rows, what is kept, and what a stop changes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from deconfound.errors import DeconfoundError
from deconfound.methods import METHODS, Method, Setting
from deconfound.training import (
    Part,
    Plain,
    Schedule,
    binary_cross_entropy,
    fabric,
    outputs,
    train,
)
from tests.methods.literal import LiteralPMDN
from tests.training.people import assert_equal_states, make_mlp, make_parts, numbers

SCHEDULE = Schedule(epochs=4, batch_size=32, lr=0.01)
# Methods that can be trained on tables with any batch.
NAMES = [name for name in METHODS if name != "residualized-inputs"]


def by_hand(
    method: Method, fitting: Part, held_out: Part, schedule: Schedule, seed: int
) -> list[float]:
    """Train by a loop written out with torch alone, and return the validation losses."""
    optimizer = torch.optim.AdamW(
        method.parameters(), lr=schedule.lr, weight_decay=schedule.weight_decay, fused=True
    )
    losses, best_state = [], {}
    for epoch in range(schedule.epochs):
        method.train()
        for positions in fitting.order(seed, epoch, schedule.batch_size):
            batch = fitting.batch(positions)
            loss = method.loss(batch, binary_cross_entropy)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        method.eval()
        with torch.no_grad(), method.refitted(held_out.batches):
            batch = next(held_out.batches())
            logits = method(batch.x, batch.metadata)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.target)
        losses.append(loss.item())
        if losses[-1] == min(losses):
            best_state = copy.deepcopy(method.state_dict())
    method.load_state_dict(best_state)
    method.eval()
    method.refit(held_out.batches)
    return losses


def without_dropout(method: Method) -> Method:
    for part in method.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return method


@pytest.mark.parametrize("name", NAMES)
def test_the_loop_is_the_one_written_by_hand(name):
    """Kills: no refit while validating, the last state instead of the best, no refit at the end."""
    design, parts = make_parts()
    ours = without_dropout(make_mlp(design, name))
    theirs = copy.deepcopy(ours)
    arguments = parts["train"], parts["validation"]
    progress = train(ours, *arguments, binary_cross_entropy, SCHEDULE, seed=3)
    losses = by_hand(theirs, *arguments, SCHEDULE, seed=3)
    history = [entry["validation_loss"] for entry in progress.history]
    assert history == pytest.approx(losses, rel=1e-5)
    for key, value in numbers(theirs).items():
        torch.testing.assert_close(numbers(ours)[key], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_equal_seeds_give_equal_numbers_and_other_seeds_others(name):
    design, parts = make_parts()
    methods = [make_mlp(design, name) for _ in range(3)]
    for method, seed in zip(methods, (1, 1, 2), strict=True):
        train(
            method, parts["train"], parts["validation"], binary_cross_entropy, SCHEDULE, seed=seed
        )
    assert_equal_states(methods[0], methods[1])
    with pytest.raises(AssertionError):
        assert_equal_states(methods[0], methods[2])


class Stopped(Exception):
    pass


@pytest.mark.parametrize("name", [*NAMES, "literal"])
@pytest.mark.parametrize("validations", [1, 3])
def test_a_stopped_training_goes_on_with_the_numbers_of_an_undisturbed_one(
    name, validations, tmp_path
):
    """Dropout, momenta of the optimisers, β and the history must all come back."""
    design, parts = make_parts()

    def make() -> Method:
        return make_literal(design) if name == "literal" else make_mlp(design, name)

    def stop(progress):
        if len(progress.history) == validations:
            raise Stopped

    arguments = parts["train"], parts["validation"], binary_cross_entropy, SCHEDULE
    whole = make()
    expected = train(whole, *arguments)
    stopped = {"checkpoint": tmp_path / "last.pt", "checkpoint_seconds": 0}
    with pytest.raises(Stopped):
        train(make(), *arguments, **stopped, on_validation=stop)
    resumed = make()
    progress = train(resumed, *arguments, checkpoint=tmp_path / "last.pt")
    assert progress.history == expected.history
    assert_equal_states(resumed, whole)


def test_a_half_written_checkpoint_is_never_read(tmp_path):
    design, parts = make_parts()
    path = tmp_path / "last.pt"
    path.with_name("last.pt.new").write_bytes(b"half of a file")
    arguments = parts["train"], parts["validation"], binary_cross_entropy, SCHEDULE
    progress = train(make_mlp(design), *arguments, checkpoint=path, checkpoint_seconds=0)
    assert len(progress.history) == 4


def test_training_leaves_the_callers_random_numbers_alone():
    design, parts = make_parts()
    method = make_mlp(design)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(method, parts["train"], parts["validation"], binary_cross_entropy, SCHEDULE)
    assert torch.equal(torch.rand(3), expected)


def test_validation_labels_choose_the_epoch_and_nothing_else():
    """With one epoch there is nothing to choose, so they change no number of a plain network."""
    design, parts = make_parts()
    flipped = make_parts()[1]["validation"]
    flipped.without_inputs().target.sub_(1).neg_()
    once = Schedule(epochs=1, batch_size=32)
    methods = [make_mlp(design), make_mlp(design)]
    for method, held_out in zip(methods, (parts["validation"], flipped), strict=True):
        progress = train(method, parts["train"], held_out, binary_cross_entropy, once)
    assert_equal_states(*methods)
    assert progress.best == progress.history[0]


def test_patience_and_epochs_end_a_training_and_the_best_state_is_kept():
    design, parts = make_parts()
    method = make_mlp(design)
    schedule = Schedule(epochs=50, batch_size=16, lr=0.1, patience=3)
    progress = train(method, parts["train"], parts["validation"], binary_cross_entropy, schedule)
    losses = [entry["validation_loss"] for entry in progress.history]
    assert 4 <= len(losses) < 50
    assert len(losses) - 1 - losses.index(min(losses)) == 3
    logits = outputs(method, parts["validation"])
    target = parts["validation"].without_inputs().target
    kept = nn.functional.binary_cross_entropy_with_logits(logits, target).item()
    assert kept == pytest.approx(min(losses), rel=1e-5)


def test_without_held_out_rows_the_last_state_is_kept():
    design, parts = make_parts()
    method = make_mlp(design, "pmdn")
    progress = train(method, parts["train"], None, binary_cross_entropy, SCHEDULE)
    assert progress.best == progress.history[-1]
    assert "validation_loss" not in progress.best


def test_validations_every_few_steps_take_the_same_steps():
    """The paper's arms are judged every few steps; the steps themselves stay the same."""
    design, parts = make_parts()
    often = Schedule(epochs=4, batch_size=32, lr=0.01, validate_every=7)
    methods = [without_dropout(make_mlp(design, "pmdn")) for _ in range(2)]
    ends = [
        train(method, parts["train"], None, binary_cross_entropy, schedule)
        for method, schedule in zip(methods, (SCHEDULE, often), strict=True)
    ]
    assert [entry["step"] for entry in ends[1].history] == [7, 14, 21, 28, 35, 40]
    assert_equal_states(*methods)


def test_the_learning_rate_follows_warm_up_and_cosine():
    design, parts = make_parts()
    rates = []

    class Watching(Method):
        def step(self, model, batch, criterion, optimizers, update):
            rates.append(optimizers[0].param_groups[0]["lr"])
            return super().step(model, batch, criterion, optimizers, update)

    schedule = Schedule(epochs=2, batch_size=30, lr=1.0, rate="cosine", warmup_steps=3)
    method = Watching(nn.Linear(6, 1), Setting(design, torch.zeros(2, 6)))
    train(method, parts["train"], None, binary_cross_entropy, schedule)
    steps = torch.arange(20)
    cosine = 0.5 * (1 + torch.cos(torch.pi * steps / 20))
    expected = cosine * ((steps + 1) / 4).clamp(max=1)
    torch.testing.assert_close(torch.tensor(rates), expected)


def make_literal(design) -> LiteralPMDN:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    return LiteralPMDN(network, Setting(design, torch.zeros(2, 6), at=["0"]))


def test_algorithm_1_with_two_optimisers_runs_in_the_same_loop():
    """Warm-up by steps, validation every few steps, two passes and two optimisers."""
    design, parts = make_parts()
    method = make_literal(design)
    before = numbers(copy.deepcopy(method))
    schedule = Schedule(
        epochs=4, batch_size=32, lr=0.01, optimizer="sgd", warmup_steps=10, validate_every=5
    )
    progress = train(
        method, parts["train"], parts["validation"], binary_cross_entropy, schedule, refit=False
    )
    changed = {key for key, value in numbers(method).items() if not torch.equal(value, before[key])}
    assert any(key.endswith("beta") for key in changed)
    assert any(key.endswith("0.weight") for key in changed)
    assert len(progress.history) == 8
    losses = [entry["training_loss"] for entry in progress.history]
    assert losses[-1] < losses[0]


def test_parts_that_are_frozen_stay_in_evaluation_mode():
    design, parts = make_parts()
    network = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    network[:2].requires_grad_(False)
    method = Method(network, Setting(design, torch.zeros(2, 6)))
    before = network[1].running_mean.clone(), network[2].weight.clone()
    train(method, parts["train"], parts["validation"], binary_cross_entropy, SCHEDULE)
    assert torch.equal(network[1].running_mean, before[0])
    assert not torch.equal(network[2].weight, before[1])


def test_gradients_are_clipped():
    design, parts = make_parts()
    norms = []

    class Watching(Method):
        def step(self, model, batch, criterion, optimizers, update):
            loss = super().step(model, batch, lambda *a: 1e3 * criterion(*a), optimizers, update)
            norms.append(nn.utils.get_total_norm([p.grad for p in self.parameters()]).item())
            return loss

    method = Watching(nn.Linear(6, 1), Setting(design, torch.zeros(2, 6)))
    train(method, parts["train"], None, binary_cross_entropy, Schedule(epochs=1, clip=0.5))
    assert max(norms) == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize("where", ["training", "validation"])
def test_a_loss_that_is_not_finite_ends_the_training_with_a_sentence(where):
    design, parts = make_parts()
    x = torch.full((500, 6), float("nan"))
    blank = parts["train"].without_inputs()
    part = Part(x, torch.arange(300), blank.metadata, blank.target)
    chosen = {**parts, ("train" if where == "training" else "validation"): part}
    with pytest.raises(DeconfoundError, match=f"{where} loss is nan.*training.lr"):
        train(
            make_mlp(design), chosen["train"], chosen["validation"], binary_cross_entropy, SCHEDULE
        )


@pytest.mark.parametrize("name", ["none", "pmdn", "adversarial"])
def test_fabric_gives_the_numbers_of_plain_torch(name):
    design, parts = make_parts()
    launcher = fabric(accelerator="cpu", devices=1)
    launcher.launch()
    methods = [make_mlp(design, name) for _ in range(2)]
    for method, chosen in zip(methods, (Plain("cpu"), launcher), strict=True):
        arguments = parts["train"], parts["validation"], binary_cross_entropy, SCHEDULE
        train(method, *arguments, launcher=chosen)
    assert_equal_states(*methods)


def train_in_process(launcher, path) -> None:
    design, parts = make_parts()
    method = without_dropout(make_mlp(design, "pmdn"))
    schedule = Schedule(epochs=2, batch_size=30, lr=0.01)
    train(
        method,
        parts["train"],
        parts["validation"],
        binary_cross_entropy,
        schedule,
        launcher=launcher,
    )
    torch.save(numbers(method), path / f"{launcher.global_rank}.pt")


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one(tmp_path):
    """Gradients and the layers' sums are joined, so both see the whole batch."""
    launcher = fabric(accelerator="cpu", devices=2, strategy="ddp_spawn")
    launcher.launch(train_in_process, tmp_path)
    (tmp_path / "alone").mkdir()
    train_in_process(Plain("cpu"), tmp_path / "alone")
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    alone = torch.load(tmp_path / "alone" / "0.pt")
    for name, value in alone.items():
        torch.testing.assert_close(first[name], second[name], rtol=0, atol=0)
        torch.testing.assert_close(first[name], value, rtol=1e-4, atol=1e-5)
