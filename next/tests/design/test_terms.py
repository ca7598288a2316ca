"""Splines are scipy's, interactions are products, and every wrong term is an error that helps."""

import numpy as np
import pytest
from scipy.interpolate import CubicSpline

from deconfound import Design, Interaction, Spline
from deconfound.errors import OptionError, TableError


def column_space(columns):
    """An orthonormal basis of the columns and the constant."""
    return np.linalg.qr(np.column_stack([np.ones(len(columns)), columns]))[0]


@pytest.mark.parametrize("df", [2, 3, 4, 6])
def test_spline_spans_the_natural_cubic_splines_of_scipy(df):
    """Kills a wrong factor in the curves. The knots are the quantiles of the training rows."""
    age = np.sort(np.random.default_rng(0).normal(60, 9, 500))
    design = Design([Spline("age", df=df)]).fit({"age": age})
    knots = np.quantile(age, np.linspace(0.05, 0.95, df + 1), method="inverted_cdf")
    inside = np.linspace(knots[0], knots[-1], 200)
    ours = column_space(design.encode({"age": inside}, dtype=np.float64))
    cardinal = CubicSpline(knots, np.eye(df + 1), bc_type="natural")(inside)
    assert ours.shape[1] == df + 1
    np.testing.assert_allclose(ours @ (ours.T @ cardinal), cardinal, atol=1e-9)
    other = CubicSpline(knots, np.eye(df + 1), bc_type="not-a-knot")(inside)
    assert np.abs(ours @ (ours.T @ other) - other).max() > 1e-3  # control: another spline


def test_spline_is_straight_beyond_the_outer_knots():
    """It continues with the slope at the knot. Kills an extrapolation by cubes."""
    age = np.random.default_rng(0).normal(60, 9, 500)
    design = Design([Spline("age", df=5)]).fit({"age": age})
    for start, step in ((age.max(), 1.0), (age.min(), -1.0)):
        grid = start + step * np.array([0.0, 1.0, 2.0, 1e3, 2e3, 1e6])
        columns = design.encode({"age": grid}, dtype=np.float64)
        slopes = np.diff(columns, axis=0) / np.diff(grid)[:, None]
        np.testing.assert_allclose(slopes, np.broadcast_to(slopes[0], slopes.shape), atol=1e-9)
    last = np.quantile(age, 0.95, method="inverted_cdf")
    before, after = (design.encode({"age": last + h}, dtype=float) for h in ([-1e-6, 0], [0, 1e-6]))
    np.testing.assert_allclose(np.diff(before, axis=0), np.diff(after, axis=0), atol=1e-11)


def test_spline_knots_are_weighted_quantiles():
    """Rows of weight 0 do not attract knots (fault 5): the oracle repeats rows."""
    age = np.r_[np.linspace(50, 70, 200), np.linspace(90, 95, 200)] + 0.25
    weight = np.r_[np.ones(200), np.zeros(200)]
    weighted = Design([Spline("age", df=5)]).fit({"age": age}, weight)
    assert weighted.confound_directions == 5
    alone = Design([Spline("age", df=5)]).fit({"age": age[:200]})
    np.testing.assert_allclose(weighted.encode({"age": age}), alone.encode({"age": age}), rtol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_spline_knots_of_repeated_rows(seed):
    """A weight of 2 is the row twice, also where a knot falls between rows.

    Kills weights that are divided by their largest, which rounds their sums.
    """
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 9, 200)
    weight = rng.integers(1, 4, 200)
    weight[0] += -weight.sum() % 20
    weighted = Design([Spline("age")]).fit({"age": age}, weight)
    twice = Design([Spline("age")]).fit({"age": np.repeat(age, weight)})
    np.testing.assert_allclose(weighted.encode({"age": age}), twice.encode({"age": age}), rtol=1e-5)


def test_interaction_without_a_complete_row_is_refused():
    table = {"a": [1.5, 2.5, None, None], "b": [None, None, 1.5, 3.5]}
    with pytest.raises(TableError, match="No row has a value in each column of a:b"):
        Design(["a", "b", Interaction("a", "b")], unseen="mean").fit(table)


def test_spline_with_many_equal_values():
    """Half of the ages are 60, so quantiles coincide; the knots then come from distinct values."""
    age = np.r_[np.full(50, 60.0), np.linspace(40.5, 79.5, 50)]
    assert Design([Spline("age", df=4)]).fit({"age": age}).confound_directions == 4


def test_spline_takes_whole_numbers_and_few_values_are_refused():
    """A spline decides that its column is numeric; 3 values are too few for 5 knots."""
    assert (
        Design([Spline("stage", df=3)]).fit({"stage": [1, 2, 3, 4, 5, 6] * 5}).names[0] == "stage"
    )
    with pytest.raises(TableError, match=r"at least 5 distinct values; .* has 3"):
        Design([Spline("stage")]).fit({"stage": [1, 2, 3] * 5})


