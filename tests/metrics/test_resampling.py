"""Permutations and bootstrap samples: people stay whole, p-values keep their level, intervals cover."""

import numpy as np
import pytest
import torch

from deconfound import metrics
from deconfound.errors import OptionError
from deconfound.metrics.permutations import movable, permuted_rows
from deconfound.metrics.resampling import (
    Resampling,
    absolute_interval,
    bootstrap_chunks,
    bootstrap_weights,
    interval,
    p_value,
    person_folds,
)

# People with one to three rows, in two strata.
PERSON = torch.tensor([0, 1, 1, 2, 3, 3, 4, 5, 5, 6, 7, 7, 7])
STRATUM = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1])


def generator():
    return torch.Generator().manual_seed(0)


def test_people_exchange_a_confound_that_they_have_once_whatever_their_numbers_of_rows():
    age = torch.arange(8.0)[PERSON]
    moved = age[permuted_rows(STRATUM, PERSON, 300, generator(), age)]
    for person in range(8):  # all rows of a person get one value
        rows = person == PERSON
        assert (moved[:, rows] == moved[:, rows][:, :1]).all()
    # every person of a stratum gets every age of that stratum, also the only one with three rows
    assert set(moved[:, 12].tolist()) == {4.0, 5.0, 6.0, 7.0}
    assert set(moved[:, 0].tolist()) == {0.0, 1.0, 2.0, 3.0}
    first = torch.tensor([0, 1, 3, 4])
    assert (moved[:, first].sort(1).values == torch.arange(4.0)).all()


def test_a_confound_that_varies_within_people_is_shuffled_there_and_blocks_go_to_people_with_as_many_rows():
    visit = torch.tensor([0.0, 1, 2, 0, 1, 2, 0, 1])
    person = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
    orders = permuted_rows(torch.zeros(8), person, 400, generator(), visit)
    moved = visit[orders]
    assert (moved[:, :3].sort(1).values == torch.arange(3.0)).all()  # travelling subjects: each visit once
    assert set(map(tuple, moved[:, :3].tolist())) == {
        (0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)
    }  # fmt: skip
    assert set(person[orders[:, 0]].tolist()) == {0, 1}
    assert (person[orders[:, 6:]] == 2).all()
    assert movable(visit, orders) == 8


def test_people_are_permuted_once_for_all_label_groups_they_are_in():
    person = torch.arange(20).repeat(2)
    label = torch.tensor([0, 1]).repeat_interleave(20)
    sex = (torch.arange(20) % 2).double().repeat(2)
    moved = sex[permuted_rows(label, person, 50, generator(), sex)]
    assert (moved[:, :20] == moved[:, 20:]).all()
    assert movable(sex, permuted_rows(label, person, 50, generator(), sex)) == 40


def test_where_nothing_can_move_there_is_no_p_value():
    x, same = torch.arange(12.0)[:, None], torch.tensor([0, 0, 1, 1]).repeat_interleave(3).double()[:, None]
    found = metrics.dcor_test(x, same, same[:, 0], None, Resampling(permutations=19, bootstraps=40))
    assert (found.movable, found.p != found.p) == (0, True)


def test_a_bootstrap_sample_draws_people_as_a_whole_and_keeps_the_strata_sizes_in_people():
    weights = bootstrap_weights(STRATUM, PERSON, 500, generator())
    assert (weights[:, 1] == weights[:, 2]).all()
    people = torch.tensor([0, 1, 3, 4])
    assert (weights[:, people].sum(1) == 4).all()
    torch.testing.assert_close(weights.double().mean(0), torch.ones(13).double(), atol=0.15, rtol=0)


def test_all_rows_of_a_person_are_in_one_fold_and_folds_are_balanced():
    folds = person_folds(PERSON, 4, generator())
    for person in range(8):
        assert len(folds[person == PERSON].unique()) == 1
    first_rows = torch.tensor([0, 1, 3, 4, 6, 7, 9, 10])
    assert torch.bincount(folds[first_rows]).tolist() == [2, 2, 2, 2]
    with pytest.raises(OptionError, match="number of people; got 9 for 8"):
        person_folds(PERSON, 9, generator())


