"""What is no number is no measurement: every public measure refuses it, and far rows do not drown the others."""

import numpy as np
import pytest
import torch

from deconfound import metrics
from deconfound.errors import DeconfoundError, ShapeError

X, Y, CODES = np.arange(12.0), np.arange(12.0) % 5, np.arange(12) % 2
FEW = metrics.Resampling(permutations=19, bootstraps=40)
MEASURES = {
    "distance_correlation_sqr": lambda x, y: metrics.distance_correlation_sqr(x, y),
    "distance_covariance_sqr": lambda x, y: metrics.distance_covariance_sqr(x, y),
    "u_distance_correlation_sqr": lambda x, y: metrics.u_distance_correlation_sqr(x, y),
    "u_distance_covariance_sqr": lambda x, y: metrics.u_distance_covariance_sqr(x, y),
    "within_group_dcor_sqr": lambda x, y: metrics.within_group_dcor_sqr(x, y, CODES),
    "partial_distance_correlation": lambda x, y: metrics.partial_distance_correlation(x, y, CODES),
    "residual_dcor_sqr": lambda x, y: metrics.residual_dcor_sqr(x, y, X),
    "pearson": lambda x, y: metrics.pearson(x, y),
    "point_biserial": lambda x, y: metrics.point_biserial(x, CODES) + metrics.pearson(y, CODES),
    "correlation_ratio": lambda x, y: metrics.correlation_ratio(x, CODES) + metrics.correlation_ratio(y, CODES),
    "cramers_v": lambda x, y: metrics.cramers_v(x, y),
    "paper_association": lambda x, y: metrics.paper_association(np.stack([x, y], 1), metrics.column("c", X)),
    "partial_confounder_test": lambda x, y: metrics.partial_confounder_test(
        np.stack([x, y], 1), metrics.column("c", X), [metrics.column("d", CODES)], FEW
    ),
    "r_squared": lambda x, y: metrics.r_squared(x, y),
    "auc": lambda x, y: metrics.auc(x, CODES) + metrics.auc(y, CODES),
    "delong_difference": lambda x, y: metrics.delong_difference(x, y, CODES),
}


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_no_measure_takes_what_is_not_a_number(name, bad):
    MEASURES[name](X, Y)
    for side in (0, 1):
        given = [X.copy(), Y.copy()]
        given[side][7] = bad
        with pytest.raises(ShapeError, match="must be finite; got NaN or infinity in row 7"):
            MEASURES[name](*given)


@pytest.mark.parametrize("given", [np.array(["a"] * 12), X.astype("datetime64[D]"), X + 1j])
def test_what_holds_no_real_numbers_is_refused_in_our_words(given):
    with pytest.raises(DeconfoundError, match=r"must hold (real )?numbers; got"):
        metrics.u_distance_correlation_sqr(given, X)


def test_masked_rows_are_refused_and_other_orders_of_bytes_are_the_same_numbers():
    masked = np.ma.masked_array(X, X == 3)
    for refused in (masked, np.full(12, None), [[1.0], [1.0, 2.0]]):
        with pytest.raises(ShapeError, match="x must"):
            metrics.pearson(refused, Y)
    frozen = X.copy()
    frozen.flags.writeable = False
    for same in (X.astype(">f8"), X[::-1].copy()[::-1], frozen, np.ma.masked_array(X, False), X.tolist()):
        assert float(metrics.pearson(same, Y)) == float(metrics.pearson(X, Y))
    with pytest.raises(ShapeError, match="units must hold one value per row; got"):
        metrics.partial_confounder_test(X, metrics.column("c", Y), [metrics.column("d", CODES)], FEW, np.arange(3))


def test_levels_keep_their_names_whatever_gaps_a_column_has():
    codes = metrics.column("site", [1234567.0, 1234568.0, None, 1234567.0, 7.0], "categorical")
    assert codes.levels == ("7", "1234567", "1234568")
    assert metrics.column("site", ["1", 1, 2, "a"]).levels == ("1", "2", "a")
    assert metrics.column("age", np.ma.masked_array([1.0, 2.0, 4.0], [0, 1, 0])).present.tolist() == [True, False, True]


