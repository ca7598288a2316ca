"""The ranking loss: its formula pair by pair, and its blindness to differences between strata."""

import numpy as np
import pytest
import torch
from torch import nn

from deconfound.errors import OptionError, ShapeError
from deconfound.methods import Batch
from deconfound.training import Ranking, binary_cross_entropy


def draw(n=60, labels=2, seed=0, strata=4):
    """Scores, 0/1 members and strata, of which -1 is a row without one, all in float64."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, 2, (n, labels))
    return scores, rng.random((n, labels)) < 0.3, rng.integers(-1, strata, n)


def make_batch(members, stratum, weight=None, dtype=torch.float64):
    members = torch.as_tensor(members)
    target = members if members.ndim == 1 else members.to(dtype)
    weight = None if weight is None else torch.as_tensor(weight, dtype=dtype)
    return Batch(torch.empty(0), torch.empty(0), target, weight, stratum=torch.as_tensor(stratum))


def pair_term(score, is_case, stratum, weight):
    """The mean loss of pairs, by a double loop."""
    total = total_weight = 0.0
    for i in np.flatnonzero(is_case & (stratum >= 0)):
        for j in np.flatnonzero(~is_case & (stratum == stratum[i])):
            total += weight[i] * weight[j] * np.log1p(np.exp(score[j] - score[i]))
            total_weight += weight[i] * weight[j]
    return total / total_weight


def between_term(score, is_case, stratum, weight):
    total = 0.0
    inside = stratum >= 0
    for i in np.flatnonzero(inside):
        alike = inside & (is_case == is_case[i])
        here = alike & (stratum == stratum[i])
        gap = np.average(score[here], weights=weight[here])
        gap -= np.average(score[alike], weights=weight[alike])
        total += weight[i] * gap**2
    return total / weight[inside].sum()


def level_term(score, is_case, weight, prevalence):
    losses = np.where(is_case, np.logaddexp(0, -score), np.logaddexp(0, score))
    of_cases = np.average(losses[is_case], weights=weight[is_case])
    of_controls = np.average(losses[~is_case], weights=weight[~is_case])
    return prevalence * of_cases + (1 - prevalence) * of_controls


def loss_by_loops(scores, members, stratum, weight, offset, prevalence):
    """The formula of `Ranking`, label by label."""
    values = []
    for score, is_case, share in zip(scores.T, members.T, prevalence, strict=True):
        value = pair_term(score, is_case, stratum, weight)
        value += offset * between_term(score, is_case, stratum, weight)
        values.append(value + level_term(score, is_case, weight, share))
    return np.mean(values)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_is_its_formula_pair_by_pair(weighted):
    scores, members, stratum = draw()
    weight = np.random.default_rng(1).gamma(2.0, size=60) if weighted else np.ones(60)
    expected = loss_by_loops(scores, members, stratum, weight, 0.3, (0.2, 0.6))
    rows = make_batch(members, stratum, weight if weighted else None)
    value = Ranking(0.3, (0.2, 0.6))(torch.from_numpy(scores), rows)
    assert value.item() == pytest.approx(expected, rel=1e-12)
    other = loss_by_loops(scores, members, np.zeros(60, int), weight, 0.3, (0.2, 0.6))
    assert abs(other - expected) > 1e-3  # control: the strata matter


def test_classes_are_ranked_one_against_the_others():
    rng = np.random.default_rng(0)
    scores, codes, stratum = rng.normal(size=(50, 3)), *rng.integers(3, size=(2, 50))
    members = codes[:, None] == np.arange(3)
    expected = loss_by_loops(scores, members, stratum, np.ones(50), 0.1, (0.5, 0.5, 0.5))
    value = Ranking()(torch.from_numpy(scores), make_batch(codes, stratum))
    assert value.item() == pytest.approx(expected, rel=1e-12)


def test_a_constant_of_a_stratum_does_not_change_the_pairs():
    """The gradient of `pairs` sums to 0 within each stratum; that of cross-entropy does not."""
    scores, members, stratum = draw(labels=1)
    rows = make_batch(members, stratum)
    pairs = Ranking(offset=0)

    def stratum_sums(criterion, values):
        leaf = torch.from_numpy(values).requires_grad_()
        criterion(leaf, rows).backward()
        # `level` reaches the mean score only, so its gradient is the same for each row; rows
        # without a stratum show it.
        gradient = leaf.grad[:, 0] - leaf.grad[torch.as_tensor(stratum) < 0][0]
        return torch.stack([gradient[torch.as_tensor(stratum) == site].sum() for site in range(4)])

    assert stratum_sums(pairs, scores).abs().max() < 1e-14
    assert stratum_sums(binary_cross_entropy, scores).abs().max() > 1e-2  # control
    gradients = []
    for offset in (0.0, 5.0):
        leaf = torch.from_numpy(scores + offset * (stratum == 1)[:, None]).requires_grad_()
        pairs(leaf, rows).backward()
        gradients.append(leaf.grad - leaf.grad[torch.as_tensor(stratum) < 0][0])
    torch.testing.assert_close(gradients[0], gradients[1])


def test_between_holds_strata_together():
    """What offset 1 adds to offset 0 grows with the square of a stratum's distance."""
    scores, members, stratum = draw(labels=1)
    rows = make_batch(members, stratum)
    added = []
    for distance in (0.0, 100.0, 200.0):
        moved = torch.from_numpy(scores + distance * (stratum == 1)[:, None])
        added.append((Ranking(offset=1)(moved, rows) - Ranking(offset=0)(moved, rows)).item())
    assert added[0] < 1
    assert added[2] / added[1] == pytest.approx(4, rel=0.02)


