import json
import re
import subprocess
import sys
import textwrap

import numpy as np
import pandas as pd
import pytest
import torch

import deconfound as dc
from deconfound.errors import DeconfoundWarning, NotFittedError, OptionError, TableError
from tests.conftest import make_table


def design(**options):
    return dc.Design(confounds=["age", "sex", "site"], keep=["dx"], **options)


def test_metadata_are_white_on_the_training_rows():
    table = make_table(300)
    fitted = design().fit(table)
    metadata = fitted.encode(table, np.float64)
    white = metadata @ fitted.whitening
    np.testing.assert_allclose(white.T @ white / 300, np.eye(5), atol=1e-12)
    assert np.abs(metadata.T @ metadata / 300 - np.eye(5)).max() > 0.1  # the control: they were not before


def test_columns_are_centred_scaled_and_named():
    table = make_table(300)
    fitted = design().fit(table)
    metadata = fitted.encode(table)
    assert metadata.dtype == np.float32
    assert fitted.names == ("age", "sex[M]", "site[B]", "site[C]", "dx")
    np.testing.assert_allclose(metadata.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(metadata.std(0), 1, atol=1e-6)
    by_hand = ((table["site"] == "C") - np.mean(table["site"] == "C")) / np.std(table["site"] == "C")
    np.testing.assert_allclose(metadata[:, 3], by_hand, atol=1e-6)


def test_a_data_frame_and_a_mapping_are_the_same_table():
    table = make_table(100)
    frame = pd.DataFrame(table)
    assert np.array_equal(design().fit(frame).encode(frame), design().fit(table).encode(table))
    frame["site"] = frame["site"].astype("category")
    frame["dx"] = frame["dx"].astype("Int64")
    assert np.array_equal(design().fit(frame).encode(frame), design().fit(table).encode(table))


def test_labels_may_be_absent_and_are_then_nan():
    table = make_table(100)
    fitted = design().fit(table)
    whole = fitted.encode(table)
    blind = fitted.encode({name: values for name, values in table.items() if name != "dx"})
    assert np.isnan(blind[:, 4]).all()
    assert np.array_equal(blind[:, :4], whole[:, :4])


def test_a_missing_label_is_nan_and_a_missing_confound_an_error_with_two_ways_out():
    table = make_table(100)
    fitted = design().fit(table)
    some = {name: values[:4].astype(object) for name, values in table.items()}
    some["dx"][1] = None
    assert np.isnan(fitted.encode(some)[:, 4]).tolist() == [False, True, False, False]
    some["age"][2] = np.nan
    with pytest.raises(TableError, match=r"column 'age' must have a value in every row; got a missing value in row 2\. "
                       r"Leave these rows out, or pass missing='mean'"):  # fmt: skip
        fitted.encode(some)


@pytest.mark.parametrize("nothing", [None, np.nan, "", "n/a", pd.NA])
def test_a_missing_value_is_the_population_mean_on_request(nothing):
    table = {name: values.astype(object) for name, values in make_table(100).items()}
    table["site"][[0, 7]] = nothing
    with pytest.raises(TableError, match=r"column 'site' must have a value in every row; got .* in rows 0, 7"):
        design().fit(table)
    fitted = design(missing="mean", types={"age": "numeric", "dx": "numeric"}).fit(table)
    metadata = fitted.encode(table, np.float64)
    assert (metadata[[0, 7], 2:4] == 0).all()
    white = metadata @ fitted.whitening
    np.testing.assert_allclose(white.T @ white / 100, np.eye(5), atol=1e-12)


def test_tensors_with_a_graph_and_columns_named_by_numbers_are_read():
    values = torch.tensor([60.0, 70.0, 80.0], requires_grad=True)
    assert dc.Design(["age"]).fit({"age": values}).encode({"age": values}).shape == (3, 1)
    assert dc.Design(["0"]).fit(pd.DataFrame(np.arange(6.0).reshape(3, 2))).names == ("0",)


def test_cells_that_a_design_does_not_know_are_listed_by_value_and_row():
    table = {"age": [60.0, 70.0, 80.0, 65.0, 72.0], "site": ["A", "B", "A", "B", "B"], "dx": [0, 1, 1, 1, 0]}
    design = dc.Design(["age", "site", dc.Interaction("age", "site")], ["dx"], missing="mean", unseen="mean")
    new = {"age": [65.0, None, 66.0, 67.0], "site": ["Q", "", "A", "Q"]}
    found = [(item.column, item.value, item.rows) for item in design.fit(table).assumed(new)]
    assert found == [("age", None, (1,)), ("site", "Q", (0, 3)), ("site", None, (1,))]
    assert design.assumed(table) == ()
    with pytest.raises(TableError, match="got 'site', which it lacks"):
        design.assumed({"age": [1.0]})


def test_an_unseen_level_is_an_error_or_the_mean():
    table = make_table(100)
    new = {"age": [70.0, 60.0], "sex": ["F", "M"], "site": ["D", "A"]}
    with pytest.raises(
        TableError, match=r"column 'site' must hold levels seen in fit \('A', 'B', 'C'\); got 'D' in row 0"
    ):
        design().fit(table).encode(new)
    assert (design(unseen="mean").fit(table).encode(new)[0, 2:4] == 0).all()


def test_integer_codes_get_a_warning_that_says_how_to_force_either_reading():
    table = {"site": np.arange(60) % 5, "age": np.linspace(20, 80, 60)}
    with pytest.warns(DeconfoundWarning, match="'site' holds only 5 distinct whole numbers") as caught:
        fitted = dc.Design(confounds=["site", "age"]).fit(table)
    assert "types={'site': 'categorical'}" in str(caught[0].message)
    assert "types={'site': 'numeric'}" in str(caught[0].message)
    assert fitted.names == ("site", "age")
    forced = dc.Design(confounds=["site", "age"], types={"site": "categorical"}).fit(table)
    assert forced.names == ("site[1]", "site[2]", "site[3]", "site[4]", "age")
    assert dc.Design(confounds=["site"], types={"site": "numeric"}).fit(table).names == ("site",)


def test_integer_codes_with_a_missing_cell_are_suspected_too():
    site = (np.arange(60) % 4).astype(float)
    site[3] = np.nan
    with pytest.warns(DeconfoundWarning, match="4 distinct whole numbers"):
        dc.Design(confounds=["site"], missing="mean").fit({"site": site})


@pytest.mark.parametrize("kind", [int, float])
def test_a_category_of_numbers_is_one_whichever_table_calls_it_so(kind):
    codes = np.random.default_rng(0).integers(1, 31, 300).astype(kind)
    plain, named = {"site": codes}, pd.DataFrame({"site": pd.Categorical(codes)})
    fitted = dc.Design(["site"]).fit(named)
    assert fitted.levels["site"] == tuple(range(1, 31))
    expected = dc.Design(["site"], types={"site": "categorical"}).fit(plain).encode(plain)
    for table in (named, plain, {"site": codes.astype(float)}, {"site": pd.Categorical(codes)}):
        np.testing.assert_array_equal(fitted.encode(table), expected)
    number = dc.Design(["site"]).fit(plain)
    np.testing.assert_array_equal(number.encode(named), number.encode(plain))
    with pytest.raises(TableError, match="column 'site' must hold levels seen in fit"):
        fitted.encode({"site": [31]})


def test_types_and_curves_go_before_a_category_and_booleans_stay_booleans():
    codes = np.random.default_rng(0).integers(1, 31, 300)
    table = pd.DataFrame({"site": pd.Categorical(codes), "sex": pd.Categorical(codes > 9)})
    assert dc.Design(["site"], types={"site": "numeric"}).fit(table).names == ("site",)
    assert not dc.Design([dc.Spline("site", 4)]).fit(table).levels
    assert "boolean" in repr(dc.Design(["sex"]).fit(table))


def test_a_category_of_two_codes_in_keep_differs_in_its_name_alone():
    table = pd.DataFrame(make_table(300))
    numbers = dc.Design(["age"], keep=["dx"]).fit(table)
    named = dc.Design(["age"], keep=["dx"]).fit(table.astype({"dx": "category"}))
    assert (numbers.names, named.names) == (("age", "dx"), ("age", "dx[1]"))
    np.testing.assert_allclose(numbers.encode(table, np.float64), named.encode(table, np.float64), atol=1e-14)
    np.testing.assert_allclose(numbers.whitening, named.whitening, atol=1e-14)


def test_long_doubles_are_numbers():
    table = make_table(50)
    plain = dc.Design(["age"], keep=["dx"]).fit(table)
    long = {name: table[name].astype(np.longdouble) for name in ("age", "dx")}
    fitted = dc.Design(["age"], keep=["dx"]).fit(long)
    assert fitted.to_json() == plain.to_json()
    np.testing.assert_array_equal(fitted.encode(long), plain.encode(table))
    with pytest.raises(TableError, match="numeric column 'age' must be finite; got inf in row 0"):
        fitted.encode({"age": np.array(["1e4000"], dtype=np.longdouble)})


def test_booleans_and_text_numbers():
    assert dc.Design(confounds=["smoker"]).fit({"smoker": [True, False, True]}).names == ("smoker[True]",)
    text = {"age": ["61", "70", "55", "n/a"]}
    with pytest.warns(DeconfoundWarning, match="'age' holds text that reads as numbers"):
        dc.Design(confounds=["age"], missing="mean").fit(text)
    forced = dc.Design(confounds=["age"], types={"age": "numeric"}, missing="mean").fit(text)
    np.testing.assert_allclose(forced.encode({"age": ["62"]}), [[0.0]], atol=1e-6)


AMOUNTS = {
    "years": [f"{20 + number / 5:.1f} years" for number in range(60)],
    "kg": [f"{50 + number} kg" for number in range(60)],
    "thousands": [f"{number},{7 * number:03d}" for number in range(1, 61)],
    "decimal commas": [f"{20 + number / 5:.1f} Jahre".replace(".", ",") for number in range(60)],
    "several units": [f"{30 + number} {('y', 'years', 'yrs')[number % 3]}" for number in range(60)],
    "limits": ["<5 ng/l", *(f"{5 + number} ng/l" for number in range(58)), ">90 ng/l"],
    "body mass": [f"{18 + number / 10:.1f} kg/m2" for number in range(60)],
    "a few words": [*(f"{50 + number} kg" for number in range(57)), "unknown", "refused", "n/a"],
    "few rows": [f"{50 + number} kg" for number in range(9)],
}
NAMES = {
    "field strengths": ["1.5T", "3T", "7T"] * 20,
    "a dozen scanners": [f"{1 + number % 12}T" for number in range(60)],
    "few rows": ["1.5T", "3T", "7T"],
    "dates": [f"2020-{1 + number % 12:02d}-{1 + number % 28:02d}" for number in range(60)],
    "German dates": [f"{1 + number % 28:02d}.{1 + number % 12:02d}.2020" for number in range(60)],
    "times": [f"{8 + number % 12}:{number:02d}" for number in range(60)],
    "age bands": [f"{number}-{number + 4}" for number in range(0, 300, 5)],
    "blood pressures": [f"{110 + number}/{60 + number // 2}" for number in range(60)],
    "ids": [f"{number:03d}_S_{7 * number:04d}" for number in range(60)],
    "files": [f"{number:04d}.png" for number in range(60)],
    "wards": [f"{1 + number // 2}{'ABCDEFGHIJ'[number % 10]}" for number in range(60)],
    "some numbers": [f"{number} kg" if number % 2 else f"kg {number}" for number in range(60)],
    "words": [f"site {number}" for number in range(60)],
}


@pytest.mark.parametrize("cells", AMOUNTS.values(), ids=AMOUNTS)
def test_amounts_with_their_unit_are_asked_about(cells):
    said = rf"'size' holds numbers with other text, such as '{re.escape(cells[0])}', and is taken as categorical with"
    with pytest.warns(DeconfoundWarning, match=said):
        design = dc.Design(confounds=["size"], missing="mean").fit({"size": cells})
    (note,) = (note for note in design.notes if note.kind == "amounts as text")
    assert "Write plain numbers if they are amounts, or pass types={'size': 'categorical'}" in note.text
    silent = dc.Design(confounds=["size"], missing="mean", types={"size": "categorical"}).fit({"size": cells})
    assert silent.notes == ()


@pytest.mark.parametrize("cells", NAMES.values(), ids=NAMES)
def test_names_that_begin_with_a_number_are_no_amounts(cells):
    assert dc.Design(confounds=["size"]).fit({"size": cells}).notes == ()


def coded_sites():
    """Codes that an empty cell turns into floats."""
    site = np.random.default_rng(0).choice([3.0, 17.0, 20.5], 60, p=[0.1, 0.5, 0.4])
    site[5] = np.nan
    return {"site": site, "age": np.random.default_rng(1).normal(60, 9, 60)}


def test_codes_are_shown_as_they_were_written_also_where_an_empty_cell_made_floats_of_them():
    terms = ["site", dc.Interaction("age", "site")]
    design = dc.Design(terms, types={"site": "categorical"}, missing="mean").fit(coded_sites())
    assert design.names == ("site[17]", "site[20.5]", "age:site[17]", "age:site[20.5]")
    assert re.search(r"site +categorical +3 \d, 17 \d+, 20.5 \d+; reference 3\n", repr(design))
    assert re.search(r"site has only \d rows at 3$", str(design.diagnose()), re.MULTILINE)
    new = {"site": [17.0, 4.0, 4.0], "age": [60.0, 61.0, 62.0]}
    assert str(design.assumed(new)[0]) == "site 4, in rows 1, 2, was not in the training rows"
    with pytest.raises(TableError, match=r"levels seen in fit \(3, 17, 20.5\); got 4 in rows 1, 2"):
        design.encode(new)


def test_codes_are_saved_and_encoded_as_ever():
    table = coded_sites()
    design = dc.Design(["site"], types={"site": "categorical"}, missing="mean").fit(table)
    saved = design.to_dict()
    assert saved["confounds"][0]["labels"] == ["site[17.0]", "site[20.5]"]
    assert saved["codecs"][0]["levels"] == [3.0, 17.0, 20.5]
    assert design.levels == {"site": (3.0, 17.0, 20.5)}
    again = dc.Design.from_json(design.to_json())
    assert again.to_dict() == saved
    assert again.names == ("site[17]", "site[20.5]")
    np.testing.assert_array_equal(again.encode({"site": [17, 3]}), design.encode({"site": [17.0, 3.0]}))


def test_levels_that_would_share_a_name_keep_their_own():
    column = np.array([17.0, "17", 3.0] * 4, dtype=object)
    design = dc.Design(["site"]).fit({"site": column})
    assert design.names == ("site[17.0]", "site[17]")


def test_redundant_and_constant_columns_are_dropped_and_named():
    table = make_table(200)
    table["scanner"] = np.where(table["site"] == "A", "Siemens", "GE")
    table["field"] = np.full(200, 3.0)
    with pytest.warns(DeconfoundWarning) as caught:
        fitted = dc.Design(confounds=["site", "scanner", "field", "age"], keep=["dx"]).fit(table)
    texts = [str(warning.message) for warning in caught]
    assert any(text.startswith("field: constant in the training rows") for text in texts)
    assert any(text.startswith("scanner[Siemens]: determined by the columns before it") for text in texts)
    assert [column.name for column in fitted.columns if not column.used] == ["scanner[Siemens]", "field"]
    white = fitted.encode(table, np.float64) @ fitted.whitening
    np.testing.assert_allclose(white.T @ white / 200, np.eye(4), atol=1e-12)


def test_a_direction_shared_with_keep_is_credited_to_keep():
    """No single site is the label here; sites A and B together are."""
    table = make_table(200)
    table["dx"] = (table["site"] == "A").astype(int) + (table["site"] == "B").astype(int)
    with pytest.warns(DeconfoundWarning, match=r"site\[C\]: not to be told apart from keep"):
        fitted = design(types={"dx": "numeric"}).fit(table)
    assert fitted.confound_directions == 3


def test_more_columns_than_rows_work():
    rng = np.random.default_rng(0)
    table = {f"x{i}": rng.normal(size=6) for i in range(10)}
    with pytest.warns(DeconfoundWarning, match="determined by the columns before it"):
        fitted = dc.Design(confounds=list(table)).fit(table)
    assert fitted.whitening.shape == (10, 5)


def test_splines_fit_a_curve_that_a_line_cannot():
    age = np.linspace(20, 80, 200)
    curve = np.sin(age / 12)[:, None]
    errors = {}
    for term in ("age", dc.Polynomial("age", 3), dc.Spline("age", 5)):
        fitted = dc.Design(confounds=[term]).fit({"age": age})
        regressors = np.column_stack([np.ones(200), fitted.encode({"age": age}, np.float64)])
        fit = regressors @ np.linalg.lstsq(regressors, curve, rcond=None)[0]
        errors[str(term)] = np.abs(fit - curve).max()
    assert errors["spline(age, 5)"] < 0.15 < 0.5 < errors["age"]


def test_a_spline_is_straight_beyond_the_training_rows():
    fitted = dc.Design(confounds=[dc.Spline("age", 4)]).fit({"age": np.linspace(20, 80, 100)})
    beyond = fitted.encode({"age": np.array([90.0, 100.0, 110.0])}, np.float64)
    np.testing.assert_allclose(beyond[2] - beyond[1], beyond[1] - beyond[0], atol=1e-9)


def test_a_spline_is_the_truncated_power_basis_written_out_naively():
    """Restricted cubic splines as textbooks have them; beyond the last knot too, where the code takes another way."""
    age = np.linspace(20, 80, 200)
    fitted = dc.Design(confounds=[dc.Spline("age", 4)]).fit({"age": age})
    knots = np.quantile(age, np.linspace(0.05, 0.95, 5))

    def basis(x):
        cube = lambda knot: np.maximum(x - knot, 0) ** 3  # noqa: E731
        d = [(cube(k) - cube(knots[-1])) / (knots[-1] - k) for k in knots[:-1]]
        return np.stack([x, *((knots[-1] - k) * (d[i] - d[-1]) for i, k in enumerate(knots[:3]))], axis=1)

    new = np.array([10.0, 25.0, 50.0, 79.0, 95.0, 140.0])
    by_hand = (basis(new) - basis(age).mean(0)) / basis(age).std(0)
    np.testing.assert_allclose(fitted.encode({"age": new}, np.float64), by_hand, rtol=1e-9, atol=1e-9)


def test_types_and_gaps_of_one_call_do_not_reach_the_next():
    table = make_table(100)
    fitted = design().fit(table)
    assert np.isnan(fitted.encode({**table, "dx": [None] * 100})[:, 4]).all()
    of_site = dc.Design(["age"], keep=["site"]).fit(table)
    assert np.isnan(of_site.encode({**table, "site": [None] * 100})[:, 1:]).all()
    fitted.encode(table, np.float32)
    precise = fitted.encode(table, np.float64)
    by_hand = ((table["site"] == "C") - np.mean(table["site"] == "C")) / np.std(table["site"] == "C")
    np.testing.assert_allclose(precise[:, 3], by_hand, atol=1e-14)


def test_an_interaction_is_the_product_of_the_standardised_columns():
    table = make_table(300)
    fitted = dc.Design(confounds=["age", "site", dc.Interaction("age", "site")]).fit(table)
    metadata = fitted.encode(table, np.float64)
    assert fitted.names[3:] == ("age:site[B]", "age:site[C]")
    product = metadata[:, 0] * metadata[:, 2]
    np.testing.assert_allclose(metadata[:, 4], (product - product.mean()) / product.std(), atol=1e-10)


@pytest.mark.parametrize(
    "table", [make_table(150), {**make_table(40), "site": np.array(["ä", "<b>", "c d", "e"] * 10)}]
)
def test_json_round_trip_is_equal_to_the_last_bit(table):
    terms = ["age", "sex", "site", dc.Interaction(dc.Spline("age", 3), "sex")]
    with pytest.warns(DeconfoundWarning):  # the spline's straight part is age itself
        fitted = dc.Design(confounds=[*terms, dc.Polynomial("age", 3)], keep=["dx"], unseen="mean").fit(table)
    text = fitted.to_json()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    twin = dc.Design.from_json(text)
    assert np.array_equal(twin.encode(table), fitted.encode(table))
    assert np.array_equal(twin.whitening, fitted.whitening)
    assert twin.columns == fitted.columns
    assert twin.to_json() == text
    assert str(twin.diagnose()) == str(fitted.diagnose())


def test_diagnose_tells_that_site_and_label_are_the_same_thing():
    rng = np.random.default_rng(0)
    dx = rng.integers(0, 2, 400)
    table = {"age": rng.normal(60, 5, 400), "dx": dx}
    table["site"] = np.where(dx == 1, "A", "B")
    table["site"][:4] = "C"
    found = dc.Design(confounds=["age", "site"], keep=["dx"]).fit(table).diagnose()
    (explained,) = found.explained
    assert explained.by_each["site"] > 0.95
    assert explained.by_each["age"] < 0.05
    assert "nearly the same thing" in str(found)
    assert [(small.column, small.level, small.rows) for small in found.small_levels] == [("site", "C", 4)]


def test_diagnose_agrees_with_a_regression():
    table = make_table(300)
    fitted = design().fit(table)
    metadata = fitted.encode(table, np.float64)
    fit = metadata[:, :4] @ np.linalg.lstsq(metadata[:, :4], metadata[:, 4], rcond=None)[0]
    assert fitted.diagnose().explained[0].by_all == pytest.approx(fit.var() / metadata[:, 4].var(), abs=1e-9)


def test_several_faults_are_reported_at_once_with_the_nearest_name():
    with pytest.raises(TableError) as caught:
        dc.Design(confounds=["aeg", "sit"], keep=["dxx"]).fit(make_table(10))
    text = str(caught.value)
    assert "got 'aeg', which it lacks. Did you mean 'age'?" in text
    assert "got 'sit', which it lacks. Did you mean 'site'?" in text
    assert "got 'dxx', which it lacks. Did you mean 'dx'?" in text


def bad(text, error, build):
    return pytest.param(text, error, build, id=text[:40])


@pytest.mark.parametrize(
    ("text", "error", "build"),
    [
        bad("confounds must name at least one column", OptionError, lambda: dc.Design(confounds=[])),
        bad("confounds must be a list of columns; got the text 'age'", OptionError, lambda: dc.Design("age")),
        bad("confounds must be a list of columns; got None", OptionError, lambda: dc.Design(None)),
        bad("column 'a' must hold one value per row; got setting an array element", TableError,
            lambda: dc.Design(["a"]).fit({"a": [[1, 2], [3]]})),
        bad("confounds must be columns of the table; got 'agee'", TableError,
            lambda: dc.Design(["agee"]).fit({3: [1.0, 2.0]})),
        bad("text must be what to_json wrote; got Expecting value", OptionError, lambda: dc.Design.from_json("x")),
        bad("Spline df must be at least 2; got 'x'", OptionError, lambda: dc.Spline("a", "x")),
        bad("got 'age' in confounds and in keep", OptionError, lambda: dc.Design(["age"], keep=["age"])),
        bad("confounds must name each column once; got 'age'", OptionError, lambda: dc.Design(["age", "age"])),
        bad("confounds must hold column names or terms", OptionError, lambda: dc.Design([3])),
        bad("missing must be 'error' or 'mean'; got 'drop'", OptionError, lambda: dc.Design(["a"], missing="drop")),
        bad("types must name columns of confounds or keep; got 'b'", OptionError,
            lambda: dc.Design(["a"], types={"b": "numeric"})),
        bad("must be one of 'numeric', 'boolean', 'categorical'; got 'int'", OptionError,
            lambda: dc.Design(["a"], types={"a": "int"})),
        bad("Spline df must be at least 2; got 1", OptionError, lambda: dc.Spline("a", df=1)),
        bad("Polynomial degree must be at least 2; got 1", OptionError, lambda: dc.Polynomial("a", degree=1)),
        bad("Interaction must have at least two factors; got 1", OptionError, lambda: dc.Interaction("a")),
        bad("a design must be fitted before use", NotFittedError, lambda: dc.Design(["a"]).encode({"a": [1.0]})),
        bad("at least 2 rows; got 1", TableError, lambda: dc.Design(["a"]).fit({"a": [1.0]})),
        bad("must be a DataFrame or a mapping", TableError, lambda: dc.Design(["a"]).fit([1.0, 2.0])),
        bad("same number of rows; got a: 2, b: 3", TableError,
            lambda: dc.Design(["a", "b"]).fit({"a": [1.0, 2.0], "b": [1.0, 2.0, 3.0]})),
        bad("column 'a' must be one-dimensional; got shape (2, 2)", TableError,
            lambda: dc.Design(["a"]).fit({"a": np.ones((2, 2))})),
        bad("numeric column 'a' must be finite; got inf in row 1", TableError,
            lambda: dc.Design(["a"]).fit({"a": [1.0, np.inf, 2.0]})),
        bad("numeric column 'a' must hold numbers; got 'x' in row 1", TableError,
            lambda: dc.Design(["a"], types={"a": "numeric"}).fit({"a": ["1", "x"]})),
        bad("column 'a' must hold numbers, booleans or text; got dtype datetime64", TableError,
            lambda: dc.Design(["a"]).fit({"a": np.array(["2020-01-01", "2021-01-01"], dtype="datetime64[D]")})),
        bad("boolean column 'a' must hold only True and False; got 'no', 'yes'", TableError,
            lambda: dc.Design(["a"], types={"a": "boolean"}).fit({"a": ["yes", "no"]})),
        bad("column 'a' must hold at least one value; got 2 empty cells", TableError,
            lambda: dc.Design(["a"], missing="mean").fit({"a": [np.nan, np.nan]})),
        bad("must stand on a numeric column; got 'a', which is categorical", TableError,
            lambda: dc.Design([dc.Spline("a")], types={"a": "categorical"}).fit({"a": ["x", "y"]})),
        bad("must have at least 5 distinct values in column 'a'; got 3", TableError,
            lambda: dc.Design([dc.Spline("a", 4)]).fit({"a": [1.0, 2.0, 3.0, 3.0]})),
        bad("a saved design must have format 'deconfound-design'", TableError, lambda: dc.Design.from_json("{}")),
    ],
)  # fmt: skip
def test_bad_input_gets_a_text_that_says_what_to_do(text, error, build):
    with pytest.raises(error) as caught:
        build()
    assert text in str(caught.value)


def test_a_failed_fit_leaves_the_design_as_it_was():
    fitted = design().fit(make_table(50))
    before = fitted.to_json()
    with pytest.raises(TableError):
        fitted.fit({"age": [1.0, 2.0]})
    assert fitted.to_json() == before


def test_a_design_needs_numpy_alone():
    """In a process that refuses every other third-party package."""
    code = """
        import sys
        class Refuse:
            def find_spec(self, name, path=None, target=None):
                root = name.split(".")[0]
                if root not in sys.stdlib_module_names | {"numpy", "deconfound"}:
                    raise ImportError("refused " + name)
        sys.meta_path.insert(0, Refuse())
        import deconfound as dc
        table = {"age": [61.0, 70.0, 78.0, 55.0], "site": ["A", "B", "A", "B"]}
        design = dc.Design(confounds=["age", "site"]).fit(table)
        print(dc.Design.from_json(design.to_json()).encode(table).shape)
        try:
            dc.PMDN
        except ImportError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["(4, 2)", "refused torch"]
