"""Correlations against scipy, and the paper's rules against a direct computation."""

import numpy as np
import pytest
import torch

from deconfound import metrics
from deconfound.errors import OptionError, ShapeError, TableError
from deconfound.metrics.columns import cells_of, looks_like_codes, tercile_codes

stats = pytest.importorskip("scipy.stats", reason="scipy, the oracle of these tests, is not installed")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_pearson_and_point_biserial_agree_with_scipy(rng):
    x, age = rng.normal(size=(80, 2)), 60 + 10 * rng.normal(size=80)
    sex = rng.integers(0, 2, 80)
    for column in range(2):
        expected = stats.pearsonr(x[:, column], age).statistic
        assert float(metrics.pearson(x, age)[column]) == pytest.approx(expected, abs=1e-12)
        expected = stats.pointbiserialr(sex, x[:, column]).statistic
        assert float(metrics.point_biserial(x, sex)[column]) == pytest.approx(expected, abs=1e-12)


def test_correlation_ratio_is_the_share_that_the_f_test_sees(rng):
    site = rng.integers(0, 4, 120)
    x = rng.normal(size=120) + site
    f = stats.f_oneway(*(x[site == level] for level in range(4))).statistic
    eta_sqr = f * 3 / (f * 3 + 116)
    assert float(metrics.correlation_ratio(x, site)) ** 2 == pytest.approx(eta_sqr, abs=1e-12)


def test_cramers_v_agrees_with_scipy(rng):
    site, sex = rng.integers(0, 4, 200), rng.integers(0, 2, 200)
    sex[site == 0] = 0
    table = np.array([[np.sum((site == i) & (sex == j)) for j in range(2)] for i in range(4)])
    expected = stats.contingency.association(table, method="cramer")
    assert float(metrics.cramers_v(site, sex)) == pytest.approx(expected, abs=1e-12)
    assert float(metrics.cramers_v(site, np.zeros(200))) == 0


@pytest.mark.parametrize(
    ("first", "second", "statistic"),
    [
        ("age", "iq", "abs_pearson"),
        ("age", "sex", "abs_point_biserial"),
        ("sex", "age", "abs_point_biserial"),
        ("age", "site", "correlation_ratio"),
        ("site", "sex", "cramers_v"),
    ],
)
def test_the_measure_is_chosen_from_the_types(rng, first, second, statistic):
    table = {
        "age": rng.normal(size=60),
        "iq": rng.normal(size=60),
        "sex": np.array(["F", "M"])[rng.integers(0, 2, 60)],
        "site": np.array(["a", "b", "c"])[rng.integers(0, 3, 60)],
    }
    found = metrics.association(*(metrics.column(name, table[name]) for name in (first, second)))
    assert found.statistic == statistic
    assert 0 <= found.value <= 1


def test_association_uses_the_rows_where_both_have_a_value():
    first = metrics.column("a", [1.0, 2.0, 3.0, np.nan, 9.0])
    second = metrics.column("b", [2.0, 4.0, 6.0, 1.0, None])
    assert metrics.association(first, second).value == pytest.approx(1)


@pytest.mark.parametrize("folds", [None, np.repeat([0, 1, 2], 40)])
def test_the_papers_rules_average_over_logits_within_folds_and_then_over_folds(rng, folds):
    logits = rng.normal(size=(120, 2))
    age, sex = logits[:, 0] + rng.normal(size=120), (logits[:, 1] + rng.normal(size=120) > 0).astype(int)
    site = np.array(["a", "b", "c"])[rng.integers(0, 3, 120)]
    parts = [np.arange(120)] if folds is None else [np.flatnonzero(folds == fold) for fold in range(3)]

    def mean(measure):
        return np.mean([np.mean([measure(logits[rows, k], rows) for k in range(2)]) for rows in parts])

    one_hot = (site[:, None] == ["a", "b", "c"]).astype(float)
    expected = {
        "abs_pearson": (age, lambda x, rows: abs(stats.pearsonr(x, age[rows]).statistic)),
        "abs_point_biserial": (sex, lambda x, rows: abs(stats.pointbiserialr(sex[rows], x).statistic)),
        "dcor_sqr": (site, lambda x, rows: float(metrics.u_distance_correlation_sqr(x, one_hot[rows]))),
    }
    for statistic, (values, measure) in expected.items():
        found = metrics.paper_association(logits, metrics.column("confound", values), folds)
        assert found.statistic == statistic
        assert found.value == pytest.approx(mean(measure), abs=1e-12)


def test_columns_know_their_type_levels_and_gaps():
    sex = metrics.column("sex", np.array(["M", "F", "n/a", "M"], dtype=object))
    assert (sex.kind, sex.levels, sex.present.tolist()) == ("binary", ("F", "M"), [True, True, False, True])
    site = metrics.column("site", [3, 1, 2, 1], kind="categorical")
    assert (site.kind, site.levels, site.encoded.sum(0).tolist()) == (
        "categorical",
        ("1", "2", "3"),
        [2, 1, 1],
    )
    assert metrics.column("dx", [0, 1, 2, 1], codes_to=10).kind == "categorical"
    assert metrics.column("age", ["60", "71.5"], kind="numeric").values.tolist() == [60, 71.5]
    assert (looks_like_codes([1, 2, 3, 2]), looks_like_codes([1.5, 2, 3]), looks_like_codes([0, 1])) == (
        3,
        0,
        0,
    )


def test_columns_that_cannot_be_read_say_so():
    with pytest.raises(TableError, match="'age' must hold at least one value; got 2 empty cells"):
        metrics.column("age", [None, float("nan")])
    with pytest.raises(OptionError, match=r"types\['age'\] must be 'numeric' or 'categorical'; got 'number'"):
        metrics.column("age", [1, 2], kind="number")
    with pytest.raises(ShapeError, match="two distinct values; got 3"):
        metrics.point_biserial(np.zeros(3), np.arange(3))


def test_cells_are_the_combinations_that_occur_and_terciles_hold_a_third_each():
    hiv, mci = (
        metrics.column("hiv", [0, 0, 1, 1, None]),
        metrics.column("mci", ["no", "yes", "no", "no", "no"]),
    )
    codes, names = cells_of([hiv, mci])
    assert codes.tolist() == [0, 1, 2, 2, -1]
    assert names == ("hiv 0 · mci no", "hiv 0 · mci yes", "hiv 1 · mci no")
    codes, names = tercile_codes(np.arange(90.0))
    assert torch.bincount(codes).tolist() == [30, 30, 30]
    assert names[0] == "0 to 29.67"
