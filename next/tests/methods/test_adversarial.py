"""CF-Net's heads and network pull in opposite directions, column by column, in one backward."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from deconfound.errors import OptionError
from deconfound.methods import Method, Setting, make_method
from tests.methods.problem import Problem, criterion, make_adam, make_network, make_problem, update

PROBLEM = make_problem()
AT = ["0", "2"]


def make_adversary(problem: Problem = PROBLEM, at=AT, **options) -> Method:
    """Return the method with the same first weights each time."""
    network = make_network()
    torch.manual_seed(1)
    return make_method("adversarial", network, Setting(problem.design, problem.x[:2], at), options)


def network_gradient(method: Method, batch) -> list[Tensor]:
    """Return the gradient of the training loss for the network's parameters."""
    loss = method.train().loss(batch, criterion)
    return [*torch.autograd.grad(loss, [*method.network.parameters()])]


def one_hot(values: np.ndarray) -> Tensor:
    """Return one column for each level, in the order of the levels."""
    return torch.from_numpy((values[:, None] == np.unique(values)).astype(np.float64))


def correlation(predictions: Tensor, truths: Tensor) -> Tensor:
    """Return the mean of torch's own squared correlations, one column after the other."""
    pairs = zip(predictions.T, truths.T, strict=True)
    return torch.stack([torch.corrcoef(torch.stack(pair))[0, 1] ** 2 for pair in pairs]).mean()


def test_the_gradients_are_those_of_two_players():
    """With L = −Σ_confounds mean_modules corr², that of the network is ∇(task − w L), of heads ∇L.

    Three confounds at once: a number, two levels, three levels. The correlations are those of
    torch.corrcoef with the raw columns. Kills a wrong sign, and columns that are mixed.
    """
    x, metadata, target = (each.double() for each in (PROBLEM.x, PROBLEM.metadata, PROBLEM.target))
    method = make_adversary(weight=3.0).double()
    batch = PROBLEM.batch()._replace(x=x, metadata=metadata, target=target)
    loss = method.train().loss(batch, criterion)
    loss.backward()

    network, table = method.network, PROBLEM.table
    features = [network[0](x), network[:3](x)]
    truths = [
        torch.tensor(table["age"].to_numpy())[:, None],
        one_hot(table["sex"].to_numpy(str))[:, 1:],
        one_hot(table["site"].to_numpy(str)),
    ]
    heads = iter(method.heads)
    squares = [correlation(next(heads).predictor(f), truth) for f in features for truth in truths]
    correlation_loss = -sum(squares) / 2
    task = criterion(network(x), batch)
    torch.testing.assert_close(loss.detach(), task.detach())
    wanted = torch.autograd.grad(task - 3.0 * correlation_loss, [*network.parameters()])
    # The control: the heads' share of the gradient is no trifle.
    alone = torch.autograd.grad(criterion(network(x), batch), network[0].weight)[0]
    assert (network[0].weight.grad - alone).abs().max() > 1e-2
    for parameter, gradient in zip(network.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-5, atol=1e-7)
    features = [f.detach() for f in features]
    heads = iter(method.heads)
    squares = [correlation(next(heads).predictor(f), truth) for f in features for truth in truths]
    wanted = torch.autograd.grad(-sum(squares) / 2, [*method.heads.parameters()])
    for parameter, gradient in zip(method.heads.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-5, atol=1e-7)


def test_the_heads_step_leaves_the_network():
    """At weight 0 the network trains as if alone, while the heads raise their correlations."""
    method, plain = make_adversary(weight=0), Method(make_network(), PROBLEM.setting())
    for own, expected in zip(
        network_gradient(method, PROBLEM.batch()),
        network_gradient(plain, PROBLEM.batch()),
        strict=True,
    ):
        torch.testing.assert_close(own, expected)
    before = correlations(method)
    optimizer = make_adam(method.heads.parameters())
    network = [parameter.detach().clone() for parameter in method.network.parameters()]
    for _ in range(50):
        update(method.loss(PROBLEM.batch(), criterion), optimizer)
    assert (correlations(method) > before).all()
    for parameter, value in zip(method.network.parameters(), network, strict=True):
        assert torch.equal(parameter, value)


def correlations(method: Method) -> Tensor:
    """Return corr² of each head at the first module."""
    confounds = PROBLEM.metadata[:, : len(PROBLEM.design.confound_columns)]
    features = method.network[0](PROBLEM.x)
    heads = [*method.heads][:3]
    return torch.stack([head(features, confounds, torch.ones(120)) for head in heads]).detach()


def test_trained_heads_make_the_network_hide():
    """Where heads have learned, steps of the network alone lower what they see."""
    method = make_adversary(weight=5.0, at="0")
    of_heads, of_network = (make_adam(part.parameters()) for part in (method.heads, method.network))
    for _ in range(50):
        update(method.loss(PROBLEM.batch(), criterion), of_heads)
    before = correlations(method)
    for _ in range(20):
        update(method.loss(PROBLEM.batch(), criterion), of_network)
    assert correlations(method).sum() < 0.8 * before.sum()


def test_the_network_learns_alone_during_the_warmup_and_w_rises_over_as_many_steps():
    """Shares 0, 0, ½, 1, 1 of the full weight; a checkpoint keeps the count."""
    plain = network_gradient(Method(make_network(), PROBLEM.setting()), PROBLEM.batch())
    full = network_gradient(make_adversary(weight=2.0), PROBLEM.batch())
    method = make_adversary(weight=2.0, warmup=2)
    for share in (0, 0, 0.5, 1, 1):
        loaded = make_adversary(weight=2.0, warmup=2)
        loaded.load_state_dict(method.state_dict())
        assert (full[0] - plain[0]).abs().max() > 1e-3
        for each in (method, loaded):
            for own, alone, both in zip(
                network_gradient(each, PROBLEM.batch()), plain, full, strict=True
            ):
                torch.testing.assert_close(
                    own, alone + share * (both - alone), atol=1e-6, rtol=1e-4
                )


