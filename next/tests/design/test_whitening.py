"""Training metadata are white, keep has precedence, and dropped columns are named."""

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deconfound import Design, Interaction, Spline
from deconfound.errors import DeconfoundWarning, ShapeError, TableError


def draw_people(n=400, seed=0):
    """Confounds of very unlike mean and scale, and a label associated with some of them."""
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 9, n)
    site = np.where(rng.random(n) < 0.3, "UCL", np.where(age > 60, "KCL", "UCSF"))
    return {
        "age": age,
        "offset": 1e4 + rng.normal(size=n) + 0.5 * (site == "UCL"),
        "tiny": 1e-4 * rng.normal(size=n),
        "sex": rng.choice(["F", "M"], n),
        "site": site,
        "dx": np.where(age + rng.normal(0, 9, n) > 62, "AD", "CN"),
    }


def whiteness_error(design, table, weight=None):
    """The largest entry of |ZᵀWZ / Σw − I| for Z = MT."""
    white = design.encode(table, dtype=np.float64) @ design.whitening
    weight = np.ones(len(white)) if weight is None else weight
    second_moment = white.T @ (white * weight[:, None]) / weight.sum()
    return np.abs(second_moment - np.eye(white.shape[1])).max()


def test_training_metadata_are_white():
    """Kills the mutant that leaves out the second pass or forgets to centre."""
    table = draw_people()
    terms = [Spline("age"), "offset", "tiny", "sex", "site", Interaction("sex", "offset")]
    design = Design(terms, keep=["dx"]).fit(table)
    assert design.whitening.shape == (11, 11)
    assert whiteness_error(design, table) < 1e-12
    raw = design.encode(table, dtype=np.float64)
    assert np.abs(raw.T @ raw / len(raw) - np.eye(11)).max() > 0.1  # control: not white before


def test_training_metadata_are_white_under_weights():
    """Kills the mutant that measures moments without the weights."""
    table = draw_people()
    weight = np.random.default_rng(1).random(400) ** 3
    weight[:50] = 0
    design = Design(["age", "offset", "tiny", "site"], keep=["dx"]).fit(table, weight)
    assert whiteness_error(design, table, weight) < 1e-12
    assert whiteness_error(design, table) > 1e-3  # control: without the weights it is not


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(30, 120),
    levels=st.integers(2, 8),
    copies=st.lists(st.sampled_from(["age", "offset", "tiny", "blend"]), max_size=3),
    weighted=st.booleans(),
)
def test_any_mix_of_columns_is_white(seed, n, levels, copies, weighted):
    """Also with redundant columns, in any order; dropped columns have no direction."""
    rng = np.random.default_rng(seed)
    table = draw_people(n, seed)
    table["many"] = np.array([f"level {code}" for code in rng.integers(levels, size=n)])
    confounds = ["age", "offset", "tiny", "many"]
    for number, source in enumerate(copies):
        blend = table["age"] - 3 * table["tiny"] / 1e-4
        table[f"copy{number}"] = 2 - 5 * (blend if source == "blend" else table[source])
        confounds.insert(int(rng.integers(len(confounds) + 1)), f"copy{number}")
    weight = rng.exponential(size=n) if weighted else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeconfoundWarning)
        design = Design(confounds, keep=["dx", "sex"]).fit(table, weight)
    assert whiteness_error(design, table, weight) < 1e-11
    standardised = design.encode(table, dtype=np.float64)
    standardised = np.sqrt(np.ones(n) if weight is None else weight)[:, None] * standardised
    assert design.whitening.shape[1] == np.linalg.matrix_rank(standardised, tol=1e-6 * np.sqrt(n))
    is_used = [column.is_used for column in design.columns]
    assert np.array_equal(is_used, np.any(design.whitening != 0, axis=1))


