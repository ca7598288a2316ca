"""Correlations against scipy, and the paper's averages."""

import numpy as np
import pytest
from scipy import stats

from deconfound.errors import OptionError, ShapeError, TableError
from deconfound.metrics import (
    correlation_ratio,
    cramers_v,
    paper_association,
    pearson,
    point_biserial,
)
from tests.metrics.oracles import distance_correlation

RANDOM = np.random.default_rng(0)
N = 60
NUMBERS = RANDOM.normal(size=N)
SITE = RANDOM.choice(["Lund", "Oslo", "Rome"], N)
SEX = RANDOM.choice(["f", "m"], N)
LOGITS = RANDOM.normal(size=(N, 2)) + NUMBERS[:, None] * [1.0, -0.5] + (SEX == "m")[:, None]
FOLD = np.arange(N) % 3


def test_pearson_is_that_of_scipy_also_far_from_zero():
    """Kills moments that are not centred."""
    expected = stats.pearsonr(NUMBERS, LOGITS[:, 0]).statistic
    assert pearson(NUMBERS, LOGITS[:, 0]) == pytest.approx(expected, abs=1e-12)
    assert pearson(1e9 + NUMBERS, 1e200 * LOGITS[:, 0]) == pytest.approx(expected, abs=1e-6)
    assert pearson(NUMBERS, np.full(N, 0.1)) == 0.0


def test_point_biserial_is_that_of_scipy():
    """Kills the opposite sign: the second level in sorted order is the high one."""
    expected = stats.pointbiserialr(SEX == "m", LOGITS[:, 0]).statistic
    assert point_biserial(LOGITS[:, 0], SEX) == pytest.approx(expected, abs=1e-12)
    with pytest.raises(ShapeError, match="has 3 levels"):
        point_biserial(NUMBERS, SITE)


def test_correlation_ratio_squared_follows_from_scipys_f():
    """Kills η² under the name of η."""
    f = stats.f_oneway(*(NUMBERS[site == SITE] for site in np.unique(SITE))).statistic
    expected = 2 * f / (2 * f + N - 3)
    assert correlation_ratio(NUMBERS, SITE) ** 2 == pytest.approx(expected, abs=1e-12)


def test_cramers_v_is_that_of_scipy():
    """Kills a mutant with the larger number of levels."""
    table = stats.contingency.crosstab(SITE, SEX).count
    expected = stats.contingency.association(table, method="cramer")
    assert cramers_v(SITE, SEX) == pytest.approx(expected, abs=1e-12)
    assert cramers_v(SITE, np.zeros(N)) == 0.0


@pytest.mark.parametrize("confound", ["numbers", "sex", "site"])
def test_paper_averages_over_columns_within_folds(confound):
    """Kills pooling over folds, signed averages, and dcor² where the paper has |r|."""
    means = []
    for fold in range(3):
        rows = fold == FOLD
        for column in LOGITS[rows].T:
            if confound == "site":
                one_hot = (SITE[rows, None] == np.unique(SITE)).astype(float)
                means.append(distance_correlation(column, one_hot, True))
            else:
                other = NUMBERS[rows] if confound == "numbers" else SEX[rows] == "m"
                means.append(abs(stats.pearsonr(column, other).statistic))
    values = {"numbers": NUMBERS, "sex": SEX, "site": SITE}[confound]
    result = paper_association(LOGITS, values, FOLD, categorical=confound != "numbers")
    assert result == pytest.approx(np.mean(means), abs=1e-12)


def test_errors_state_what_to_write():
    with pytest.raises(ShapeError, match="`x` has 60, `y` has 3"):
        pearson(NUMBERS, [1, 2, 3])
    with pytest.raises(OptionError, match="`y` holds values that are not numbers"):
        pearson(NUMBERS, SITE)
    with pytest.raises(TableError, match="`second` is missing in 1 of 3 rows"):
        cramers_v([1, 2, 3], ["a", None, "b"])
    with pytest.raises(ShapeError, match="`x` has 2 columns"):
        pearson(LOGITS, NUMBERS)