def test_level_moves_the_mean_score_only_to_the_prevalence():
    """Its gradient is one number for all rows, 0 where cases have the share π under the sigmoid."""
    rng = np.random.default_rng(0)
    is_case = np.arange(200) < 20
    scores = rng.normal(size=200) + 2 * is_case
    rows = make_batch(is_case[:, None], np.full(200, -1))  # no strata: `level` alone
    leaf = torch.from_numpy(scores)[:, None].requires_grad_()
    Ranking(prevalence=0.3)(leaf, rows).backward()
    assert leaf.grad.std() < 1e-16
    sigmoid = 1 / (1 + np.exp(-scores))
    expected = 0.3 * (sigmoid[is_case] - 1).mean() + 0.7 * sigmoid[~is_case].mean()
    assert leaf.grad.sum().item() == pytest.approx(expected)
    # Twice as many controls change nothing, because π is fixed.
    score = np.concatenate([scores, scores[~is_case]])
    rows = make_batch(np.concatenate([is_case, np.zeros(180, bool)])[:, None], np.full(380, -1))
    leaf = torch.from_numpy(score)[:, None].requires_grad_()
    Ranking(prevalence=0.3)(leaf, rows).backward()
    assert leaf.grad.sum().item() == pytest.approx(expected)


def test_weights_are_repetitions():
    """Weights 2, 1 and 0 are the row twice, once and not at all; halved, they change nothing."""
    scores, members, stratum = draw(labels=2)
    weight = np.random.default_rng(1).integers(0, 3, 60)
    again = np.repeat(np.arange(60), weight)
    criterion = Ranking(0.5, 0.3)
    repeated = criterion(
        torch.from_numpy(scores[again]), make_batch(members[again], stratum[again])
    )
    for scale in (1.0, 0.01):
        rows = make_batch(members, stratum, weight * scale)
        torch.testing.assert_close(criterion(torch.from_numpy(scores), rows), repeated)
    plain = criterion(torch.from_numpy(scores), make_batch(members, stratum))
    assert abs(plain - repeated) > 1e-3  # control
    single = criterion(torch.from_numpy(scores).float(), make_batch(members, stratum, weight))
    assert single.item() == pytest.approx(repeated.item(), rel=1e-5)


def test_the_gradient_is_that_of_pairs_and_between_and_of_a_shift_by_level():
    """Oracle: central differences of the double loops, and the slope of `level` in the mean."""
    scores, members, stratum = draw(n=20, labels=1)
    rows = make_batch(members, stratum, np.random.default_rng(0).gamma(2.0, size=20))
    criterion = Ranking(offset=0.7)
    leaf = torch.from_numpy(scores).requires_grad_()
    criterion(leaf, rows).backward()
    step = 1e-6
    level = level_gradient(scores[:, 0], members[:, 0], rows.weight.numpy())
    for i in range(20):
        values = []
        for sign in (1, -1):
            moved = scores.copy()
            moved[i] += sign * step
            weight = rows.weight.numpy()
            values.append(
                pair_term(moved[:, 0], members[:, 0], stratum, weight)
                + 0.7 * between_term(moved[:, 0], members[:, 0], stratum, weight)
            )
        expected = (values[0] - values[1]) / (2 * step) + level[i]
        assert leaf.grad[i, 0].item() == pytest.approx(expected, abs=1e-8)


def level_gradient(score, is_case, weight, prevalence=0.5):
    """The gradient of `level`: that of a shift of all scores, spread over rows by their weight."""
    sigmoid = 1 / (1 + np.exp(-score))
    slope = prevalence * np.average(sigmoid[is_case] - 1, weights=weight[is_case])
    slope += (1 - prevalence) * np.average(sigmoid[~is_case], weights=weight[~is_case])
    return slope * weight / weight.sum()