def test_p_value_counts_ties_against_the_finding_and_is_never_zero():
    null = torch.tensor([0.1, 0.2, 0.3, 0.4])
    assert [p_value(value, null) for value in (0.5, 0.4, 0.25, 0.0)] == [0.2, 0.4, 0.6, 1.0]


def test_too_few_resamples_are_refused():
    with pytest.raises(OptionError, match="permutations must be at least 19; got 5"):
        Resampling(permutations=5)


def test_dcor_test_reports_the_estimator_and_its_null_values_are_those_of_permuted_rows():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(60, 3)))
    for y in (torch.from_numpy(rng.normal(size=(60, 1))), torch.eye(4).double()[rng.integers(0, 4, 60)]):
        cells = torch.arange(60) % 2
        resampling = Resampling(permutations=50, bootstraps=40)
        found = metrics.dcor_test(x, y, cells, None, resampling)
        assert found.value == pytest.approx(float(metrics.within_group_dcor_sqr(x, y, cells)), abs=1e-12)
        # the same null, drawn again and computed by the estimator itself
        orders = permuted_rows(cells, None, 50, resampling.generator())
        null = torch.stack([metrics.within_group_dcor_sqr(x, y[order], cells) for order in orders])
        assert found.chance == pytest.approx(float(null.mean()), abs=1e-6)
        assert found.independent == pytest.approx(float(null.quantile(0.95)), abs=1e-6)
        assert found.p == pytest.approx(p_value(found.value, null))


def test_bootstrap_replicates_are_the_estimator_on_the_drawn_rows():
    rng = torch.Generator().manual_seed(1)
    x, y = torch.randn(40, 2, generator=rng).double(), torch.randn(40, 1, generator=rng).double()
    resampling = Resampling(permutations=19, bootstraps=40)
    found = metrics.dcor_test(x, y, torch.zeros(40), None, resampling)
    random = resampling.generator()
    permuted_rows(torch.zeros(40), None, 19, random)
    values = []
    for weight in bootstrap_weights(torch.zeros(40), None, 40, random):
        rows = torch.arange(40).repeat_interleave(weight)
        values.append(metrics.u_distance_correlation_sqr(x[rows], y[rows]))
    assert (found.low, found.high) == pytest.approx(interval(found.value, torch.stack(values), -1, 1), abs=1e-5)


def test_bootstrap_samples_come_in_chunks_that_together_are_the_same(monkeypatch):
    whole = bootstrap_weights(STRATUM, PERSON, 30, generator())
    monkeypatch.setattr("deconfound.metrics.resampling._HELD", 13 * 7)
    parts = list(bootstrap_chunks(STRATUM, PERSON, 30, generator()))
    assert [len(part) for part in parts] == [7, 7, 7, 7, 2]
    assert (torch.cat(parts) == whole).all()


def test_an_interval_of_absolute_correlations_includes_zero_for_independent_data():
    rng = np.random.default_rng(0)
    resampling = Resampling(permutations=19, bootstraps=100)
    from deconfound.metrics.paper import paper_test

    excluded = 0
    for _ in range(60):
        x, age = torch.from_numpy(rng.normal(size=(60, 1))), metrics.column("age", rng.normal(size=60))
        excluded += paper_test(x, age, torch.zeros(60), None, resampling).low > 0
    assert excluded / 60 < 0.15
    x = torch.from_numpy(age.values.numpy()[:, None] + rng.normal(size=(60, 1)))
    assert paper_test(x, age, torch.zeros(60), None, resampling).low > 0.3


def test_a_fold_in_which_outputs_do_not_vary_adds_nothing_to_a_correlation():
    from deconfound.metrics.paper import paper_test

    x = torch.tensor([0.3, 0.3, 0.3, 0.1, 0.9, 0.4]).double()[:, None]
    sex, folds = metrics.column("sex", [0, 1, 0, 0, 1, 1]), torch.tensor([0, 0, 0, 1, 1, 1])
    found = paper_test(x, sex, folds, None, Resampling(permutations=19, bootstraps=40))
    inside = abs(np.corrcoef([0.1, 0.9, 0.4], [0, 1, 1])[0, 1])
    assert found.value == pytest.approx(inside / 2)
    assert 0 <= found.chance <= 0.5
    assert 0 <= found.low <= found.value <= found.high <= 1


