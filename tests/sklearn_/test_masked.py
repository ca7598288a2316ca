"""Masked cells hold nothing: those of a confound follow `missing`, those of X, y and the weights are refused."""

import numpy as np
import pytest

import deconfound as dc
from deconfound.sklearn import ConfoundResidualizer, DeconfoundedClassifier, DeconfoundedRegressor

FAST = {"epochs": 2, "hidden": (4,), "random_state": 0}
NETWORKS = [DeconfoundedClassifier, DeconfoundedRegressor]


def cohort(n=60):
    """Features that rise with age, labels, and age with a code for "unknown" in the first ten rows."""
    rng = np.random.default_rng(0)
    age = rng.normal(60, 8, n)
    X = rng.normal(size=(n, 2)) + age[:, None] * 0.1
    age[:10] = -999.0
    return X, np.arange(n) % 2, age


def forms(age):
    """The same ages as a column and as arrays with one and two axes, masked, each with its copy that has NaN."""
    masked, empty = np.ma.masked_equal(age, -999.0), np.where(age == -999.0, np.nan, age)
    return [({"age": masked}, {"age": empty}), (masked, empty), (masked[:, None], empty[:, None])]


def test_masked_confounds_are_missing_for_the_residualizer():
    X, _, age = cohort()
    for masked, empty in forms(age):
        with pytest.raises(
            dc.errors.TableError, match=r"must have a value in every row; got a missing value in 10 rows"
        ):
            ConfoundResidualizer().fit(X, confounds=masked)
        expected = ConfoundResidualizer(missing="mean").fit_transform(X, confounds=empty)
        found = ConfoundResidualizer(missing="mean").fit_transform(X, confounds=masked)
        np.testing.assert_array_equal(found, expected)
    unmasked = np.ma.masked_array(np.arange(60.0))
    plain = ConfoundResidualizer().fit_transform(X, confounds={"age": unmasked.data})
    np.testing.assert_array_equal(ConfoundResidualizer().fit_transform(X, confounds={"age": unmasked}), plain)


@pytest.mark.parametrize("kind", NETWORKS)
def test_masked_confounds_are_missing_for_the_networks(kind):
    X, dx, age = cohort()
    for masked, empty in forms(age):
        with pytest.raises(
            dc.errors.TableError, match=r"must have a value in every row; got a missing value in 10 rows"
        ):
            kind(**FAST).fit(X, dx, confounds=masked)
        expected, found = (kind(missing="mean", **FAST).fit(X, dx, confounds=table) for table in (empty, masked))
        np.testing.assert_array_equal(found.predict(X, confounds=masked), expected.predict(X, confounds=empty))


def test_masked_names_are_missing_too():
    X, dx, _ = cohort()
    site = np.where(dx == 1, "B", "A")
    site[:3] = "?"
    masked = {"site": np.ma.masked_equal(site, "?")}
    found = ConfoundResidualizer(missing="mean").fit(X, confounds=masked)
    assert list(found.coefficients_) == ["site[B]"]


@pytest.mark.parametrize("make", [lambda: ConfoundResidualizer(keep="y"), *(lambda k=k: k(**FAST) for k in NETWORKS)])
def test_masked_cells_of_x_y_and_weights_are_refused(make):
    X, dx, _ = cohort()
    table = {"age": np.arange(60.0)}
    row = np.arange(60) == 3
    masked_x = np.ma.masked_array(X, mask=np.column_stack([row, row]))
    masked_y, masked_weight = np.ma.masked_array(dx, mask=row), np.ma.masked_array(np.ones(60), mask=row)
    fitted = make().fit(X, dx, confounds=table)
    ask = fitted.transform if hasattr(fitted, "transform") else fitted.predict
    faults = [
        ("X", lambda: make().fit(masked_x, dx, confounds=table)),
        ("X", lambda: ask(masked_x, confounds=table)),
        ("y", lambda: make().fit(X, masked_y, confounds=table)),
        ("sample_weight", lambda: make().fit(X, dx, confounds=table, sample_weight=masked_weight)),
    ]
    if hasattr(fitted, "score"):
        faults += [
            ("y", lambda: fitted.score(X, masked_y, confounds=table)),
            ("sample_weight", lambda: fitted.score(X, dx, sample_weight=masked_weight, confounds=table)),
        ]
    for name, call in faults:
        words = f"^{name} must have a value in every cell; got masked ones in row 3. Leave these rows out.$"
        with pytest.raises(dc.errors.ShapeError, match=words):
            call()
    everything = [np.ma.masked_array(values) for values in (X, dx)]  # nothing is masked
    again = make().fit(*everything, confounds=table, sample_weight=np.ma.masked_array(np.ones(60)))
    ask_again = again.transform if hasattr(again, "transform") else again.predict
    assert ask_again(everything[0], confounds=table).shape == ask(X, confounds=table).shape


def test_a_masked_y_that_is_not_read_is_no_fault():
    X, dx, _ = cohort()
    table = {"age": np.arange(60.0)}
    expected = ConfoundResidualizer().fit_transform(X, confounds=table)
    found = ConfoundResidualizer().fit_transform(X, np.ma.masked_equal(dx, 1), confounds=table)
    np.testing.assert_array_equal(found, expected)
