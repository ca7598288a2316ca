"""CF-Net's heads and network pull in opposite directions, column by column, at any batch size."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import deconfound as dc
from deconfound.errors import OptionError
from deconfound.methods import Setting, TrainingBatch, adversarial
from deconfound.methods.adversarial import AdversarialMethod, Head, squared_correlation, target_columns
from deconfound.methods.confounds import confounds_of
from deconfound.surgery import Place, collect
from tests.conftest import make_table
from tests.methods.problem import make_network, make_problem, prepare

TABLE = make_table(200)


@pytest.fixture(scope="module")
def problem():
    return make_problem(80)


def one_hot(values):
    return torch.from_numpy((values[:, None] == np.unique(values)).astype(np.float32))


def correlations(predictions, truths):
    """Written differently: torch's own correlation matrix, one column after the other."""
    pairs = zip(predictions.T, truths.T, strict=True)
    return torch.stack([torch.corrcoef(torch.stack(pair))[0, 1] ** 2 for pair in pairs]).mean()


def test_the_gradients_are_those_of_the_two_players(problem, monkeypatch):
    monkeypatch.setattr(adversarial, "FLAT", 0.0)
    double = replace(problem, x=problem.x.double(), metadata=problem.metadata.double(), target=problem.target.double())
    model = prepare("adversarial", problem, weight=3.0, limit=None).double()
    batch = next(iter(double.batches(80)))
    loss = model.loss(batch, binary_cross_entropy_with_logits)
    loss.total.backward()

    features = {"0": model.model[0](batch.x), "2": model.model(batch.x)}
    truths = {
        "age": torch.from_numpy(problem.table["age"])[:, None],
        "sex": one_hot(problem.table["sex"])[:, 1:].double(),
        "site": one_hot(problem.table["site"]).double(),
    }
    terms = [
        correlations(head.predictor(features[head.place.path]), truths[head.confound.name]) for head in model.heads
    ]
    assert len(terms) == 6
    task = binary_cross_entropy_with_logits(features["2"], batch.target)
    of_heads = torch.autograd.grad(sum(terms), list(model.heads.parameters()), retain_graph=True)
    of_network = torch.autograd.grad(task + 3.0 * sum(terms) / 2, list(model.model.parameters()))
    for parameter, climb in zip(model.heads.parameters(), of_heads, strict=True):
        torch.testing.assert_close(parameter.grad, -climb, atol=1e-6, rtol=1e-4)  # descent on −corr² climbs
    for parameter, descend in zip(model.model.parameters(), of_network, strict=True):
        torch.testing.assert_close(parameter.grad, descend, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(loss.parts["task"], task.detach())
    torch.testing.assert_close(loss.parts["correlation/0/age"], terms[0].detach(), atol=1e-6, rtol=1e-4)


def test_with_weight_zero_the_network_trains_as_if_alone_and_the_heads_still_learn(problem):
    model, alone = prepare("adversarial", problem, weight=0), prepare("none", problem)
    batch = next(iter(problem.batches()))
    for each in (model, alone):
        each.loss(batch, binary_cross_entropy_with_logits).total.backward()
    for ours, theirs in zip(model.model.parameters(), alone.model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.heads.parameters() if parameter.ndim == 2)


def test_the_network_learns_alone_in_the_warmup_and_then_the_weight_rises_to_its_full_over_as_many_batches(problem):
    model, full, alone = (prepare("adversarial", problem, weight=2.0, limit=None, warmup=2), *fresh_pair(problem))
    batch = next(iter(problem.batches(80)))
    of_task, of_both = gradient(alone, batch), gradient(full, batch)
    assert not torch.allclose(of_task, of_both, rtol=0.05)
    for share in (0, 0, 0.5, 1, 1):
        torch.testing.assert_close(gradient(model, batch), of_task + share * (of_both - of_task), atol=1e-6, rtol=1e-4)
        assert all(parameter.grad.abs().sum() > 0 for parameter in model.heads.parameters() if parameter.ndim == 2)


@pytest.mark.parametrize("limit", [0.25, 1.0])
def test_the_heads_push_the_features_no_harder_than_the_limit_times_the_task(problem, limit):
    """At the features of the only place: the norm of what the heads add, beside the norm of the task's gradient."""
    one = replace(problem, at=("0",))
    batch = next(iter(problem.batches(80)))
    found = {}
    for name, options in (("none", {}), ("adversarial", {"weight": 1e3, "limit": limit})):
        model = prepare(name, one, **options)
        with collect(model.model, "0", detach=False) as collected:
            total = model.loss(batch, binary_cross_entropy_with_logits).total
        found[name] = torch.autograd.grad(total, collected.features())[0]
    pushed = found["adversarial"] - found["none"]
    assert float(pushed.norm() / found["none"].norm()) == pytest.approx(limit, rel=1e-4)


def fresh_pair(problem):
    return prepare("adversarial", problem, weight=2.0, limit=None), prepare("none", problem)


def gradient(model, batch):
    """Of the network, in one row; the heads of all models start alike and none takes a step."""
    model.zero_grad()
    if isinstance(model, AdversarialMethod):
        model.heads.load_state_dict(same_heads(model).state_dict())
    model.loss(batch, binary_cross_entropy_with_logits).total.backward()
    return torch.cat([parameter.grad.ravel() for parameter in model.model.parameters()])


def same_heads(model):
    torch.manual_seed(5)
    return nn.ModuleList(Head(head.place, head.confound, 32, 64) for head in model.heads)


def test_a_warmup_is_over_when_the_weight_is_full(problem):
    model, batch = prepare("adversarial", problem, warmup=2), next(iter(problem.batches(20)))
    left = []
    for _ in range(5):
        left.append(model.batches_to_warm_up)
        model.loss(batch, binary_cross_entropy_with_logits)
    assert left == [4, 3, 2, 1, 0]
    assert model._share() == 1
    assert prepare("adversarial", problem).batches_to_warm_up == 0


def test_a_warmup_goes_on_where_a_checkpoint_left_it(problem):
    model = prepare("adversarial", problem, warmup=2)
    batch = next(iter(problem.batches(80)))
    for _ in range(3):
        gradient(model, batch)
    again = AdversarialMethod.restore(make_network(), problem.setting(), model.state_dict(), warmup=2)
    torch.testing.assert_close(gradient(again, batch), gradient(model, batch))
    assert not torch.allclose(gradient(prepare("adversarial", problem, warmup=2), batch), gradient(again, batch))


def test_features_a_thousand_times_smaller_hide_nothing_from_a_head(problem, monkeypatch):
    """A network that starts with small features would else learn to shrink them, and no label."""
    large, small = (head_of(problem, hidden=0), head_of(problem, hidden=0))
    x, ones = problem.x - problem.x.mean(0), torch.ones(80)
    expected = large(x, problem.metadata, ones)
    torch.testing.assert_close(small(1e-3 * x, problem.metadata, ones), expected, rtol=1e-3, atol=0)
    monkeypatch.setattr(adversarial, "FLAT", 1e-5)  # the control
    assert head_of(problem, hidden=0)(1e-3 * x, problem.metadata, ones) < 0.5 * expected


def test_a_head_keeps_its_precision_where_the_network_has_half(problem):
    x, ones = 1e-3 * problem.x, torch.ones(80)
    expected = head_of(problem)(x, problem.metadata, ones)
    with torch.autocast("cpu", torch.bfloat16):
        found = head_of(problem)(x, problem.metadata, ones)
        rounded = head_of(problem).predictor(x)
    torch.testing.assert_close(found, expected)
    assert len(rounded[:, 0].unique()) < 40  # the control: half precision would have few values for 80 rows


def head_of(problem, hidden=4):
    torch.manual_seed(0)
    return Head(Place("0", "Linear", "after", feature_shape=(8,)), confounds_of(problem.design)[2], hidden, 80)


def test_a_correlation_is_taken_within_columns_and_never_over_a_flattened_table():
    rng = torch.Generator().manual_seed(0)
    offsets = torch.tensor([0.0, 10.0, 20.0])
    truths = torch.randn(500, 3, generator=rng) + offsets
    predictions = torch.randn(500, 3, generator=rng) + offsets
    flattened = torch.corrcoef(torch.stack([truths.ravel(), predictions.ravel()]))[0, 1] ** 2
    assert flattened > 0.9  # the control: this is what the released code would see
    ours = squared_correlation(predictions, truths, torch.ones(500))
    assert ours < 0.02
    torch.testing.assert_close(ours, correlations(predictions, truths), atol=1e-4, rtol=1e-3)


def test_rows_without_weight_and_columns_that_do_not_vary_take_no_part():
    rng = torch.Generator().manual_seed(0)
    a, b = torch.randn(40, 2, generator=rng), torch.randn(40, 2, generator=rng)
    weights = (torch.arange(40) % 3 > 0).float()
    some = weights.bool()
    torch.testing.assert_close(squared_correlation(a, b, weights), correlations(a[some], b[some]), atol=1e-4, rtol=1e-3)
    b[:, 1] = 4.0
    torch.testing.assert_close(
        squared_correlation(a, b, weights), correlations(a[some, :1], b[some, :1]), atol=1e-4, rtol=1e-3
    )
    b[:, 0] = 4.0
    assert squared_correlation(a, b, weights) == 0
    assert squared_correlation(a, b, 0 * weights) == 0


def test_a_head_of_a_category_predicts_every_level_the_reference_too():
    design = dc.Design(confounds=["age", "sex", "site"]).fit(TABLE)
    age, sex, site = confounds_of(design)
    metadata = torch.from_numpy(design.encode(TABLE))
    centred = one_hot(TABLE["site"]) - one_hot(TABLE["site"]).mean(0)
    torch.testing.assert_close(site.part(metadata) @ target_columns(site), centred, atol=1e-6, rtol=0)
    assert target_columns(age).shape == (1, 1)
    assert target_columns(sex).shape == (1, 1)  # two levels are one column
    assert site.levels == ("A", "B", "C")


def head_for(problem, window):
    place = Place("0", "Linear", "after", feature_shape=(8,))
    torch.manual_seed(0)
    return Head(place, confounds_of(problem.design)[2], 4, window)


def test_rows_one_at_a_time_have_the_correlation_and_the_gradient_of_the_window(problem):
    rows, ones = slice(0, 32), torch.ones(1)
    whole, single = head_for(problem, 32), head_for(problem, 32)
    expected = whole(problem.x[rows], problem.metadata[rows], torch.ones(32))
    expected.backward()
    for _ in range(2):  # the second time round the window holds all 32
        values = []
        single.zero_grad()
        for i in range(32):
            value = single(problem.x[i : i + 1], problem.metadata[i : i + 1], ones)
            (value / 32).backward()
            values.append(value.detach())
    torch.testing.assert_close(values[-1], expected.detach())
    for ours, theirs in zip(single.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-6, rtol=1e-4)


def test_the_first_rows_ever_give_no_gradient_and_no_nan(problem):
    head = head_for(problem, 8)
    for n in (1, 1):  # one row has no correlation, and two have ±1 whatever they are
        head.zero_grad()
        head(problem.x[:n], problem.metadata[:n], torch.ones(n)).backward()
        assert all(torch.isfinite(parameter.grad).all() for parameter in head.parameters())
        assert all(parameter.grad.abs().max() < 1e-2 for parameter in head.parameters())


def test_a_batch_without_controls_leaves_the_network_to_its_task(problem):
    model, alone = prepare("adversarial", problem, controls_only=True), prepare("none", problem)
    rows = torch.nonzero(problem.target[:, 0] == 1).ravel()[:5]
    batch = TrainingBatch(problem.x[rows], problem.metadata[rows], problem.target[rows], torch.zeros(5, dtype=bool))
    for each in (model, alone):
        each.loss(batch, binary_cross_entropy_with_logits).total.backward()
    for ours, theirs in zip(model.model.parameters(), alone.model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


class Reader(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        self.lstm = nn.LSTM(3, 6, batch_first=batch_first)
        self.batch_first = batch_first
        self.out = nn.Linear(6, 1)

    def forward(self, x):
        states = self.lstm(x if self.batch_first else x.transpose(0, 1))[0]
        return self.out(states[:, -1] if self.batch_first else states[-1])


@pytest.mark.parametrize("batch_first", [True, False])
def test_sequences_of_any_length_are_pooled(problem, batch_first):
    def training(length=5):
        yield TrainingBatch(torch.randn(80, length, 3), problem.metadata, problem.target)

    model = AdversarialMethod.prepare(Reader(batch_first), Setting(problem.design, ("lstm",), training))
    for length in (5, 9):
        loss = model.loss(next(training(length)), binary_cross_entropy_with_logits)
        assert torch.isfinite(loss.total)
        assert 0 < loss.parts["correlation/lstm/site"] < 1
    assert model.heads[0].predictor[0].in_features == 6


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"weight": -1}, "weight must be a number of at least 0; got -1"),
        ({"weight": "1e-3"}, "weight must be a number of at least 0; got '1e-3'"),
        ({"warmup": 0.1}, "warmup must be a whole number of at least 0; got 0.1"),
        ({"hidden": 2.5}, "hidden must be a whole number of at least 0; got 2.5"),
        ({"window": 2}, "window must be a whole number of at least 3; got 2"),
    ],
)
def test_options_that_cannot_be_are_refused(problem, options, text):
    with pytest.raises(OptionError, match=text):
        prepare("adversarial", problem, make_network(), **options)
