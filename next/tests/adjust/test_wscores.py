"""W-scores take location and scale of the controls out of scores, and nothing of the label."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import deconfound as dc
from deconfound.adjust import ControlNorms, WScores
from deconfound.errors import ShapeError, StateError, TableError

CONFOUNDS = ["age", "site"]


def make_scores(n, seed):
    """Return scores, table and cases. Cases score 2 sd more than controls like them.

    Scores rise with age, and differ more among the old and at site B.
    """
    rng = np.random.default_rng(seed)
    age, site = rng.uniform(50, 90, n), rng.choice(["A", "B"], n)
    is_case = rng.random(n) < 0.4
    scale = 0.5 + 0.05 * (age - 50) + 1.0 * (site == "B")
    noise = scale * (rng.normal(size=n) + 2.0 * is_case)
    table = pd.DataFrame({"age": age, "site": site})
    return 3.0 + 0.2 * age + 4.0 * (site == "B") + noise, table, is_case


def fit(n=400, seed=0):
    scores, table, is_case = make_scores(n, seed)
    return WScores.from_controls(scores[~is_case], table[~is_case], CONFOUNDS)


def encode(norms, table):
    return norms.design.encode(table, dtype=np.float64)


def test_new_controls_have_mean_zero_and_sd_one_at_every_age_and_site():
    """Kills a scale that does not depend on the confounds. The scores depended on age (control)."""
    norms = fit(4000)
    scores, table, is_case = make_scores(8000, 1)
    w = norms.transform(scores, encode(norms, table))
    age, site = table["age"].to_numpy(), table["site"].to_numpy()
    groups = (age < 60, age > 80, site == "A", site == "B")
    for rows in groups:
        assert abs(w[rows & ~is_case].mean()) < 0.1
        assert w[rows & ~is_case].std() == pytest.approx(1.0, abs=0.12)
        assert w[rows & is_case].mean() == pytest.approx(2.0, abs=0.25)
    raw = (scores - scores.mean()) / scores.std()
    assert raw[groups[1] & ~is_case].mean() - raw[groups[0] & ~is_case].mean() > 0.5


def test_location_and_scale_are_least_squares_on_the_user_s_columns():
    """Kills a missing √(π/2), a floor that is not half of the mean, and columns that mix."""
    scores, table, _ = make_scores(300, 0)
    regressors = np.column_stack([np.ones(300), table["age"], table["site"] == "B"]).astype(float)
    residual = scores - regressors @ np.linalg.lstsq(regressors, scores, rcond=None)[0]
    distance = np.sqrt(np.pi / 2) * np.abs(residual)
    line = regressors @ np.linalg.lstsq(regressors, distance, rcond=None)[0]
    expected = residual / np.maximum(line, distance.mean() / 2)
    assert (line < distance.mean() / 2).any()
    norms = WScores.from_controls(scores, table, CONFOUNDS)
    metadata = encode(norms, table)
    np.testing.assert_allclose(norms.transform(scores, metadata), expected, atol=1e-9)
    both = np.column_stack([scores, -1e6 * scores])
    found = WScores(norms.design).fit(both, metadata).transform(both, metadata)
    np.testing.assert_allclose(found, np.column_stack([expected, -expected]), atol=1e-9)


def test_at_average_confounds_scores_keep_their_units_and_the_order_of_w_scores():
    norms = fit(2000)
    scores, table, is_case = make_scores(500, 1)
    metadata = encode(norms, table)
    at_average, w = norms.at_average(scores, metadata), norms.transform(scores, metadata)
    np.testing.assert_array_equal(np.argsort(at_average), np.argsort(w))
    assert at_average[~is_case].mean() == pytest.approx(scores[~is_case].mean(), rel=0.05)
    average = np.zeros((500, metadata.shape[1]))
    np.testing.assert_allclose(norms.at_average(scores, average), scores, rtol=1e-12)
    two = WScores(norms.design).fit(np.column_stack([scores, -scores]), metadata)
    assert two.at_average(np.column_stack([scores, -scores]), metadata).shape == (500, 2)


def test_a_site_without_controls_is_the_mean_of_theirs():
    """Kills the reference level as the reading of a new site."""
    norms = fit(2000)
    rows = pd.DataFrame({"age": [70.0] * 3, "site": ["A", "B", "new"]})
    w = norms.transform(np.full(3, 20.0), encode(norms, rows))
    assert w[1] + 0.5 < w[2] < w[0] - 0.5
    strict = WScores.from_controls(*make_scores(100, 0)[:2], CONFOUNDS, unseen="error")
    with pytest.raises(TableError, match="'new'"):
        encode(strict, rows)


def test_labels_of_the_design_are_not_read():
    scores, table, is_case = make_scores(200, 0)
    table["dx"] = is_case
    design = dc.Design(CONFOUNDS, keep=["dx"]).fit(table)
    labelled = design.encode(table, dtype=np.float64)
    unlabelled = design.encode(table.drop(columns="dx"), dtype=np.float64)
    one, other = (WScores(design).fit(scores, metadata) for metadata in (labelled, unlabelled))
    np.testing.assert_array_equal(
        one.transform(scores, labelled), other.transform(scores, unlabelled)
    )


def test_types_reach_the_design():
    scores, table, _ = make_scores(200, 0)
    table["site"] = np.random.default_rng(0).choice([3, 5, 7], 200)
    norms = WScores.from_controls(scores, table, ["site"], types={"site": "categorical"})
    assert norms.design.levels == {"site": ("3", "5", "7")}


def test_scores_that_the_confounds_explain_have_no_scale():
    """Kills a division by rounding, whatever the unit of the scores."""
    _, table, _ = make_scores(200, 0)
    for unit in (1e-9, 1.0, 1e9):
        scores = unit * (3.0 + 0.1 * table["age"].to_numpy())
        norms = WScores.from_controls(scores, table, CONFOUNDS)
        w = norms.transform(scores, encode(norms, table))
        assert np.abs(w).max() < 1e-11 * unit


def test_they_are_restored_from_json():
    norms = fit()
    scores, table, _ = make_scores(50, 1)
    copy = WScores.from_dict(json.loads(json.dumps(norms.to_dict())))
    metadata = encode(copy, table)
    expected = norms.at_average(scores, metadata)
    np.testing.assert_array_equal(copy.at_average(scores, metadata), expected)
    blank = WScores(norms.design)
    blank.norms = ControlNorms(*norms.norms)
    np.testing.assert_array_equal(blank.at_average(scores, metadata), expected)


def test_what_cannot_be_standardised_is_refused():
    scores, table, _ = make_scores(100, 0)
    design = dc.Design(CONFOUNDS).fit(table)
    metadata = design.encode(table, dtype=np.float64)
    norms = WScores(design).fit(scores, metadata)
    at_a = (table["site"] == "A").to_numpy()
    gaps = metadata.copy()
    gaps[3, 0] = np.nan
    faults = [
        (lambda: WScores(dc.Design(["age"])), StateError, "design is not fitted"),
        (lambda: WScores(design).transform(scores, metadata), StateError, "Call fit"),
        (lambda: WScores(design).to_dict(), StateError, "Call fit"),
        (lambda: norms.fit(scores[:6], metadata[:6]), TableError, "the 3 coefficients.*got 6"),
        (lambda: norms.fit(scores[at_a], metadata[at_a]), TableError, "site without controls"),
        (lambda: norms.fit(scores * np.nan, metadata), ShapeError, "scores must be finite"),
        (lambda: norms.transform(scores, gaps), ShapeError, "the first is row 3"),
        (lambda: norms.transform(scores[:2], metadata), ShapeError, r"got \(100, 2\)"),
        (lambda: norms.fit(np.zeros((2, 2, 2)), metadata), ShapeError, r"got \(2, 2, 2\)"),
    ]
    for call, error, message in faults:
        with pytest.raises(error, match=message):
            call()