def test_residual_is_that_of_least_squares():
    """f − Cβ_C from white coordinates equals numpy's least squares on raw columns.

    Kills the mutant that orders confounds before keep.
    """
    table = draw_people()
    design = Design(["age", "site"], keep=["dx"]).fit(table)
    rng = np.random.default_rng(2)
    features = 5 + rng.normal(size=(400, 3)) + np.outer(table["age"], [1, 0, -2.0])
    metadata = design.encode(table, dtype=np.float64)
    regressors = np.column_stack([metadata @ design.whitening, np.ones(400)])
    coefficients = np.linalg.lstsq(regressors, features, rcond=None)[0]
    p_c, q_c = len(design.confound_columns), design.confound_directions
    residual = features - metadata[:, :p_c] @ design.whitening[:p_c, :q_c] @ coefficients[:q_c]

    # The oracle sees the user's own columns; reference levels are UCL's and AD's alternatives.
    raw = [table["age"], table["site"] == "UCL", table["site"] == "UCSF"]
    raw = np.column_stack([*raw, table["dx"] == "CN", np.ones(400)]).astype(float)
    beta = np.linalg.lstsq(raw, features, rcond=None)[0]
    expected = features - (raw[:, :3] - raw[:, :3].mean(0)) @ beta[:3]
    np.testing.assert_allclose(residual, expected, atol=1e-8)


def test_confounds_do_not_reach_keep_directions():
    """`matrix[:p_C, q_C:]` is exactly zero, so evaluation never needs keep."""
    design = Design(["age", "site"], keep=["dx", "sex"]).fit(draw_people())
    p_c, q_c = len(design.confound_columns), design.confound_directions
    assert not design.whitening[:p_c, q_c:].any()
    assert design.whitening[p_c:, q_c:].any()


def test_coefficient_over_unit_is_per_unit_of_the_column():
    """`beta / unit` is the slope per year, and the difference between levels."""
    table = draw_people()
    design = Design(["age", "site"]).fit(table)
    outcome = 0.25 * table["age"] + 3.0 * (table["site"] == "UCSF")
    metadata = np.column_stack([design.encode(table, dtype=np.float64), np.ones(400)])
    beta = np.linalg.lstsq(metadata, outcome, rcond=None)[0][:-1]
    slopes = {column.name: b / column.unit for column, b in zip(design.columns, beta, strict=True)}
    assert slopes == pytest.approx({"age": 0.25, "site[UCL]": 0.0, "site[UCSF]": 3.0}, abs=1e-9)


def test_shared_direction_is_credited_to_keep():
    """A confound that equals the label has no direction, and the warning names both."""
    table = draw_people()
    table["scanner"] = np.where(table["dx"] == "AD", "new", "old")
    with pytest.warns(DeconfoundWarning, match=r"'scanner\[old\]': .*keep \(dx\)"):
        design = Design(["age", "scanner"], keep=["dx"]).fit(table)
    assert [column.name for column in design.columns if not column.is_used] == ["scanner[old]"]
    assert design.confound_directions == 1
    assert whiteness_error(design, table) < 1e-12


def test_redundant_and_constant_columns_are_named():
    """Each reason is one sentence; a direction that only confounds share is not keep's."""
    table = draw_people()
    table |= {"months": 12 * table["age"], "country": ["UK"] * 400, "one": np.full(400, 0.1)}
    with pytest.warns(DeconfoundWarning) as caught:
        design = Design(["age", "months", "one", "country"], keep=["dx"]).fit(table)
    text = str(caught[0].message)
    assert "'one', 'country': constant" in text
    assert "'months': a combination of columns before" in text
    assert [column.is_used for column in design.columns] == [True, False, False, True]
    assert whiteness_error(design, table) < 1e-12


def test_constant_is_relative_to_the_mean():
    """10⁻⁴ ± 10⁻⁶ varies; 10⁶ with rounding errors does not. Kills an absolute tolerance."""
    rng = np.random.default_rng(0)
    table = {"small": 1e-4 + 1e-6 * rng.normal(size=50), "large": 1e6 + 1e-10 * np.arange(50.0)}
    with pytest.warns(DeconfoundWarning, match="'large': constant"):
        design = Design(["small", "large"]).fit(table)
    assert [column.is_used for column in design.columns] == [True, False]


def test_remainder_below_float32_is_redundant():
    """A remainder of 10⁻⁵ sd is dropped, one of 10⁻² sd is not."""
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(2, 300))
    with pytest.warns(DeconfoundWarning, match="'near'"):
        Design(["x", "near"]).fit({"x": x, "near": x + 1e-5 * noise})
    design = Design(["x", "near"]).fit({"x": x, "near": x + 1e-2 * noise})
    assert design.confound_directions == 2
    assert whiteness_error(design, {"x": x, "near": x + 1e-2 * noise}) < 1e-11


