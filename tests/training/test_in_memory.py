"""The in-memory driver: what it is given decides what it fits, and nothing else does."""

import math
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from deconfound.errors import DeconfoundWarning, OptionError, RunError, ShapeError
from deconfound.methods import Setting, method
from deconfound.training import InMemoryTrainer, Samples, Schedule, bce, predict_in_memory, train_in_memory
from deconfound.training.losses import chance_loss, cross_entropy, mse
from tests.methods.problem import make_network, make_problem

ROWS = 160
TRAIN, VALIDATION, TEST = torch.arange(0, 80), torch.arange(80, 120), torch.arange(120, 160)
SHORT = Schedule(epochs=4, batch_size=16, lr=1e-2)


def everyone(problem=None):
    problem = problem or make_problem(ROWS)
    return problem, Samples(problem.x, problem.metadata, problem.target, problem.target[:, 0] == 0)


def prepared(problem, samples, name="pmdn", **options):
    setting = Setting(problem.design, None, lambda: samples.part(TRAIN).batches(50), site="site")
    return method(name).prepare(make_network(), setting, **options)


def trained(samples=None, schedule=SHORT, name="pmdn", refit=True, validation=VALIDATION, problem=None, **options):
    """A method trained on the first half of the rows, and how that went."""
    base, own = everyone(problem)
    samples = samples or own
    made = prepared(base, samples, name, **options)
    held = None if validation is None else samples.part(validation)
    torch.manual_seed(1)
    result = train_in_memory(made, samples.part(TRAIN), held, bce, schedule, seed=5, refit=refit)
    return made, result


def weights(made):
    return [value.clone() for value in (*made.parameters(), *made.buffers())]


def equal(one, two):
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(two), strict=True))


def spoiled(samples, rows, **columns):
    """The same samples with some tensors replaced by noise at some rows."""
    changed = {}
    for name in columns or ("x", "metadata", "target"):
        tensor = getattr(samples, name).clone()
        tensor[rows] = torch.randn(tensor[rows].shape, generator=torch.Generator().manual_seed(9)) * 50
        changed[name] = tensor
    return replace(samples, **changed)


@pytest.mark.parametrize("name", ["none", "pmdn", "pmdn-alternating", "input-residualize", "adversarial"])
def test_test_rows_change_no_weight(name):
    _, samples = everyone()
    one, _ = trained(samples, name=name)
    two, _ = trained(spoiled(samples, TEST), name=name)
    assert equal(one, two)
    three, _ = trained(spoiled(samples, TRAIN), name=name)  # the control: training rows do
    assert not equal(one, three)


def test_labels_of_test_rows_change_no_prediction():
    problem, samples = everyone()
    made, _ = trained(samples)
    expected = predict_in_memory(made, samples.part(TEST)).logits
    unknown = samples.metadata.clone()
    unknown[TEST, len(problem.design.confound_columns) :] = torch.nan
    blind = Samples(samples.x, unknown).part(TEST)
    assert torch.equal(predict_in_memory(made, blind).logits, expected)
    other = Samples(samples.x, samples.metadata.roll(1, 0)).part(TEST)  # the control: confounds do
    assert not torch.equal(predict_in_memory(made, other).logits, expected)


def test_validation_rows_choose_the_epoch_and_refit_coefficients_and_touch_nothing_else():
    _, samples = everyone()
    last = replace(SHORT, keep="last")
    one, _ = trained(samples, last, refit=False)
    two, _ = trained(spoiled(samples, VALIDATION), last, refit=False)
    assert equal(one, two)
    assert not equal(one, trained(samples, last)[0])  # the final refit is one of the two ways


def test_each_validation_judges_refitted_coefficients():
    """Recomputed epoch by epoch: train that long, refit a copy on the validation rows, take their loss."""
    _, samples = everyone()
    _, result = trained(samples)
    x, metadata, target = (value[VALIDATION] for value in (samples.x, samples.metadata, samples.target))
    for epoch in result.history:
        made, _ = trained(samples, replace(SHORT, epochs=epoch.number + 1, keep="last"), refit=False)
        as_trained = binary_cross_entropy_with_logits(made(x, metadata), target).item()
        made.model.refit([(x, metadata)])
        refitted = binary_cross_entropy_with_logits(made(x, metadata), target).item()
        assert epoch.validation == pytest.approx(refitted, rel=1e-5)
        assert abs(as_trained - refitted) > 1e-4


