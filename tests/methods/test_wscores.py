"""W-scores take the location and the scale of controls out of scores, and nothing of the label."""

import json

import numpy as np
import pandas as pd
import pytest

from deconfound.errors import OptionError, ShapeError, TableError
from deconfound.methods import WScores


def people(n, seed):
    """Scores that rise with age and differ more among the old and at site B; cases score 2 standard deviations more."""
    rng = np.random.default_rng(seed)
    age, site = rng.uniform(50, 90, n), rng.choice(["A", "B"], n)
    case = rng.random(n) < 0.4
    scale = 0.5 + 0.05 * (age - 50) + 1.0 * (site == "B")
    scores = 3.0 + 0.2 * age + 4.0 * (site == "B") + scale * (rng.normal(size=n) + 2.0 * case)
    return scores, {"age": age, "site": site}, case


def test_new_controls_have_mean_zero_and_sd_one_at_every_age_and_site():
    scores, table, case = people(4000, 0)
    norm = WScores.fit(scores, table, ["age", "site"], ~case)
    scores, table, case = people(8000, 1)
    found = norm(scores, table)
    for rows in (table["age"] < 60, table["age"] > 80, table["site"] == "A", table["site"] == "B"):
        controls = rows & ~case
        assert abs(found[controls].mean()) < 0.1
        assert found[controls].std() == pytest.approx(1.0, abs=0.12)
        assert found[rows & case].mean() == pytest.approx(2.0, abs=0.25)
    raw = (scores - scores.mean()) / scores.std()
    young, old = (raw[rows & ~case].mean() for rows in (table["age"] < 60, table["age"] > 80))
    assert old - young > 0.5  # the control: age was in the scores


def test_location_and_scale_are_least_squares_written_differently():
    scores, table, _ = people(300, 0)
    norm = WScores.fit(scores, table, ["age", "site"])
    x = np.stack([np.ones(300), table["age"], table["site"] == "B"], axis=1).astype(float)
    residual = scores - x @ np.linalg.solve(x.T @ x, x.T @ scores)
    spread = x @ np.linalg.solve(x.T @ x, x.T @ np.abs(residual)) * np.sqrt(np.pi / 2)
    expected = residual / np.maximum(spread, np.abs(residual).mean() * np.sqrt(np.pi / 2) / 2)
    np.testing.assert_allclose(norm(scores, table), expected, rtol=1e-8)
    both = WScores.fit(np.stack([scores, -scores], axis=1), table, ["age", "site"])
    np.testing.assert_allclose(both(np.stack([scores, -scores], axis=1), table)[:, 1], -expected, rtol=1e-8)


def test_sites_that_pandas_calls_categories_are_levels_though_they_are_numbers():
    scores, _, case = people(400, 0)
    frame = pd.DataFrame({"site": pd.Categorical(np.random.default_rng(0).choice([3, 5, 7], 400))})
    coded = WScores.fit(scores, frame, ["site"], ~case)
    assert coded.design.levels == {"site": (3, 5, 7)}


def test_what_cannot_be_standardised_is_refused():
    scores, table, case = people(100, 0)
    with pytest.raises(TableError, match="controls must be more than twice the 3 coefficients of the confounds; got 5"):
        WScores.fit(scores, table, ["age", "site"], np.arange(100) < 5)
    with pytest.raises(ShapeError, match=r"controls must have one value per score; got \(3,\) for 100 scores"):
        WScores.fit(scores, table, ["age"], [True] * 3)
    with pytest.raises(OptionError, match="scores must be finite numbers"):
        WScores.fit(np.full(100, np.nan), table, ["age"])
    norm = WScores.fit(scores, table, ["age", "site"], ~case)
    with pytest.raises(ShapeError, match="scores and table must have the same rows; got 2 and 100"):
        norm([1.0, 2.0], table)
    constant = WScores.fit(np.ones(100), table, ["age"])
    assert np.abs(constant(np.ones(100), table)).max() < 1e-6


def test_at_average_confounds_scores_keep_their_units_and_the_order_of_w_scores():
    scores, table, case = people(2000, 0)
    norm = WScores.fit(scores, table, ["age", "site"], ~case)
    found, w = norm.at_average(scores, table), norm(scores, table)
    assert np.array_equal(np.argsort(found), np.argsort(w))
    assert found[~case].mean() == pytest.approx(scores[~case].mean(), rel=0.02)
    again = WScores.from_dict(json.loads(json.dumps(norm.to_dict())))
    assert np.array_equal(again.at_average(scores, table), found)