def test_weight_two_is_the_row_twice():
    """Kills the mutant that counts rows instead of weights, for splines as well."""
    table = pd.DataFrame(draw_people(100))
    weight = np.random.default_rng(3).integers(1, 3, 100)
    repeated = table.loc[table.index.repeat(weight)]
    terms = [Spline("age"), "offset", "site", Interaction("sex", "offset")]
    weighted = Design(terms, keep=["dx"]).fit(table, weight)
    twice = Design(terms, keep=["dx"]).fit(repeated)
    np.testing.assert_allclose(weighted.whitening, twice.whitening, rtol=1e-7, atol=1e-10)
    expected = twice.encode(table, dtype=np.float64)
    np.testing.assert_allclose(weighted.encode(table, dtype=np.float64), expected, atol=1e-10)


def test_rows_of_weight_zero_are_absent():
    """Their levels are unseen, their missing cells no fault; knots ignore them (faults 4, 5)."""
    table = pd.DataFrame(draw_people(200))
    table.loc[100:, "age"] += 40
    table.loc[150:, "site"] = "abroad"
    table.loc[190:, "offset"] = np.nan
    weight = np.r_[np.ones(100), np.zeros(100)]
    terms = [Spline("age"), "offset", "site"]
    weighted, alone = Design(terms).fit(table, weight), Design(terms).fit(table[:100])
    assert "abroad" not in weighted.levels["site"]
    with pytest.raises(TableError, match="'abroad'"):
        weighted.encode(table[150:160])
    assert weighted.confound_directions == alone.confound_directions == 7
    np.testing.assert_allclose(weighted.whitening, alone.whitening, atol=1e-12)


def test_thousand_levels_within_thirty_regions():
    """One column per region is redundant; sites keep their reference. Kills a wrong pivot rule."""
    rng = np.random.default_rng(0)
    code = np.r_[np.arange(1000), rng.integers(1000, size=19_000)]
    table = {
        "region": np.char.mod("r%d", code % 30),
        "site": np.char.mod("s%d", code),
        "age": rng.normal(60, 9, 20_000),
        "dx": rng.choice(["AD", "CN"], 20_000),
    }
    with pytest.warns(DeconfoundWarning, match=r"\(29 columns\): a combination of columns before"):
        design = Design(["age", "region", "site"], keep=["dx"]).fit(table)
    # 999 contrasts of sites contain those of regions; age and the label are one direction each.
    assert design.whitening.shape == (1 + 29 + 999 + 1, 1001)
    dropped = [column.name for column in design.columns if not column.is_used]
    assert len(dropped) == 29
    assert all(name.startswith("site") for name in dropped)
    assert whiteness_error(design, table) < 1e-11


@pytest.mark.slow
def test_five_thousand_levels():
    """The sparse way, which this size takes, is white as well."""
    rng = np.random.default_rng(0)
    code = np.r_[np.arange(5000), rng.integers(5000, size=15_000)]
    table = {"site": np.char.mod("s%d", code), "age": rng.normal(60, 9, 20_000)}
    design = Design(["age", "site"]).fit(table)
    assert design.confound_directions == 5000
    metadata = design.encode(table, dtype=np.float64)
    some = rng.choice(5000, 200, replace=False)
    white = metadata @ design.whitening[:, some]
    assert np.abs(white.T @ white / 20_000 - np.eye(200)).max() < 1e-11


def test_weights_do_not_hide_the_faults_of_a_table():
    with pytest.raises(TableError, match="amounts, or codes"):
        Design(["stage"]).fit({"stage": [1, 2, 3, 1]}, np.ones(4))


@pytest.mark.parametrize(
    ("weight", "error", "text"),
    [
        (np.ones(3), ShapeError, r"shape \(4,\); got \(3,\)"),
        ([1, 1, -1, 1], TableError, "not negative"),
        ([1, 1, np.nan, 1], TableError, "finite"),
        (np.zeros(4), TableError, "positive in some row"),
    ],
)
def test_impossible_weights(weight, error, text):
    table = {"age": [61.5, 70.2, 66.1, 74.8]}
    with pytest.raises(error, match=text):
        Design(["age"]).fit(table, weight)