def test_an_evaluated_loss_does_not_count_as_a_step():
    method = make_adversary(warmup=2).eval()
    method.loss(PROBLEM.batch(), criterion)
    assert method.steps == 0


def head_and_features(seed: int = 0, **options) -> tuple[nn.Module, Tensor, Tensor]:
    """Return the head of the site, centred features and encoded confounds."""
    method = make_adversary(at="0", **options)
    confounds = PROBLEM.metadata[:, : len(PROBLEM.design.confound_columns)]
    features = method.network[0](PROBLEM.x).detach()
    return method.heads[2], features - features.mean(0), confounds


def test_a_network_hides_nothing_by_shrinking_its_features():
    """A linear head has the same correlation for features a thousand times smaller."""
    head, features, confounds = head_and_features(hidden=0)
    ones = torch.ones(120)
    expected = head(features, confounds, ones)
    assert expected > 0.01
    torch.testing.assert_close(head(1e-3 * features, confounds, ones), expected, rtol=1e-2, atol=0)
    # Constant features have no correlation, and a finite gradient.
    constant = torch.zeros_like(features, requires_grad=True)
    head(constant, confounds, ones).backward()
    assert constant.grad.isfinite().all()


def test_heads_keep_single_precision_where_the_network_has_half():
    """Kills heads that run under autocast, and heads that are cast with the method."""
    head, features, confounds = head_and_features()
    small, ones = 1e-3 * features, torch.ones(120)
    expected = head(small, confounds, ones)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(head(small, confounds, ones), expected)
        rounded = head.predictor(small)
    # The control: half precision has few values for 120 rows.
    assert len(rounded[:, 0].unique()) < 60
    half = make_adversary().bfloat16()
    assert {parameter.dtype for parameter in half.heads.parameters()} == {torch.float32}
    assert {parameter.dtype for parameter in half.network.parameters()} == {torch.bfloat16}
    batch = PROBLEM.batch()
    half.train().loss(batch._replace(x=batch.x.bfloat16()), criterion).backward()
    assert half.heads[0].predictor[0].weight.grad.abs().sum() > 0


def test_a_category_has_one_output_for_each_level_the_reference_too():
    """Two levels are one column."""
    method = make_adversary(at="0")
    confounds = PROBLEM.metadata[:, : len(PROBLEM.design.confound_columns)]
    assert [head.predictor[-1].out_features for head in method.heads] == [1, 1, 3]
    columns = (confounds @ method.heads[2].columns).double()
    levels = one_hot(PROBLEM.table["site"].to_numpy(str))
    for column, level in zip(columns.T, levels.T, strict=True):
        torch.testing.assert_close(
            torch.corrcoef(torch.stack([column, level]))[0, 1], torch.tensor(1.0).double()
        )


def test_rows_count_by_layer_weight():
    """A weight of 2 is the row twice, and 0 is no row, in the gradient of both players."""
    weight = (torch.arange(120) % 3).float()
    head, features, confounds = head_and_features()
    repeated = torch.repeat_interleave(torch.arange(120), weight.long())
    expected = head(features[repeated], confounds[repeated], torch.ones(len(repeated)))
    torch.testing.assert_close(head(features, confounds, weight), expected)
    torch.testing.assert_close(head(features, confounds, 10 * weight), expected)
    assert (head(features, confounds, torch.ones(120)) - expected).abs() > 1e-4
    batch = PROBLEM.batch(layer_weight=weight)
    weighted = network_gradient(make_adversary(weight=2.0), batch)
    unweighted = network_gradient(make_adversary(weight=2.0), PROBLEM.batch())
    assert (weighted[0] - unweighted[0]).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("rows", "weight"),
    [(slice(1), None), (slice(2), None), (slice(9), [1, 1] + [0] * 7), (slice(9), [0] * 9)],
    ids=["one row", "two rows", "two rows that count", "no row that counts"],
)
def test_fewer_than_three_rows_train_the_task_alone(rows, weight):
    """Two rows always correlate by ±1. Kills a gradient of rounding errors, and NaN."""
    batch = PROBLEM.batch(rows)
    if weight is not None:
        batch = batch._replace(layer_weight=torch.tensor(weight).float())
    method, plain = make_adversary(weight=5.0), Method(make_network(), PROBLEM.setting())
    expected = network_gradient(plain, batch)
    for own, alone in zip(network_gradient(method, batch), expected, strict=True):
        torch.testing.assert_close(own, alone)
    method.loss(batch, criterion).backward()
    for parameter in method.heads.parameters():
        assert (parameter.grad == 0).all()


def test_a_confound_that_is_constant_in_a_batch_has_no_correlation():
    """And it takes no part in the mean over levels."""
    head, features, confounds = head_and_features()
    one_site = torch.tensor((PROBLEM.table["site"] == "site A").to_numpy())
    ones = torch.ones(int(one_site.sum()))
    assert head(features[one_site], confounds[one_site], ones) == 0


def test_faults_of_options_are_reported_together():
    options = {"weight": -1, "warmup": 0.5, "hidden": -3}
    with pytest.raises(OptionError) as caught:
        make_adversary(**options)
    assert str(caught.value).split("\n") == [
        "weight must be a number, 0 or more; got -1.",
        "warmup must be a whole number, 0 or more; got 0.5.",
        "hidden must be a whole number, 0 or more; got -3.",
    ]