def test_interaction_is_the_product_of_its_factors():
    """With its main effects it spans one slope per level. Kills a product of wrong columns."""
    rng = np.random.default_rng(1)
    n = 300
    age, sex = rng.normal(60, 9, n), rng.choice(["F", "M"], n)
    site = rng.choice(["A", "B", "C"], n)
    table = {"age": age, "sex": sex, "site": site}
    design = Design(["age", "sex", "site", Interaction("age", "sex"), Interaction("sex", "site")])
    design.fit(table)
    assert design.names[4:] == ("age:sex[M]", "sex[M]:site[B]", "sex[M]:site[C]")
    ours = column_space(design.encode(table, dtype=np.float64))
    assert ours.shape[1] == 1 + 7
    cells = [(sex == s) & (site == a) for s in "FM" for a in "ABC"]
    oracle = np.column_stack([*cells, age * (sex == "F"), age * (sex == "M")]).astype(float)
    np.testing.assert_allclose(ours @ (ours.T @ oracle), oracle, atol=1e-9 * np.abs(oracle).max())
    three_slopes = age * (site == "B")
    assert np.abs(ours @ (ours.T @ three_slopes) - three_slopes).max() > 1.0  # control


def test_interaction_of_a_spline():
    """A curve per level, as separate splines of the rows of each level would have."""
    rng = np.random.default_rng(2)
    table = {"age": rng.normal(60, 9, 300), "sex": rng.choice(["F", "M"], 300)}
    spline = Spline("age", df=3)
    design = Design([spline, "sex", Interaction("sex", spline)]).fit(table)
    assert design.names[-3:] == ("sex[M]:age", "sex[M]:spline(age)[2]", "sex[M]:spline(age)[3]")
    ours = column_space(design.encode(table, dtype=np.float64))
    curves = Design([spline]).fit(table).encode(table, dtype=np.float64)
    oracle = np.column_stack([curves * (table["sex"] == "F")[:, None], table["sex"] == "M"])
    np.testing.assert_allclose(ours @ (ours.T @ oracle), oracle, atol=1e-9)


def test_interaction_unit_is_the_product_of_units():
    """`beta / unit` of age:sex[M] is the difference between the slopes of men and women."""
    rng = np.random.default_rng(3)
    age, sex = rng.normal(60, 9, 200), rng.choice(["F", "M"], 200)
    design = Design(["age", "sex", Interaction("age", "sex")]).fit({"age": age, "sex": sex})
    outcome = 0.1 * age + 0.5 * age * (sex == "M")
    metadata = design.encode({"age": age, "sex": sex}, dtype=np.float64)
    beta = np.linalg.lstsq(np.column_stack([metadata, np.ones(200)]), outcome, rcond=None)[0]
    assert beta[2] / design.columns[2].unit == pytest.approx(0.5, abs=1e-9)


def test_interaction_with_keep():
    """The effect of the diagnosis may depend on age and is kept; at inference it is NaN."""
    rng = np.random.default_rng(4)
    table = {"age": rng.normal(60, 9, 50), "dx": rng.choice(["AD", "CN"], 50)}
    design = Design(["age"], keep=["dx", Interaction("age", "dx")]).fit(table)
    assert [column.role for column in design.columns] == ["confound", "keep", "keep"]
    encoded = design.encode({"age": table["age"]})
    assert np.isfinite(encoded[:, 0]).all()
    assert np.isnan(encoded[:, 1:]).all()


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: Design("age"), r"confounds must be a list of columns; got 'age'. .*=\['age'\]"),
        (lambda: Design(["age"], keep="dx"), r"keep must be a list .*keep=\['dx'\]"),
        (lambda: Design(None), "confounds must be a list of columns; got NoneType"),
        (lambda: Design([]), "confounds must name at least one column"),
        (lambda: Design([3]), "column names, Spline and Interaction; got 3"),
        (lambda: Design(["age", "dx"], keep=["dx"]), "got 'dx' in confounds and in keep"),
        (lambda: Design([Spline("age")], keep=["age"]), "got 'age' in confounds and in keep"),
        (lambda: Design(["age", "age"]), "each column once; got 'age' twice"),
        (lambda: Design(["age", Spline("age")]), r"got 'age' twice. Spline\('age'\) includes"),
        (lambda: Design(["age"], unseen="zero"), "'error' or 'mean'; got 'zero'"),
        (lambda: Design(["age"], types={"age": "int"}), "'numeric' or 'categorical'; got 'int'"),
        (lambda: Design([Spline("age")], types={"age": "categorical"}), "spline needs a numeric"),
        (lambda: Spline("age", df=1), "at least 2; got 1. Write 'age'"),
        (lambda: Spline(["age"]), r"name of a column; got \['age'\]"),
        (lambda: Interaction("age"), r"two or more .*Interaction\('age', 'sex'\)"),
        (lambda: Interaction("age", 3), "two or more"),
    ],
)
def test_wrong_terms_are_refused_with_what_to_write(build, text):
    with pytest.raises(OptionError, match=text):
        build()


def test_all_wrong_options_are_reported_together():
    with pytest.raises(OptionError) as caught:
        Design("age", keep=["dx", "dx"], unseen="zero")
    assert len(str(caught.value).splitlines()) == 3


def test_terms_are_named_as_the_user_wrote_them():
    design = Design(["age", Spline("bmi", df=3), Interaction("age", "sex")])
    assert list(map(str, design.confounds)) == ["age", "spline(bmi)", "age:sex"]
