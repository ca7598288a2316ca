"""The residualiser is least squares on the rows of `fit`, wherever the confounds stand."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import deconfound as dc
from deconfound.errors import DeconfoundError
from deconfound.sklearn import ConfoundResidualizer
from tests.helpers import CONFOUNDS, make_people
from tests.oracles import explained_share, residual

FEATURES = ["f0", "f1", "f2"]


def make_table(n=300, **options):
    """Return X with three features and five confounds, and the labels."""
    features, table = make_people(n, **options)
    X = pd.DataFrame(features.numpy(), columns=FEATURES)
    return X.join(table[list(CONFOUNDS)]), table["label"].to_numpy()


def by_hand(X, y=None):
    """Return the residual by the normal equations, with and without the label."""
    table = X.assign(label=0 if y is None else y)
    keep = () if y is None else ("label",)
    return residual(torch.tensor(X[FEATURES].to_numpy()), table, CONFOUNDS, keep)


@pytest.mark.parametrize("keep", [None, "y"])
def test_it_is_least_squares_with_and_without_the_label(keep):
    """Acceptance 43. Kills y that is read although nothing is kept, and y that is not."""
    X, y = make_table(sites=4)
    found = ConfoundResidualizer(CONFOUNDS, keep=keep).fit_transform(X, y)
    np.testing.assert_allclose(found, by_hand(X, y if keep else None), atol=1e-10)
    other = by_hand(X, None if keep else y)
    assert np.abs(found - other).max() > 0.1


def test_no_confound_is_left_in_any_feature_and_each_was_there_before():
    """Kills a removal that ignores the mean or the scale of a confound."""
    X, _ = make_table()
    left = ConfoundResidualizer(CONFOUNDS).fit_transform(X)
    for name in CONFOUNDS:
        assert explained_share(X[FEATURES].to_numpy(), X, [name]) > 0.02
        assert explained_share(left, X, [name]) < 1e-12


@pytest.mark.parametrize(
    "convert",
    [lambda t: t, lambda t: t.to_dict("list"), pl.from_pandas],
    ids=["pandas", "dict", "polars"],
)
def test_a_table_beside_x_gives_what_columns_of_x_give(convert):
    """Kills a table whose columns are taken for features."""
    X, y = make_table()
    expected = ConfoundResidualizer(CONFOUNDS, keep="y").fit_transform(X, y)
    beside = ConfoundResidualizer(keep="y")
    found = beside.fit_transform(X[FEATURES], y, confounds=convert(X[list(CONFOUNDS)]))
    np.testing.assert_allclose(found, expected, atol=1e-12)
    named = ConfoundResidualizer(CONFOUNDS, keep="y")
    table = convert(X[[*CONFOUNDS, "f0"]])  # f0 is not read
    found = named.fit_transform(X[FEATURES], y, confounds=table)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_polars_and_column_numbers_give_what_pandas_gives():
    """Fault 18. Kills columns that are found by name alone, and text that becomes numbers."""
    X, _ = make_table()
    expected = ConfoundResidualizer(CONFOUNDS).fit_transform(X)
    found = ConfoundResidualizer(CONFOUNDS).fit_transform(pl.from_pandas(X))
    np.testing.assert_allclose(found, expected, atol=1e-12)
    numbers = ConfoundResidualizer([3, 4, 5, 6, 7])
    for values in (X, X.to_numpy(dtype=object), X.set_axis(range(8), axis=1)):
        np.testing.assert_allclose(numbers.fit_transform(values), expected, atol=1e-12)
    names = numbers.fit(X.to_numpy(dtype=object)).get_feature_names_out()
    assert list(names) == ["x0", "x1", "x2"]


def test_types_and_terms_reach_the_design():
    """Kills types that are lost where columns have numbers, and terms of a table alone."""
    rng = np.random.default_rng(0)
    age, site = rng.uniform(20, 80, 400), rng.integers(0, 4, 400)
    curve = ((age - 50) / 10) ** 2 + np.array([0, 3, -2, 5])[site]
    X = np.column_stack([curve + rng.normal(size=400), age, site])
    with pytest.raises(DeconfoundError, match="amounts, or codes of levels"):
        ConfoundResidualizer([2]).fit(X)
    straight = ConfoundResidualizer([1, 2], types={2: "numeric"}).fit_transform(X)
    bent = ConfoundResidualizer([dc.Spline("x1"), 2], types={2: "categorical"})
    left = bent.fit_transform(X)
    assert bent.design_.levels == {"x2": ("0", "1", "2", "3")}
    assert straight.var() > 4
    assert left.var() == pytest.approx(1, abs=0.2)


def test_new_rows_take_the_beta_of_fit_and_are_treated_one_at_a_time():
    """Kills means of the new rows, and labels that `transform` needs."""
    X, y = make_table()
    new, _ = make_table(20, seed=1)
    residualizer = ConfoundResidualizer(CONFOUNDS, keep="y").fit(X, y)
    together = residualizer.transform(new)
    alone = np.concatenate([residualizer.transform(new.iloc[[row]]) for row in range(20)])
    np.testing.assert_allclose(alone, together, atol=1e-12)
    with_training = residualizer.transform(pd.concat([X, new]))
    np.testing.assert_allclose(with_training[-20:], together, atol=1e-12)


@pytest.mark.parametrize("convert", [lambda t: t, pl.from_pandas], ids=["pandas", "polars"])
def test_kept_columns_leave_x_and_may_be_absent_or_new_later(convert):
    """Kills kept columns that stay as features, or are read by `transform`."""
    X, y = make_table()
    expected = by_hand(X, y)
    labelled = X[["f0"]].assign(dx=y).join(X.drop(columns="f0"))  # a kept column in between
    residualizer = ConfoundResidualizer(CONFOUNDS, keep=["dx"]).fit(convert(labelled))
    for later in (X, labelled, labelled.assign(dx="unknown"), labelled.assign(dx=None)):
        np.testing.assert_allclose(residualizer.transform(convert(later)), expected, atol=1e-10)
    beside = ConfoundResidualizer(keep=["dx"])
    beside.fit(X[FEATURES], confounds=convert(labelled.drop(columns=FEATURES)))
    found = beside.transform(X[FEATURES], confounds=convert(X[list(CONFOUNDS)]))
    np.testing.assert_allclose(found, expected, atol=1e-10)


def test_output_has_the_names_of_the_features_and_their_precision():
    """Kills names of X that include the confounds."""
    X, _ = make_table(60)
    residualizer = ConfoundResidualizer(CONFOUNDS).set_output(transform="pandas").fit(X)
    out = residualizer.transform(X)
    assert list(out.columns) == list(residualizer.get_feature_names_out()) == FEATURES
    assert out.index.equals(X.index)
    assert list(residualizer.feature_names_in_) == [*FEATURES, *CONFOUNDS]
    assert residualizer.n_features_in_ == 8
    frame = ConfoundResidualizer(CONFOUNDS).set_output(transform="polars").fit_transform(X)
    assert frame.columns == FEATURES
    single = X[FEATURES].astype(np.float32)
    left = ConfoundResidualizer().fit_transform(single, confounds=X[list(CONFOUNDS)])
    assert left.dtype == np.float32


def test_weights_are_repeated_rows():
    """Kills weights that reach the regression or the design alone."""
    X, y = make_table(80)
    weight = np.random.default_rng(0).integers(0, 3, 80)
    repeated = np.repeat(np.arange(80), weight)
    weighted = ConfoundResidualizer(CONFOUNDS, keep="y").fit(X, y, sample_weight=weight)
    plain = ConfoundResidualizer(CONFOUNDS, keep="y").fit(X.iloc[repeated], y[repeated])
    np.testing.assert_allclose(weighted.transform(X), plain.transform(X), atol=1e-9)


def test_rows_of_two_frames_belong_together_by_index_or_are_refused():
    """Kills rows that are paired by order although both carry names."""
    X, y = make_table(90)
    features, table = X[FEATURES], X[list(CONFOUNDS)]
    residualizer = ConfoundResidualizer(keep="y").fit(features, y, confounds=table)
    expected = residualizer.transform(features, confounds=table)
    mixed = table.sample(frac=1, random_state=0)
    found = residualizer.transform(features, confounds=mixed)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    other = ConfoundResidualizer(keep="y").fit(features, y, confounds=mixed)
    np.testing.assert_allclose(other.transform(features, confounds=table), expected, atol=1e-9)
    by_order = residualizer.transform(features, confounds=mixed.to_dict("list"))
    assert np.abs(by_order - expected).max() > 0.1
    with pytest.raises(DeconfoundError, match="180 names are in one of them alone"):
        residualizer.transform(features, confounds=table.set_axis(range(90, 180)))
    with pytest.raises(DeconfoundError, match=r"names repeat\. Pass table\.loc"):
        residualizer.transform(features, confounds=table.iloc[[*range(90), 0]])


def test_unseen_levels_and_missing_cells_follow_the_option():
    """Kills NaN in the output. With "mean" nothing is removed on their account."""
    X, _ = make_table(100)
    new = X.head(2).assign(site=["site Z", "site A"], age=[70.5, np.nan])
    with pytest.raises(DeconfoundError, match=r"site Z(?s:.*)age|age(?s:.*)site Z"):
        ConfoundResidualizer(CONFOUNDS).fit(X).transform(new)
    lenient = ConfoundResidualizer(["site"], unseen="mean").fit(X[[*FEATURES, "site"]])
    out = lenient.transform(new[[*FEATURES, "site"]])
    np.testing.assert_allclose(out[0], new[FEATURES].iloc[0].astype(float), atol=1e-12)
    assert np.abs(out[1] - new[FEATURES].iloc[1]).min() > 0.01


def test_clones_and_pickles_give_the_same_and_the_state_is_plain():
    """Fault 18: skops saves no keys that are tuples. Kills objects in the fitted state."""
    X, y = make_table(sites=3)
    terms = [dc.Spline("age", df=3), "site", dc.Interaction("age", "site"), "volume"]
    residualizer = ConfoundResidualizer(terms, keep="y").fit(X.drop(columns=["dose", "sex"]), y)
    new = X.drop(columns=["dose", "sex"])
    expected = residualizer.transform(new)
    copy = pickle.loads(pickle.dumps(residualizer))
    np.testing.assert_allclose(copy.transform(new), expected, atol=1e-12)
    again = clone(residualizer).fit(new, y)
    np.testing.assert_allclose(again.transform(new), expected, atol=1e-12)
    learned = set(vars(residualizer)) - set(residualizer.get_params())
    for name in learned:
        value = getattr(residualizer, name)
        if name == "coefficients_":
            assert all(isinstance(key, str) for key in value)
        elif not isinstance(value, np.ndarray):
            json.dumps(value)


def test_coefficients_are_in_the_user_s_units():
    """Kills coefficients per sd. Each year of age costs a tenth."""
    X, _ = make_table()
    X["f0"] = 5 - 0.1 * X["age"]
    residualizer = ConfoundResidualizer(CONFOUNDS).fit(X)
    assert residualizer.coefficients_["age"][0] == pytest.approx(-0.1)
    assert [str(term) for term in residualizer.design_.confounds] == list(CONFOUNDS)


def test_what_cannot_be_done_is_refused_with_the_way_out():
    """Kills a step that silently removes nothing."""
    X, y = make_table(50)
    array, table = X[FEATURES].to_numpy(), X[list(CONFOUNDS)]
    inside = ConfoundResidualizer(CONFOUNDS).fit(X)
    beside = ConfoundResidualizer().fit(array, confounds=table)
    with pytest.raises(NotFittedError):
        clone(inside).transform(X)
    faults = [
        (lambda: ConfoundResidualizer().fit(array), "There are no confounds. Name columns of X"),
        (lambda: ConfoundResidualizer(["aeg"]).fit(X), "no column 'aeg'. Did you mean 'age'"),
        (lambda: ConfoundResidualizer(["age"]).fit(array), r"columns have numbers: write \[0\]"),
        (lambda: ConfoundResidualizer("age").fit(X), r"must be a list.*Write \['age'\]"),
        (lambda: ConfoundResidualizer(["age"], keep="dx").fit(X), r"keep must be a list"),
        (lambda: ConfoundResidualizer(5).fit(X), r"must be a list of columns; got 5. Write \[5\]"),
        (lambda: ConfoundResidualizer([True]).fit(X), "takes names and numbers of columns"),
        (lambda: ConfoundResidualizer([]).fit(X), "confounds must name at least one column"),
        (lambda: ConfoundResidualizer([3], keep=[3]).fit(X), "cannot be both removed and kept"),
        (lambda: ConfoundResidualizer([8]).fit(X), "number 8, and X has 8 columns"),
        (lambda: ConfoundResidualizer([-1]).fit(X), "Write a number from 0 to 7"),
        (lambda: ConfoundResidualizer([0]).fit(array, confounds=table), "Write the name of the"),
        (lambda: ConfoundResidualizer(["age"]).fit(X[["age"]]), r"X has 1 feature\(s\), all of"),
        (lambda: ConfoundResidualizer(["age"], keep="y").fit(X), "keep='y' needs the labels"),
        (lambda: inside.transform(X, confounds=table), "fit found them among the columns of X"),
        (lambda: beside.transform(array), "was given no confounds, and fit had a table of them"),
        (lambda: beside.transform(array[:9], confounds=table), "50 rows for 9 rows of X"),
        (lambda: ConfoundResidualizer().fit(X, confounds=table), "both have 'age', 'volume'"),
        (
            lambda: ConfoundResidualizer(keep="y").fit(array, y, confounds={"y": np.ones(50)}),
            "A confound has the name 'y'",
        ),
    ]
    for call, message in faults:
        with pytest.raises(DeconfoundError, match=message):
            call()


def test_skops_saves_and_loads_a_fitted_step(tmp_path):
    """Without pickles, and with categories. Kills state that holds objects of other kinds."""
    skops = pytest.importorskip("skops.io")
    rng = np.random.default_rng(0)
    x = pd.DataFrame({"volume": rng.normal(size=40), "site": rng.choice(["A", "B", "C"], 40)})
    step = ConfoundResidualizer(["site"]).fit(x)
    skops.dump(step, tmp_path / "step.skops")
    trusted = ["deconfound.sklearn.residualizer.ConfoundResidualizer"]
    assert skops.get_untrusted_types(file=tmp_path / "step.skops") == trusted
    loaded = skops.load(tmp_path / "step.skops", trusted=trusted)
    np.testing.assert_array_equal(loaded.transform(x), step.transform(x))