def late_and_early(schedule):
    """Labels of validation rows that say the opposite of the training rows': the first epochs are the best ones."""
    _, samples = everyone()
    target = samples.target.clone()
    target[VALIDATION] = 1 - target[VALIDATION]
    return replace(samples, target=target), schedule


def test_the_best_epoch_is_kept_and_not_the_last_and_it_is_the_validation_rows_that_choose_it():
    samples, schedule = late_and_early(replace(SHORT, epochs=8))
    made, result = trained(samples, schedule, refit=False)
    losses = [epoch.validation for epoch in result.history]
    training = [epoch.training for epoch in result.history]
    assert result.best == int(np.argmin(losses)) != int(np.argmin(training))
    assert result.validation_loss == min(losses)
    assert result.best < 7
    until, _ = trained(samples, replace(schedule, epochs=result.best + 1, keep="last"), refit=False)
    assert equal(made, until)
    assert not equal(made, trained(samples, replace(schedule, keep="last"), refit=False)[0])


def test_the_end_is_the_best_epoch_refitted_once_on_the_validation_rows():
    samples, schedule = late_and_early(replace(SHORT, epochs=6))
    made, _ = trained(samples, schedule)
    raw, _ = trained(samples, schedule, refit=False)
    assert not equal(made, raw)
    raw.model.refit([(samples.x[VALIDATION], samples.metadata[VALIDATION])])
    assert equal(made, raw)
    assert not made.training


def test_patience_stops_and_the_warmup_is_waited_for():
    samples, schedule = late_and_early(replace(SHORT, epochs=30, patience=3))
    _, result = trained(samples, schedule)
    assert len(result.history) == result.best + 4 < 30
    _, warmed = trained(samples, schedule, name="adversarial", warmup=10)  # 20 batches of 5 an epoch
    assert warmed.best >= 3
    with pytest.raises(RunError, match="a warm-up must end before training does; got 80 batches of warm-up and 20"):
        trained(samples, SHORT, name="adversarial", warmup=40)


def test_steps_and_epochs_are_the_same_batches_and_order_comes_from_the_seed_alone():
    _, samples = everyone()
    by_epochs, _ = trained(samples)
    by_steps, result = trained(samples, replace(SHORT, epochs=None, steps=20, validate_every=5))
    assert equal(by_epochs, by_steps)
    assert [epoch.step for epoch in result.history] == [5, 10, 15, 20]
    seen = []
    numbered = torch.arange(ROWS).float()[:, None].expand(ROWS, 8)
    read = replace(samples, x=numbered, read=lambda x: seen.append(x[:, 0]) or x)
    trained(read, replace(SHORT, epochs=2, keep="last"), name="none", validation=None, refit=False)
    first, second = torch.cat(seen[-10:-5]), torch.cat(seen[-5:])
    assert not torch.equal(first, second)  # each epoch has its own order, of all training rows
    assert sorted(first.tolist()) == sorted(second.tolist()) == TRAIN.tolist()
    _, odd = trained(samples, replace(SHORT, epochs=None, steps=7, validate_every=3))
    assert [epoch.step for epoch in odd.history] == [3, 6, 7]