@pytest.mark.parametrize("truth", [0.0, 0.02, 0.1])
def test_an_interval_of_a_mean_of_absolute_values_covers_it_near_zero_and_far_from_it(truth):
    rng = np.random.default_rng(0)
    covered, naive = 0, 0
    for _ in range(100):
        values = truth * np.array([1, -1, 1, -1]) + 0.05 * rng.normal(size=4)
        replicates = torch.from_numpy(values + 0.05 * rng.normal(size=(200, 4)))
        low, high = absolute_interval(torch.from_numpy(values), replicates)
        covered += low <= truth <= high
        naive += np.quantile(replicates.abs().mean(1), 0.025) <= truth
    assert covered >= 88
    assert naive < 60 or truth > 0.05  # the percentile interval misses near zero


def test_holm_is_what_statsmodels_computes():
    multitest = pytest.importorskip("statsmodels.stats.multitest", reason="statsmodels, the oracle, is not installed")
    p = np.random.default_rng(0).random(9) ** 3
    np.testing.assert_allclose(metrics.holm(p), multitest.multipletests(p, method="holm")[1])
    assert np.isnan(metrics.holm([0.5, float("nan")])[1])


def binomial_range(rate, trials):
    """Four standard errors either way: left in one run of 15,000 by a test that is right."""
    return rate + 4 * np.array([-1, 1]) * np.sqrt(rate * (1 - rate) / trials)


@pytest.mark.parametrize("people", [False, True])
def test_dcor_test_rejects_independent_data_at_five_per_cent_and_dependent_data_often(people):
    rng = torch.Generator().manual_seed(0)
    resampling = Resampling(permutations=39, bootstraps=40)
    person = torch.arange(40) // 2 if people else None
    rejected, found = 0, 0
    for _ in range(200):
        x, y = torch.randn(2, 40, 1, generator=rng, dtype=torch.float64)
        if people:  # the two rows of a person are alike
            x, y = x[person] + 0.1 * x, y[person] + 0.1 * y
        rejected += metrics.dcor_test(x, y, torch.zeros(40), person, resampling).p <= 0.05
        found += metrics.dcor_test(x, y + x, torch.zeros(40), person, resampling).p <= 0.05
    low, high = binomial_range(0.05, 200)
    assert low <= rejected / 200 <= high
    assert found / 200 > 0.8


def test_ignoring_that_rows_belong_to_people_would_reject_far_too_often():
    rng = torch.Generator().manual_seed(0)
    resampling = Resampling(permutations=39, bootstraps=40)
    person = torch.arange(40) // 4
    rejected = 0
    for _ in range(100):
        x, y = torch.randn(2, 40, 1, generator=rng, dtype=torch.float64)
        x, y = x[person] + 0.1 * x, y[person] + 0.1 * y
        rejected += metrics.dcor_test(x, y, torch.zeros(40), None, resampling).p <= 0.05
    assert rejected / 100 > 0.2


def test_bootstrap_interval_covers_the_population_value_nearly_as_often_as_it_says():
    # Squared distance correlation of a bivariate normal, Székely et al. (2007), theorem 7.
    rho = 0.6
    top = rho * np.arcsin(rho) + np.sqrt(1 - rho**2) - rho * np.arcsin(rho / 2) - np.sqrt(4 - rho**2) + 1
    truth = top / (1 + np.pi / 3 - np.sqrt(3))
    rng = torch.Generator().manual_seed(0)
    covered = 0
    for _ in range(200):
        x, noise = torch.randn(2, 100, 1, generator=rng, dtype=torch.float64)
        y = rho * x + np.sqrt(1 - rho**2) * noise
        found = metrics.dcor_test(x, y, torch.zeros(100), None, Resampling(permutations=19, bootstraps=200))
        covered += found.low <= truth <= found.high
    # Only the lower bound: an interval that covers more often than it says is safe.
    assert covered / 200 >= binomial_range(0.95, 200)[0]


def test_interval_is_centred_on_the_value_and_kept_in_its_range():
    replicates = torch.linspace(0.4, 0.6, 101)
    low, high = interval(0.3, replicates, 0.0, 1.0)
    assert (low, high) == pytest.approx((0.205, 0.395))
    assert interval(0.02, replicates, 0.0, 1.0)[0] == 0.0
