"""The one statistic: its definition, its invariances, and where it has no answer."""

import numpy as np
import pytest

from deconfound.errors import OptionError, ShapeError, TableError
from deconfound.metrics import LeakRows, LeakTest, OutputSimilarity, Resampling, leak
from tests.metrics.oracles import exact_p_value, leak_kernel, leak_sum

FEW = Resampling(permutations=99, bootstraps=40)


def make_test(
    outputs, confound, *, categorical=True, resampling=FEW, compare_folds=None, **columns
):
    rows = LeakRows.from_columns(len(outputs), **columns)
    similarity = OutputSimilarity.from_outputs(outputs, rows, compare_folds=compare_folds)
    return LeakTest.from_confound(
        similarity, confound, categorical=categorical, resampling=resampling
    )


def people_with_rows(random, people=40, most=3):
    """Return people with one to `most` rows, each in one of two label groups."""
    person = np.repeat(np.arange(people), random.integers(1, most + 1, people))
    return person, random.integers(0, 2, people)[person]


@pytest.mark.parametrize("columns", [1, 5])
@pytest.mark.parametrize("folds", [1, 2])
def test_statistic_follows_the_definition(columns, folds):
    """Kills mutants without whitening, votes, weights, the zero within people, or own cell sd."""
    random = np.random.default_rng(0)
    person, group = people_with_rows(random, people=60)
    fold = (np.arange(60) % folds)[person]
    n = len(person)
    outputs = random.normal(size=(n, columns)) * (1 + 2 * group[:, None])
    site, weight = random.integers(0, 3, n), random.uniform(0.5, 2, n)
    test = make_test(outputs, site, group=group, fold=fold, person=person, weight=weight)
    cell = 2 * group + fold
    kernel = leak_kernel(outputs, cell, person, fold if columns > 1 else None)
    one_hot = (site[:, None] == np.arange(3)).astype(float)
    expected = leak_sum(kernel, one_hot, cell, person, weight, whiten=True)
    assert test.statistics[0, 0] == pytest.approx(expected, abs=1e-7)
    for row, code in enumerate(test.groups, start=1):
        # Pairs within the group only; the contrasts are whitened over all rows.
        inside = kernel * (group[:, None] == code) * (group == code)
        expected = leak_sum(inside, one_hot, cell, person, weight, whiten=True)
        assert test.statistics[row, 0] == pytest.approx(expected, abs=1e-7)
    assert test.groups == (0, 1)


def test_p_value_is_that_of_all_orders():
    """Kills permutations across cells, and ties that count for the finding.

    Two cells of four people have 6 × 4 orders, so that ties with the table are frequent.
    """
    outputs = np.array([0.3, 2.1, 1.7, 0.2, 5.9, 4.1, 6.4, 5.0])[:, None]
    site, cell = np.array([0, 1, 1, 0, 1, 0, 0, 0]), np.repeat([0, 1], 4)
    many = Resampling(permutations=3999, bootstraps=0)
    p = leak(
        outputs, site, LeakRows.from_columns(8, group=cell), categorical=True, resampling=many
    ).p
    exact = exact_p_value(leak_kernel(outputs, cell, np.arange(8)), site, cell)
    assert p == pytest.approx(exact, abs=4 * np.sqrt(exact / 4000))


@pytest.mark.parametrize("categorical", [True, False])
def test_scale_and_shift_change_nothing(categorical):
    """Kills outputs that are not standardised, and numbers that do not enter by their ranks."""
    random = np.random.default_rng(0)
    confound, group = random.integers(0, 4, 90), random.integers(0, 2, 90)
    outputs = random.normal(size=(90, 3)) + confound[:, None]
    one = make_test(outputs, confound, categorical=categorical, group=group).result()
    moved = np.exp(confound / 3) if not categorical else np.array(list("dbca"))[confound]
    other = make_test(1e3 * outputs - 7, moved, categorical=categorical, group=group).result()
    assert other.effect == pytest.approx(one.effect, abs=1e-6)
    assert (other.low, other.high) == pytest.approx((one.low, one.high), abs=1e-6)
    assert other.p == one.p


@pytest.mark.parametrize("kind", ["levels", "numbers", "numeric label"])
def test_copies_of_a_person_change_nothing(kind):
    """Kills sums over rows: one person with 21 rows would outvote the others."""
    random = np.random.default_rng(0)
    person, group = people_with_rows(random)
    label = random.normal(size=40)[person]
    confound = random.integers(0, 3, 40)[person]
    outputs = random.normal(size=len(person)) + 0.3 * confound + label
    again = np.r_[np.arange(len(person)), np.repeat(np.flatnonzero(person == 5), 20)]
    columns = {"group": group, "person": person}
    if kind == "numeric label":
        columns["numeric_labels"] = label
    categorical = kind != "numbers"
    one = make_test(outputs, confound, categorical=categorical, **columns)
    copied = {name: values[again] for name, values in columns.items()}
    other = make_test(outputs[again], confound[again], categorical=categorical, **copied)
    np.testing.assert_allclose(other.statistics, one.statistics, atol=1e-8)
    assert other.result().effect == pytest.approx(one.result().effect, abs=1e-6)


