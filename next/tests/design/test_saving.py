"""A design through JSON and back is equal in every bit; damaged data are refused in a sentence."""

import copy
import json
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deconfound import Design, Interaction, Spline
from deconfound.errors import TableError

finite = st.floats(-1e6, 1e6, allow_subnormal=False)


def fit_design():
    rng = np.random.default_rng(0)
    table = {
        "age": rng.normal(60, 9, 60),
        "sex": rng.choice(["F", "M"], 60),
        "site": rng.choice(["KCL", "Zürich", "007"], 60),
        "dx": rng.choice(["AD", "CN"], 60),
    }
    terms = [Spline("age"), "sex", "site", Interaction("sex", Spline("age", df=3))]
    return Design(terms, keep=["dx"], unseen="mean").fit(table), table


def through_json(design):
    return Design.from_dict(json.loads(json.dumps(design.to_dict(), allow_nan=False)))


def test_saved_design_is_equal_in_every_bit():
    design, table = fit_design()
    loaded = through_json(design)
    np.testing.assert_array_equal(loaded.whitening, design.whitening)
    expected = design.encode(table, dtype=np.float64)
    np.testing.assert_array_equal(loaded.encode(table, dtype=np.float64), expected)
    assert loaded.columns == design.columns
    assert loaded.confounds == design.confounds
    assert loaded.diagnose() == design.diagnose()
    assert repr(loaded) == repr(design)
    assert loaded.to_dict() == design.to_dict()


def test_unfitted_design_is_saved_as_well():
    design = Design([Spline("age")], types={"age": "numeric"})
    assert through_json(design).to_dict() == design.to_dict()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(finite, st.text("aé0 ,[", max_size=3)), min_size=6, max_size=20))
def test_any_values_survive_json(cells):
    """Any floats and any level texts, also such as "0", "[" and "é"."""
    table = {"number": [n for n, _ in cells], "level": [f"x{text}" for _, text in cells]}
    for index in range(3):
        table["number"][index] = 0.1 + index / 3
    table["level"][:2] = ["a", "b"]
    try:
        design = Design(["number", "level"], types={"number": "numeric"}).fit(table)
    except Warning:
        return  # A redundant column warns, and warnings are errors in this suite.
    loaded = through_json(design)
    np.testing.assert_array_equal(loaded.encode(table), design.encode(table))
    np.testing.assert_array_equal(loaded.whitening, design.whitening)


def paths_of(data, path=()):
    """Every place within nested dicts and lists."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from paths_of(value, (*path, key))


@pytest.mark.parametrize("damage", ["delete", None, "text", -1, math.nan, [], {}])
def test_damaged_data_are_refused_in_one_sentence(damage):
    """Whatever is deleted or replaced: a design that works, or a TableError; never a KeyError."""
    design, table = fit_design()
    data = design.to_dict()
    refusals = []
    for path in list(paths_of(data)):
        damaged = copy.deepcopy(data)
        parent = damaged
        for key in path[:-1]:
            parent = parent[key]
        if damage == "delete":
            del parent[path[-1]]
        else:
            parent[path[-1]] = damage
        try:
            loaded = Design.from_dict(damaged)
        except TableError as error:
            refusals.append(str(error))
        else:
            if loaded.to_dict()["fit"] is not None:
                assert len(loaded.encode(table)) == 60
    assert len(refusals) > 10
    assert all(len(re.findall("not a whole design", text)) == 1 for text in refusals)
    assert not any("\n" in text for text in refusals)


@pytest.mark.parametrize("data", [{}, [], None, "design", {"confounds": ["age"]}])
def test_other_data_are_refused(data):
    with pytest.raises(TableError, match="not a whole design"):
        Design.from_dict(data)