def test_weights_of_two_and_zero_are_rows_that_are_there_twice_and_not_at_all():
    """On full batches the loss of weighted rows is the mean over repeated ones, whatever the scale of the weights."""
    _, samples = everyone()
    weight = torch.full((ROWS,), 7.0)
    weight[TRAIN[:20]], weight[TRAIN[20:40]], weight[TEST] = 14.0, 0.0, 1e6
    full = Schedule(epochs=5, batch_size=200, lr=1e-2, optimizer="sgd", keep="last")
    weighted, one = trained(replace(samples, weight=weight), full, name="none", validation=None)
    repeated = torch.cat([TRAIN[:20], TRAIN[:20], TRAIN[40:]])
    problem = everyone()[0]
    twin = prepared(problem, samples, "none")
    two = train_in_memory(twin, samples.part(repeated), None, bce, full, seed=5)
    for a, b in zip(weights(weighted), weights(twin), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
    assert one.history[-1].training == pytest.approx(two.history[-1].training, rel=1e-5)
    assert not equal(weighted, trained(samples, full, name="none", validation=None)[0])


def test_the_validation_loss_is_weighted_too():
    problem, samples = everyone()
    weight = torch.rand(ROWS, generator=torch.Generator().manual_seed(2)) + 0.1
    made, result = trained(replace(samples, weight=weight), replace(SHORT, keep="last"), name="none")
    held = samples.part(VALIDATION)
    losses = bce(predict_in_memory(made, held).logits, problem.target[VALIDATION])[:, 0]
    share = weight[VALIDATION]
    assert result.validation_loss == pytest.approx(float((share * losses).sum() / share.sum()), rel=1e-5)


def test_samples_are_read_on_demand_from_shared_memory():
    problem, samples = everyone()
    half = Samples(problem.x.half(), problem.metadata, problem.target, read=lambda x: x.float())
    part = half.part(VALIDATION).part(torch.tensor([3, 1]))
    assert part.x.data_ptr() == half.x.data_ptr()
    assert len(part) == 2
    batch = part.batch(torch.tensor([1]))
    assert torch.equal(batch.x, problem.x.half().float()[81:82])
    assert torch.equal(batch.metadata, problem.metadata[81:82])
    made, _ = trained(half)
    torch.testing.assert_close(
        predict_in_memory(made, half).logits, predict_in_memory(trained(samples)[0], samples).logits, atol=0.05, rtol=0
    )


def test_features_of_predictions_are_those_of_the_named_module_after_the_layer():
    problem, samples = everyone()
    made, _ = trained(samples)
    last = predict_in_memory(made, samples, 50, features="").features
    first = predict_in_memory(made, samples, 50, features="0").features
    assert torch.equal(torch.relu(first), last)
    plain = nn.functional.linear(problem.x, made.network[0].weight, made.network[0].bias)
    assert not torch.allclose(first, plain, atol=1e-3)
    with pytest.raises(OptionError, match=r"network.features must be a module of the network; got 'fc9'"):
        predict_in_memory(made, samples, features="fc9")


def test_a_training_can_be_measured_on_the_way_and_goes_on_as_if_it_had_not():
    problem, samples = everyone()
    straight, _ = trained(samples, replace(SHORT, keep="last"), refit=False)
    made = prepared(problem, samples)
    torch.manual_seed(1)
    trainer = InMemoryTrainer(made, samples.part(TRAIN), samples.part(VALIDATION), bce, SHORT, seed=5)
    while trainer.done < trainer.steps:
        trainer.step()
        if trainer.time_to_validate():
            trainer.validate()
        if trainer.done == 11:
            now = trainer.state()
            trainer.load(trainer.best, refit=True)
            predict_in_memory(made, samples)
            trainer.load(now)
    assert equal(made.eval(), straight)
    assert len(trainer.history()) == 4


def test_a_loss_that_is_not_finite_ends_the_training_with_its_epoch():
    problem, samples = everyone()
    with pytest.raises(RunError, match=r"the training loss must be finite; got nan in epoch 0. Lower lr"):
        trained(replace(samples, x=problem.x * math.inf))


def test_the_rate_is_a_factor_of_the_share_of_training_that_is_done():
    _, samples = everyone()
    still, _ = trained(samples, replace(SHORT, rate=lambda share: 0.0, weight_decay=0.0), name="none")
    problem = everyone()[0]
    assert equal(still, prepared(problem, samples, "none"))
    shares = []
    trained(samples, replace(SHORT, rate=lambda share: shares.append(share) or 1.0), name="none")
    assert shares == pytest.approx([(step + 0.5) / 20 for step in range(20)])


def test_what_cannot_be_trained_is_refused():
    _, samples = everyone()
    with pytest.raises(OptionError, match="a schedule must have epochs or steps; got epochs=3, steps=3"):
        Schedule(epochs=3, steps=3)
    with pytest.raises(OptionError, match="batch_size must be at least 1; got 0"):
        Schedule(epochs=3, batch_size=0)
    with pytest.raises(OptionError, match="optimizer must be one of adam, adamw, sgd; got 'lion'"):
        Schedule(epochs=3, optimizer="lion")
    with pytest.raises(OptionError, match="optimizer must be 'adam' or 'adamw' with capture=True; got 'sgd'"):
        Schedule(steps=3, optimizer="sgd", capture=True)
    with pytest.raises(ShapeError, match="target must have one row per sample; got 3 for 160 samples"):
        replace(samples, target=torch.zeros(3))
    for wrong in (-torch.ones(ROWS), torch.zeros(ROWS), torch.full((ROWS,), torch.nan)):
        with pytest.raises(OptionError, match="weight must be finite, not negative, and not 0 in all rows"):
            replace(samples, weight=wrong)


def test_the_driver_needs_neither_pydantic_nor_lightning():
    code = """
        import sys
        for name in ("pydantic", "lightning", "pandas", "sklearn", "rich", "typer"):
            sys.modules[name] = None
        from deconfound import training
        for name in ("Samples", "Schedule", "train_in_memory", "predict_in_memory", "InMemoryTrainer", "focal"):
            assert getattr(training, name).__doc__, name
        print("fine")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.stdout.strip() == "fine", done.stderr


def test_rows_drawn_by_weight_come_as_often_as_they_weigh_and_never_with_weight_zero():
    problem, samples = everyone()
    weight = torch.ones(ROWS)
    weight[TRAIN[:20]], weight[TRAIN[20:40]] = 3.0, 0.0
    seen = []
    numbered = replace(
        samples,
        x=torch.arange(ROWS).float()[:, None].expand(ROWS, 8),
        weight=weight,
        read=lambda x: seen.append(x) or x,
    )
    made = prepared(problem, samples, "none")
    drawn = replace(SHORT, epochs=40, draw_by_weight=True, keep="last")
    train_in_memory(made, numbered.part(TRAIN), None, bce, drawn, seed=5)
    rows = torch.cat(seen)[:, 0].long()
    counts = torch.bincount(rows, minlength=ROWS)
    assert counts[20:40].sum() == 0
    assert float(counts[:20].float().mean() / counts[40:80].float().mean()) == pytest.approx(3.0, abs=0.35)


def test_batches_that_taught_the_layers_nothing_are_told(monkeypatch):
    _, samples = everyone()
    monkeypatch.setattr(method("pmdn"), "skipped_batches", 2)
    with pytest.warns(DeconfoundWarning, match="2 batches so far taught the layers of method 'pmdn' nothing"):
        _, result = trained(samples)
    assert result.skipped_batches == 2


def test_the_loss_at_chance_is_that_of_the_training_rows_prevalence():
    fitted, judged = torch.tensor([[1.0], [0.0], [0.0], [0.0]]), torch.tensor([[1.0], [0.0]])
    expected = -(math.log(0.25) + math.log(0.75)) / 2
    assert chance_loss(bce, "binary", fitted, judged, (None, None)) == pytest.approx(expected)
    weights = (torch.tensor([3.0, 1.0, 1.0, 1.0]), torch.tensor([1.0, 0.0]))
    assert chance_loss(bce, "binary", fitted, judged, weights) == pytest.approx(math.log(2))
    codes = torch.tensor([0, 0, 1, 2])
    assert chance_loss(cross_entropy, "multiclass", codes, codes[:1], (None, None)) == pytest.approx(math.log(2))
    assert chance_loss(mse, "regression", torch.tensor([[1.0], [3.0]]), torch.tensor([[4.0]]), (None, None)) == 4.0


LAYERS = ["mdn", "pmdn", "rmdn", "pmdn-alternating", "pmdn-joint"]


@pytest.mark.parametrize("name", ["none", "batchnorm", "covariate", "input-residualize", "adversarial", *LAYERS])
def test_rows_without_weight_teach_nothing_anywhere(name):
    """Not the loss, not the coefficients, not what is fitted beforehand, not the best epoch, not the refit."""
    _, samples = everyone()
    weight = torch.rand(ROWS, generator=torch.Generator().manual_seed(4)) + 0.5
    silent = torch.arange(0, 120, 3)  # among training and validation rows
    weight[silent] = 0.0
    options = {"refit": True} if name in LAYERS else {}
    weighted = replace(samples, weight=weight)
    one, first = trained(weighted, name=name, **options)
    changed = spoiled(weighted, silent, x=True, metadata=True)
    changed.target[silent] = 1 - changed.target[silent]
    two, second = trained(changed, name=name, **options)
    assert first.best == second.best
    plain, _ = trained(replace(changed, weight=None), name=name, **options)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    expected, found, other = (predict_in_memory(made, samples.part(TEST)).logits for made in (one, two, plain))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)
    assert not torch.allclose(other, expected, atol=1e-2)  # the control: with weight they teach


def test_gradients_of_weighted_parts_add_up_to_that_of_the_whole_batch():
    problem, samples = everyone()
    weight = torch.rand(ROWS) * 3
    made = prepared(problem, samples, "none")
    whole = replace(samples, weight=weight).part(TRAIN).with_mean_weight_one()

    def gradient(*batches):
        made.zero_grad()
        for rows in batches:
            (made.loss(whole.batch(rows), bce).total / len(batches)).backward()
        return made.model[0].weight.grad.clone()

    rows = torch.arange(80)
    torch.testing.assert_close(gradient(*rows.split(20)), gradient(rows), atol=1e-6, rtol=1e-5)