@pytest.mark.parametrize("balanced", [True, False])
def test_outputs_that_equal_a_site_have_effect_one(balanced):
    """Kills a bound that ignores the distribution of levels over cells."""
    site = np.arange(200) % 2 if balanced else (np.arange(200) < 20).astype(int)
    group = np.random.default_rng(0).integers(0, 2, 200)
    result = make_test(site + 2.0 * group, site, group=group).result()
    assert result.effect == pytest.approx(1.0, abs=0.01)
    assert result.p == 0.01
    assert result.by_group[0].effect == pytest.approx(1.0, abs=0.01)


def test_effect_reads_as_a_squared_correlation():
    """Kills an effect that grows with n or is not zero on average; the interval covers it."""
    random = np.random.default_rng(0)
    for r, tolerance in ((0.0, 0.01), (0.25, 0.03), (0.5, 0.06)):
        effects, covered = [], 0
        for _ in range(40):
            site = np.arange(200) % 2
            outputs = r * (2 * site - 1) + np.sqrt(1 - r**2) * random.normal(size=200)
            result = make_test(outputs, site).result()
            effects.append(result.effect)
            covered += result.low <= r**2 <= result.high
        assert np.mean(effects) == pytest.approx(r**2, abs=tolerance)
        assert covered >= 33


def test_people_move_as_a_whole():
    """Kills permuted rows, under which a person of three rows would be three people.

    People are told apart by their outputs, so exchanged rows would find every confound.
    """
    random = np.random.default_rng(0)
    rejections = {"by person": 0, "by row": 0}
    for _ in range(100):
        person = np.repeat(np.arange(30), 3)
        outputs = random.normal(size=30)[person] + 0.1 * random.normal(size=90)
        site = random.integers(0, 2, 30)[person]
        for name, who in (("by person", person), ("by row", None)):
            rejections[name] += make_test(outputs, site, person=who).result().p <= 0.05
    assert rejections["by person"] <= 13
    assert rejections["by row"] >= 20


def test_site_that_varies_within_people_is_compared_within_people():
    """Kills the exchange of whole people alone: each person has both sites, so none could move."""
    random = np.random.default_rng(0)
    person = np.repeat(np.arange(25), 2)
    site = np.tile([0, 1], 25)
    outputs = 5 * random.normal(size=25)[person] + 0.5 * site + 0.1 * random.normal(size=50)
    result = make_test(outputs, site, person=person).result()
    assert result.movable == 50


def test_perfect_model_is_not_accused():
    """Kills standard deviations of rounding noise, which would make a leak of it."""
    random = np.random.default_rng(0)
    label, site = random.integers(0, 2, 300), random.integers(0, 2, 300)
    noise = 1e-13 * site
    for outputs in (label + 0.0, 3.0 * label + noise):
        result = make_test(outputs, site, group=label).result()
        assert np.isnan([result.effect, result.p, result.low, result.independent]).all()
        assert result.movable == 300


@pytest.mark.parametrize("confound", ["constant", "label", "fold"])
def test_where_nothing_moves_there_is_no_answer(confound):
    """Kills p = 1 and effect = 0 for confounds that were never tested; weights move nothing."""
    random = np.random.default_rng(0)
    label, fold = random.integers(0, 2, 60), random.integers(0, 3, 60)
    values = {"constant": np.zeros(60), "label": label, "fold": fold}[confound]
    columns = {"group": label, "fold": fold, "weight": random.uniform(1, 2, 60)}
    result = make_test(random.normal(size=60), values, **columns).result()
    assert np.isnan([result.effect, result.p, result.high]).all()
    assert (result.movable, result.rows) == (0, 60)


def test_level_whose_rows_all_have_weight_zero_has_no_answer():
    """Kills a test on the rounding that centring leaves of a constant (fault 4)."""
    random = np.random.default_rng(0)
    site, weight = np.repeat([0, 1], [50, 10]), np.repeat([1.3, 0.0], [50, 10])
    result = make_test(random.normal(size=60), site, weight=weight).result()
    assert np.isnan([result.effect, result.p]).all()


