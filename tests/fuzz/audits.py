"""Whole audits of hostile outputs and tables."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

import deconfound as dc
from tests.fuzz.harness import target
from tests.fuzz.measures import auc, numbers
from tests.fuzz.tables import columns

QUICK = {"permutations": 19, "bootstraps": 40}
RANGES = {"accuracy": (0, 1), "auc": (0, 1), "brier_score": (0, 1), "calibration_error": (0, 1), "cramers_v": (0, 1)}


def table_of(data: st.DataObject, rows: int) -> dict[Any, Any]:
    """Good columns, of which one may be hostile."""
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    table: dict[Any, Any] = {
        "age[/mm]": rng.normal(60, 9, rows),
        "site": rng.choice(["A", "B", "<i>C</i>"], rows),
        "dx": rng.integers(0, 2, rows),
        "stage": rng.choice(["x", "y", "z"], rows),
        "score": rng.normal(size=rows),
        "who": np.arange(rows) // data.draw(st.sampled_from([1, 1, 2, 3])),
        "fold": np.arange(rows) % 2,
    }
    if data.draw(st.integers(0, 3)) == 0:
        table[data.draw(st.sampled_from(list(table)))] = data.draw(columns(rows))
    return table


@target
def audit(data: st.DataObject) -> str:
    """An audit ends with a verdict on every confound, numbers in their range and a page without foreign markup."""
    rows = data.draw(st.integers(4, 40))
    table = table_of(data, rows)
    labels = data.draw(st.sampled_from([["dx"], ["dx"], ["stage"], ["score"], ["dx", "stage"], []]))
    confounds = data.draw(st.lists(st.sampled_from(["age[/mm]", "site"]), min_size=1, max_size=2, unique=True))
    width = 3 if labels == ["stage"] else data.draw(st.sampled_from([0, 0, 1, 2]))
    outputs, plain = data.draw(numbers(rows, width))
    options: dict[str, Any] = {
        "person": data.draw(st.sampled_from([None, None, "who"])),
        "fold": data.draw(st.sampled_from([None, None, "fold"])),
        "features": data.draw(st.sampled_from([None, None, np.arange(2.0 * rows).reshape(rows, 2)])),
    }
    if data.draw(st.integers(0, 9)) == 0:
        seed, many = data.draw(st.sampled_from([(np.int64(3), 19), (0, np.int64(19)), (1.5, 19), (True, "many")]))
        options |= {"seed": seed, "permutations": many}
    found = dc.audit(outputs, table, confounds=confounds, labels=labels, embedding=False, **{**QUICK, **options})
    if plain is None:
        assert np.asarray(outputs).dtype.kind == "U"  # text names predicted classes
        return "read"
    assert [item.confound for item in found.verdicts if item.space == "outputs"] == confounds
    for row in found.rows:
        low, high = RANGES.get(row.statistic, (-math.inf, math.inf))
        assert not row.value < low, row
        assert not row.value > high + 1e-9, row
        assert not row.low > row.value + 1e-9, row
        assert not row.high < row.value - 1e-9, row
        assert not row.p <= 0, row
        assert not row.p > 1, row
        assert abs(row.value) != math.inf, row
    json.loads(found.to_json(), parse_constant=lambda word: 1 / 0)
    assert "<i>C" not in found.to_html()
    assert "nan" not in repr(found).replace("dominant", "")
    if labels == ["dx"] and plain.size == rows and isinstance(table["dx"], np.ndarray) and options["fold"] is None:
        value = [row.value for row in found.where(model="model", space="outputs", confound="", statistic="auc")]
        up = table["dx"]
        if value and up.dtype.kind == "i" and set(up.tolist()) == {0, 1}:
            expected = auc(plain.ravel(), up)
            assert math.isclose(value[0], expected, abs_tol=1e-9), (value, expected)
    return "read"