def test_a_batch_without_a_pair_trains_by_the_other_terms():
    """Cases at one site and controls at the other: `between` and `level` remain."""
    score = np.array([1.0, 0.5, -2.0, 0.3])
    is_case, stratum = np.array([True, True, False, False]), np.array([0, 0, 1, 1])
    leaf = torch.from_numpy(score)[:, None].requires_grad_()
    value = Ranking(0.3)(leaf, make_batch(is_case[:, None], stratum))
    expected = level_term(score, is_case, np.ones(4), 0.5)  # each site is the mean of its class
    assert value.item() == pytest.approx(expected)
    value.backward()
    assert leaf.grad.isfinite().all()
    assert leaf.grad.abs().min() > 0


@pytest.mark.parametrize("is_case", [True, False])
def test_a_batch_of_one_class_has_no_level(is_case):
    """Otherwise every batch without cases of a rare label would push all scores down."""
    score = torch.tensor([[1.0], [2.0], [6.0]], dtype=torch.float64, requires_grad=True)
    rows = make_batch(np.full((3, 1), is_case), [0, 0, 1])
    value = Ranking(offset=1.0)(score, rows)
    assert value.item() == pytest.approx((2 * 1.5**2 + 3**2) / 3)
    value.backward()
    assert score.grad.isfinite().all()


def test_single_rows_and_halves_are_finite():
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        score = torch.tensor([[30.0], [-30.0]], dtype=dtype, requires_grad=True)
        value = Ranking()(score, make_batch(np.array([[0], [1]]), [0, 0], dtype=torch.float32))
        value.backward()
        assert value.dtype == torch.float32
        assert value.isfinite()
        assert score.grad.isfinite().all()
    assert Ranking()(torch.zeros(1), make_batch(np.array([[1]]), [0])).item() == 0


def test_many_rows_are_compared_in_blocks():
    """A validation comes in one piece: its value is that of the whole matrix of pairs."""
    rng = np.random.default_rng(0)
    n = 4500
    scores, codes, stratum = rng.normal(size=(n, 2)), rng.integers(2, size=n), np.zeros(n, int)
    value = Ranking(offset=0)(torch.from_numpy(scores), make_batch(codes, stratum))
    expected = []
    for k in range(2):
        is_case = codes == k
        gap = scores[~is_case, k][None] - scores[is_case, k][:, None]
        level = level_term(scores[:, k], is_case, np.ones(n), 0.5)
        expected.append(np.logaddexp(0, gap).mean() + level)
    assert value.item() == pytest.approx(np.mean(expected), rel=1e-10)


def confounded_rows(n, seed):
    """A label that one feature shows weakly, and a site, tied to it, that another shows well."""
    rng = np.random.default_rng(seed)
    is_case = rng.random(n) < 0.5
    site = rng.random(n) < np.where(is_case, 0.9, 0.1)
    x = np.stack([is_case + rng.normal(size=n), 3 * site + rng.normal(0, 0.05, n)], axis=1)
    return torch.from_numpy(x).float(), make_batch(
        is_case[:, None], site.astype(int), dtype=torch.float32
    )


def test_a_network_that_ranks_within_sites_does_not_use_the_site():
    x, rows = confounded_rows(600, seed=0)
    shares, means = {}, {}
    for name, criterion in (("plain", binary_cross_entropy), ("ranking", Ranking())):
        torch.manual_seed(0)
        network = nn.Linear(2, 1)
        optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
        for _ in range(200):
            optimizer.zero_grad()
            criterion(network(x), rows).backward()
            optimizer.step()
        weight = network.weight.detach()[0]
        shares[name], means[name] = float(weight[1] / weight[0]), network(x).mean().item()
    assert shares["plain"] > 0.5  # control: the site is used
    assert abs(shares["ranking"]) < 0.1
    assert abs(means["ranking"]) < 1.0  # 0 divides cases from controls


def test_bad_input_is_named():
    rows = make_batch(np.array([[1], [0]]), [0, 0])
    with pytest.raises(OptionError, match="got rows without strata"):
        Ranking()(torch.zeros(2, 1), rows._replace(stratum=None))
    with pytest.raises(ShapeError, match="one output per label; got outputs of shape"):
        Ranking()(torch.zeros(2, 3), rows)
    for options in ({"offset": -1}, {"prevalence": 0}, {"prevalence": (0.2, 1)}):
        with pytest.raises(OptionError, match="prevalence shares between 0 and 1; got Ranking"):
            Ranking(**options)