@pytest.mark.parametrize("size", [1e200, 1e-200])
def test_tests_have_no_unit(size):
    rng = np.random.default_rng(0)
    x, confound, dx = rng.normal(size=(40, 1)), metrics.column("c", rng.normal(size=40)), rng.integers(0, 2, 40)
    label = metrics.column("dx", dx)
    for test in (
        lambda x: metrics.dcor_test(x, confound.encoded, dx, None, FEW),
        lambda x: metrics.partial_confounder_test(x, confound, [label], FEW),
        lambda x: metrics.probe(x, confound, resampling=FEW),
        lambda x: metrics.residual_dcor_test(x, confound.encoded, [metrics.column("n", np.arange(40.0))], None, FEW),
    ):
        plain, scaled = test(x), test(size * x)
        assert (scaled.value, scaled.p) == (pytest.approx(plain.value, abs=1e-9), plain.p)
    with pytest.raises(ShapeError, match="small enough that their products are numbers"):
        metrics.distance_covariance_sqr(1e200 * x, 1e200 * x)


@pytest.mark.parametrize("columns", [1, 3, 40])
def test_a_far_row_does_not_drown_the_distances_of_the_others_in_float32(columns):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, columns)).astype(np.float32)
    y = (x[:, 0] + rng.normal(size=200)).astype(np.float32)
    x[0] = 1e6
    exact = float(metrics.u_distance_correlation_sqr(x.astype(np.float64), y.astype(np.float64)))
    assert float(metrics.u_distance_correlation_sqr(x, y)) == pytest.approx(exact, abs=1e-6)
    u_centred = _reference(x.astype(np.float64), y.astype(np.float64))
    assert exact == pytest.approx(u_centred, abs=1e-5)


def _reference(x, y):
    def centred(values):
        a = np.sqrt(((values[:, None] - values[None]) ** 2).sum(-1))
        n, rows = len(a), a.sum(1)
        out = a - rows[:, None] / (n - 2) - rows / (n - 2) + rows.sum() / ((n - 1) * (n - 2))
        np.fill_diagonal(out, 0)
        return out

    a, b = centred(x), centred(y[:, None])
    return (a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum())


def test_values_of_any_size_have_a_correlation():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 60))
    for measure in (metrics.u_distance_correlation_sqr, metrics.pearson):
        plain = float(measure(x, y))
        for scale in (1e200, 1e-200):
            assert float(measure(scale * x, y)) == pytest.approx(plain, abs=1e-9)


def test_delong_is_the_variance_of_the_difference_over_people():
    rng = np.random.default_rng(0)
    errors, differences = [], []
    for _ in range(150):
        positive = np.arange(120) % 2
        shared = positive + rng.normal(size=120)
        first, second = shared + 0.5 * rng.normal(size=120), shared + rng.normal(size=120)
        found = metrics.delong_difference(first, second, positive)
        expected = metrics.auc(first, positive) - metrics.auc(second, positive)
        assert found.value == pytest.approx(float(expected))
        errors.append(found.error)
        differences.append(found.value)
    assert np.mean(errors) == pytest.approx(np.std(differences), rel=0.2)
    assert found.detectable == pytest.approx(2.8016 * found.error)
    assert metrics.delong_difference(first, first, positive).p == 1
    folds = np.arange(120) // 60
    each = [metrics.delong_difference(first[folds == k], second[folds == k], positive[folds == k]) for k in (0, 1)]
    both = metrics.delong_difference(first, second, positive, folds)
    assert both.value == pytest.approx(np.mean([item.value for item in each]))
    assert both.error == pytest.approx(np.hypot(*[item.error for item in each]) / 2)


def test_a_paired_bootstrap_gives_the_spread_of_its_replicates():
    found = metrics.bootstrap_difference(0.1, torch.linspace(0, 0.2, 101))
    assert found.error == pytest.approx(float(torch.linspace(0, 0.2, 101).double().std()))
    assert found.low < 0.1 < found.high
    assert np.isnan(metrics.bootstrap_difference(0.1, torch.full((3,), torch.nan)).p)
