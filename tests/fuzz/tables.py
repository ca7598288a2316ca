"""Tables of the forms that users have, and the targets that take a table: designs and weights."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import strategies as st

import deconfound as dc
from deconfound.design.balance import balance
from tests.fuzz.harness import target

NAMES = st.sampled_from(["age", "sex", "site", "age[/mm]", "[bold]x[/bold]", "a, b", "dx", "=1+1", "ä", "0"])
CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**25), 10**25),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from(["", "n/a", "nan", "NA", "A", "B", "1", "2.5", "TRUE", "x_1", "٣", "inf", "1e400", "é\0"]),
    st.sampled_from([np.float32(1.5), np.int64(3), np.str_("A"), np.bool_(True), 1 + 2j, b"A", [1], object]),
)
KINDS = ["floats", "wide", "ints", "levels", "mixed", "masked", "big-endian", "reversed", "half", "dates", "complex"]


@st.composite
def columns(draw, rows):
    """A column of one of the forms that users' tables have."""
    kind = draw(st.sampled_from(KINDS))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    numbers = rng.normal(size=rows)
    if kind == "wide":
        return numbers * 10.0 ** draw(st.integers(-300, 300))
    if kind == "ints":
        return rng.integers(-3, 3, rows) * draw(st.sampled_from([1, 10**17]))
    if kind == "levels":
        return rng.choice(["A", "B", "C", "n/a", "<i>"], rows)
    if kind == "mixed":
        cells = np.empty(rows, dtype=object)
        cells[:] = [draw(CELLS) for _ in range(rows)]
        return cells
    if kind == "masked":
        return np.ma.masked_array(numbers, rng.random(rows) < 0.3)
    forms = {
        "big-endian": lambda: numbers.astype(">f8"),
        "reversed": lambda: numbers[::-1],
        "half": lambda: numbers.astype(np.float16),
        "dates": lambda: np.full(rows, "2020-01-01", "datetime64[D]"),
        "complex": lambda: numbers + 1j,
    }
    return forms.get(kind, lambda: numbers)()


@st.composite
def tables(draw, least=0):
    rows = draw(st.integers(least, 30))
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    table = {name: draw(columns(rows)) for name in names}
    if draw(st.integers(0, 9)) == 0:
        table[names[0]] = table[names[0]][:-1]
    return table


def terms(names):
    """Columns, and curves and products of them; now and then one that is not there."""
    name = st.sampled_from([*names, *names, *names, "age"])
    return st.one_of(
        name,
        name,
        name,
        st.builds(dc.Polynomial, name, st.integers(2, 6)),
        st.builds(dc.Spline, name, st.integers(2, 5)),
        st.builds(dc.Interaction, name, name),
    )


@target
def design(data: st.DataObject) -> str:
    """Fit, encode, diagnose and save: whitened and finite, and the same after a round trip."""
    table = data.draw(tables())
    options = {"missing": data.draw(st.sampled_from(["error", "mean"])), "unseen": "mean"}
    roles = data.draw(st.lists(terms(list(table)), min_size=1, max_size=2)), data.draw(st.lists(NAMES, max_size=1))
    weight = data.draw(st.sampled_from([None, None, "random"]))
    rows = len(next(iter(table.values())))
    weights = None if weight is None else np.random.default_rng(0).exponential(size=rows)
    fitted = dc.Design(*roles, **options).fit(table, weight=weights)
    metadata = fitted.encode(table, np.float64)
    known = np.nan_to_num(metadata, nan=0.0)
    assert np.isfinite(metadata[:, : len(fitted.confound_columns)]).all()
    share = np.full(len(metadata), 1 / len(metadata)) if weights is None else weights / weights.sum()
    white = known @ fitted.whitening
    # A column that is nearly determined by others is white up to rounding only, magnified by how near it is.
    assert np.abs((white.T * share) @ white - np.eye(white.shape[1])).max(initial=0) < 1e-5
    twin = dc.Design.from_json(fitted.to_json())
    assert np.array_equal(twin.encode(table), fitted.encode(table), equal_nan=True)
    assert str(fitted.diagnose()) == str(twin.diagnose())
    return "read"


@target
def new_rows(data: st.DataObject) -> str:
    """A good design reads any table: finite confounds, whatever the new rows hold."""
    rng = np.random.default_rng(0)
    train = {"age": rng.normal(60, 9, 40), "site": rng.choice(["A", "B"], 40), "dx": rng.integers(0, 2, 40)}
    fitted = dc.Design(
        ["age", dc.Spline("age", 3), "site"][data.draw(st.integers(0, 1)) :], ["dx"], missing="mean", unseen="mean"
    )
    fitted.fit(train)
    table = data.draw(tables())
    names = data.draw(st.permutations(list(table)))
    table = dict(zip(["age", "site", "dx"], (table[name] for name in names), strict=False))
    metadata = fitted.encode(table)
    assert np.isfinite(metadata[:, : len(fitted.confound_columns)]).all()
    fitted.assumed(table)
    return "read"


@target
def saved_design(data: st.DataObject) -> str:
    """A saved design with a part changed: refused, or it still encodes finite numbers."""
    rng = np.random.default_rng(0)
    table = {"age": rng.normal(60, 9, 40), "site": rng.choice(["A", "B", "C"], 40), "dx": rng.integers(0, 2, 40)}
    saved = json.loads(dc.Design(["age", "site", dc.Interaction("age", "site")], ["dx"]).fit(table).to_json())
    place, parent = saved, None
    for _ in range(data.draw(st.integers(1, 5))):
        if not isinstance(place, dict | list) or not place:
            break
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        parent, place = (place, key), place[key]
    value = data.draw(st.sampled_from([None, -1, 0, 1.5, "x", [], {}, "nan", 10**30, float("nan")]))
    if data.draw(st.booleans()) or isinstance(parent[0], list):
        parent[0][parent[1]] = value
    else:
        del parent[0][parent[1]]
    metadata = dc.Design.from_dict(saved).encode(table)
    assert metadata.shape[0] == 40
    return "read"


@target
def weights(data: st.DataObject) -> str:
    """Balance: finite, not negative, mean 1 over the rows with a label, and never a stronger tie to categories."""
    table = data.draw(tables(least=2))
    if data.draw(st.booleans()):
        rng = np.random.default_rng(data.draw(st.integers(0, 999)))
        rows = len(next(iter(table.values())))
        good = {"dx": rng.integers(0, data.draw(st.integers(1, 4)), rows), "site": rng.choice(["A", "B"], rows)}
        table = {**good, **({} if data.draw(st.booleans()) else table)}
    names = list(table)
    kind = data.draw(st.sampled_from(["overlap", "inverse", "entropy"]))
    labels = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    confounds = [name for name in names if name not in labels] or names
    missing = data.draw(st.sampled_from(["error", "mean"]))
    found = balance(table, labels, confounds, kind, missing=missing, folds=data.draw(st.sampled_from([0, 0, 2])))
    assert np.isfinite(found.weights).all()
    assert (found.weights >= 0).all()
    assert found.row_weight.shape == found.weights.shape[:1]
    assert str(found)
    json.dumps(found.to_dict(), allow_nan=False)
    return "read"