def test_small_groups_take_no_part_on_their_own():
    """Kills a test of a class of seven people, whose p-value cannot be small."""
    random = np.random.default_rng(0)
    group = np.repeat(["a", "b", "c"], [80, 60, 7])
    result = make_test(random.normal(size=147), random.integers(0, 2, 147), group=group).result()
    assert list(result.by_group) == ["a", "b"]
    assert result.movable == 147
    assert result.by_group["b"].rows == 60


def test_many_rows_of_one_person_displace_nobody():
    """Kills samples of whole people while they fit (fault 12): one person would fill them."""
    random = np.random.default_rng(0)
    person = np.r_[np.zeros(4000, int), np.arange(2500)]
    site = random.integers(0, 2, 2500)[person]
    outputs = random.normal(size=6500)
    rows = LeakRows.from_columns(6500, person=person)
    similarity = OutputSimilarity.from_outputs(outputs, rows)
    assert len(np.unique(person[similarity.used])) == 2500
    assert len(similarity) == 3000
    few = Resampling(permutations=19, bootstraps=0)
    test = LeakTest.from_confound(similarity, site, categorical=True, resampling=few)
    assert 0.0 < test.result().p <= 1.0
    assert np.isnan(test.result().low)


def test_features_of_folds_are_not_compared():
    """Kills pairs between folds: axes of different networks have no common meaning.

    Each fold's feature carries the site with its own sign. Within folds the leak is strong; over
    all pairs it cancels. The second line is the control.
    """
    random = np.random.default_rng(0)
    fold, site = np.arange(200) % 2, random.integers(0, 2, 200)
    outputs = random.normal(size=(200, 2))
    outputs[:, 0] += 1.5 * site * (2 * fold - 1)
    assert make_test(outputs, site, fold=fold).result().p == 0.01
    across = make_test(outputs, site, fold=fold, compare_folds=True).result()
    assert across.effect < 0.5 * make_test(outputs, site, fold=fold).result().effect


def test_equal_seeds_give_equal_results():
    """Kills a start vector of the eigenvalue solver that differs from run to run."""
    random = np.random.default_rng(0)
    outputs, site = random.normal(size=80), random.integers(0, 3, 80)
    assert make_test(outputs, site).result() == make_test(outputs, site).result()


def test_row_of_weight_zero_counts_for_nothing():
    """Kills weights that are left behind: the only row of a leak has weight 0."""
    random = np.random.default_rng(0)
    site, weight = random.integers(0, 2, 100), np.ones(100)
    outputs = random.normal(size=100)
    weight[:10] = 0
    one = make_test(outputs, site, weight=weight)
    site[:10] = 1 - site[:10]
    other = make_test(outputs, site, weight=weight)
    assert other.statistics[0, 0] == pytest.approx(one.statistics[0, 0], abs=1e-10)


def test_errors_state_what_to_write():
    rows = LeakRows.from_columns(5)
    with pytest.raises(ShapeError, match="`outputs` has 4, `rows` has 5"):
        leak(np.zeros(4), np.zeros(5), rows, categorical=True)
    with pytest.raises(ShapeError, match="`confound` has 4 rows"):
        leak(np.arange(5.0), np.zeros(4), rows, categorical=True)
    with pytest.raises(OptionError, match="`confound` holds values that are not numbers"):
        leak(np.arange(5.0), list("ababa"), rows, categorical=False)
    with pytest.raises(TableError, match="`outputs` is NaN or infinite in 1 of 5 rows"):
        leak([1, 2, np.nan, 4, 5], np.zeros(5), rows, categorical=True)
    with pytest.raises(ShapeError, match="`group` has 2"):
        LeakRows.from_columns(5, group=["a", "b"])
    with pytest.raises(TableError, match="`person` is missing in 1 of 2 rows"):
        LeakRows.from_columns(2, person=["a", None])
    with pytest.raises(OptionError, match="`weight` lies between -1 and 1"):
        LeakRows.from_columns(2, weight=[-1, 1])
    with pytest.raises(OptionError, match="`permutations` cannot be 5"):
        Resampling(permutations=5)


def test_group_with_constant_outputs_takes_no_part():
    """Kills an eigenvalue solver that starts on zeros: one class is perfectly predicted."""
    random = np.random.default_rng(0)
    group, site = np.repeat(["a", "b", "c"], 40), random.integers(0, 2, 120)
    outputs = np.where(group == "a", 7.0, random.normal(size=120))
    result = make_test(outputs, site, group=group).result()
    assert list(result.by_group) == ["b", "c"]
    assert 0 < result.p <= 1


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_tiny_tables_have_a_p_value_or_no_answer(n):
    """Kills more eigenvalues than rows."""
    result = make_test(np.arange(n) ** 2.0, np.arange(n), categorical=False).result()
    assert np.isnan(result.p) or 0.01 <= result.p <= 1
