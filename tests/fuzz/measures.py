"""Measures: numbers in every form that users hand over have the value of the same numbers in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import torch
from hypothesis import strategies as st

from deconfound import metrics
from deconfound.errors import DeconfoundError
from tests.fuzz.harness import target

# Forms that keep the numbers, forms that round them (to what is then their value), and forms that hold no numbers.
SAME = {
    "array": lambda x: x,
    "list": lambda x: x.tolist(),
    "big-endian": lambda x: x.astype(">f8"),
    "reversed": lambda x: x[::-1].copy()[::-1],
    "strided": lambda x: np.repeat(x, 2, axis=0)[::2],
    "frame": lambda x: pd.Series(x, index=range(9, 9 + len(x))) if x.ndim == 1 else pd.DataFrame(x),
    "tensor": torch.from_numpy,
    "with gradient": lambda x: torch.from_numpy(x).requires_grad_(),
    "expanded": lambda x: torch.from_numpy(x)[..., None].expand(*x.shape, 2)[..., 1],
    "unmasked": lambda x: np.ma.masked_array(x, False),
    "objects": lambda x: x.astype(object),
}
ROUNDED = {
    "single": lambda x: x.astype(np.float32),
    "half": lambda x: x.astype(np.float16),
    "bfloat16": lambda x: torch.from_numpy(x).bfloat16(),
    "small ints": lambda x: x.astype(np.int8),
    "booleans": lambda x: x > 0,
    "long ints": lambda x: torch.from_numpy(x).long(),
}
NO_NUMBERS = {
    "nan": lambda x: np.where(np.arange(x.size).reshape(x.shape) == 1, np.nan, x),
    "infinite": lambda x: np.where(np.arange(x.size).reshape(x.shape) == 1, -np.inf, x),
    "masked": lambda x: np.ma.masked_array(x, np.arange(x.size).reshape(x.shape) == 1),
    "dates": lambda x: np.full(x.shape, "2020-01-01", "datetime64[D]"),
    "complex": lambda x: x + 1j,
    "complex tensor": lambda x: torch.from_numpy(x + 1j),
    "text": lambda x: x.astype(str),
    "nothing": lambda x: None,
    "a word": lambda x: "age[/mm]",
    "empty": lambda x: x[:0],
    "ragged": lambda x: [[1.0], [1.0, 2.0], *x[2:].tolist()],
    "deep": lambda x: np.stack([x, x], axis=-1)[None],
    "a number": lambda x: float(x.flat[0]),
    "gaps": lambda x: pd.Series([None, *x.ravel()[1:].tolist()], dtype="Float64"),
    "objects": lambda x: np.array([object()] * len(x)),
}


@st.composite
def numbers(draw: Any, rows: int, width: int = 0) -> tuple[Any, np.ndarray | None]:
    """Numbers in some form, and the same in float64 (None where the form holds none)."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    kind = draw(st.sampled_from(["plain", "plain", "plain", "ties", "constant", "huge", "tiny", "shifted"]))
    x = rng.normal(size=(rows, width) if width else rows)
    x = {
        "plain": lambda: x,
        "ties": lambda: x.round(),
        "constant": lambda: np.full_like(x, 3.25),
        "huge": lambda: 1e200 * x,
        "tiny": lambda: 1e-200 * x,
        "shifted": lambda: x + 1e6,
    }[kind]()
    form = draw(st.sampled_from(["same"] * 6 + ["rounded", "none"]))
    if form == "same":
        return draw(st.sampled_from(list(SAME.values())))(x), x
    if form == "none":
        return draw(st.sampled_from(list(NO_NUMBERS.values())))(x), None
    with np.errstate(all="ignore"):
        given = draw(st.sampled_from(list(ROUNDED.values())))(x if abs(x).max() < 100 else x / abs(x).max())
    return given, np.asarray(given.double() if torch.is_tensor(given) else given, dtype=np.float64)


def ordinary(x: np.ndarray) -> np.ndarray:
    """In units of the largest value: no measure here depends on the unit."""
    x = x.reshape(len(x), -1)
    x = x - x[:1]
    return x / max(abs(x).max(), 1e-300)


def u_dcor(x: np.ndarray, y: np.ndarray) -> float:
    """The definition: U-centred distance matrices."""

    def centred(values: np.ndarray) -> np.ndarray:
        a = np.sqrt(((values[:, None] - values[None]) ** 2).sum(-1))
        n, rows = len(a), a.sum(1)
        out = a - rows[:, None] / (n - 2) - rows / (n - 2) + rows.sum() / ((n - 1) * (n - 2))
        np.fill_diagonal(out, 0)
        return out

    a, b = centred(ordinary(x)), centred(ordinary(y))
    scale = math.sqrt((a**2).sum() * (b**2).sum())
    return float((a * b).sum() / scale) if scale > 1e-9 else 0.0


def correlation(x: np.ndarray, y: np.ndarray) -> float:
    a, b = (ordinary(v)[:, 0] - ordinary(v)[:, 0].mean() for v in (x, y))
    scale = math.sqrt((a**2).sum() * (b**2).sum())
    return float((a * b).sum() / scale) if scale > 1e-20 else 0.0


def auc(scores: np.ndarray, up: np.ndarray) -> float:
    pairs = [(a > b) + (a == b) / 2 for a in scores[up == 1] for b in scores[up == 0]]
    return float(np.mean(pairs)) if pairs else math.nan


def number(found: Any) -> float:
    return float(found.detach() if torch.is_tensor(found) else found)


def close(found: Any, expected: float, atol: float = 2e-5) -> None:
    value = number(found)
    assert math.isclose(value, expected, rel_tol=1e-4, abs_tol=atol) or (value != value and expected != expected), (
        value,
        expected,
    )


@target
def dependence(data: st.DataObject) -> str:
    """dcor² and correlations of any two forms: the value by definition."""
    rows = data.draw(st.integers(4, 12))
    width = data.draw(st.sampled_from([0, 0, 1, 3, 20]))
    (x, plain_x), (y, plain_y) = data.draw(numbers(rows, width)), data.draw(numbers(rows))
    asked = data.draw(st.sampled_from(["dcor", "covariance", "pearson", "ratio", "partial", "cramer"]))
    if asked == "dcor":
        found = metrics.u_distance_correlation_sqr(x, y)
        close(found, u_dcor(plain_x, plain_y))
        assert 0 <= number(metrics.distance_correlation_sqr(x, y)) <= 1 + 1e-6
    elif asked == "covariance":
        assert math.isfinite(number(metrics.u_distance_covariance_sqr(x, y)))
        assert number(metrics.distance_covariance_sqr(x, y)) >= -1e-6 * number(metrics.distance_covariance_sqr(x, x))
    elif asked == "pearson":
        found = metrics.pearson(x, y)
        flat = plain_x.reshape(rows, -1)
        for value, column in zip(np.atleast_1d(found.detach().numpy()), flat.T, strict=True):
            close(value, correlation(column, plain_y))
    elif asked == "ratio":
        assert 0 <= number(metrics.correlation_ratio(x, np.arange(rows) % 2).detach().max()) <= 1
    elif asked == "partial":
        assert abs(number(metrics.partial_distance_correlation(x, y, np.arange(rows) % 2))) <= 1 + 1e-6
    else:
        assert 0 <= number(metrics.cramers_v(y, np.arange(rows) % 2)) <= 1
        plain_x = plain_x if plain_y is not None else None
        return "read"
    assert plain_x is not None
    assert asked == "ratio" or plain_y is not None
    return "read"


@target
def performance(data: st.DataObject) -> str:
    """AUC, its split, R², Brier and calibration: the value by definition."""
    rows = data.draw(st.integers(2, 12))
    scores, plain = data.draw(numbers(rows))
    up = np.random.default_rng(data.draw(st.integers(0, 999))).integers(0, 2, rows)
    truth = data.draw(st.sampled_from([f for n, f in SAME.items() if n != "with gradient"]))(up.astype(float))
    asked = data.draw(st.sampled_from(["auc", "split", "r2", "probability", "accuracy", "delong"]))
    if asked == "auc":
        close(metrics.auc(scores, truth), auc(plain, up))
    elif asked == "split":
        split = metrics.auc_split(scores, truth, np.arange(rows) % 3)
        parts = [(split.share_within, split.within), (1 - split.share_within, split.between)]
        close(split.auc, auc(plain, up))
        if split.auc == split.auc:
            close(sum(share * value for share, value in parts if share > 1e-12), split.auc)
    elif asked == "r2":
        found = number(metrics.r_squared(truth, scores))
        assert found <= 1 + 1e-12 or found != found
    elif asked == "probability":
        brier = metrics.brier_score(scores, truth)
        close(brier, float(((plain - up) ** 2).mean()))
        assert 0 <= metrics.calibration(scores, truth).error <= 1
    elif asked == "accuracy":
        close(metrics.accuracy(scores, truth), float((plain == up).mean()))
    else:
        found = metrics.delong_difference(scores, np.arange(rows), truth)
        close(found.value, auc(plain, up) - auc(np.arange(rows), up))
        assert not found.p < 0
        assert not found.p > 1
    assert plain is not None
    return "read"


@target
def tests_of_dependence(data: st.DataObject) -> str:
    """Tests and probes: p-values in (0, 1], intervals around values, or a refusal."""
    rows = data.draw(st.integers(4, 30))
    outputs, plain = data.draw(numbers(rows, data.draw(st.sampled_from([0, 1, 2]))))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    kinds = {
        "number": lambda: rng.normal(size=rows),
        "huge": lambda: 1e200 * rng.normal(size=rows),
        "levels": lambda: rng.choice(["a", "b", "age[/mm]"], rows),
        "gaps": lambda: [None if rng.random() < 0.2 else float(v) for v in rng.normal(size=rows)],
    }
    confound, label = (metrics.column("c", kinds[data.draw(st.sampled_from(list(kinds)))]()) for _ in range(2))
    few = metrics.Resampling(19, 40, data.draw(st.integers(0, 3)))
    units = data.draw(st.sampled_from([None, None, "pairs"]))
    people = None if units is None else np.arange(rows) // 2
    asked = data.draw(st.sampled_from(["partial", "full", "probe", "dcor", "residual"]))
    if asked in ("partial", "full"):
        test = metrics.partial_confounder_test if asked == "partial" else metrics.full_confounder_test
        found = test(outputs, confound, [label], few, people)
    elif asked == "probe":
        found = metrics.probe(outputs, confound, units=people, folds=2, resampling=few)
    elif asked == "dcor":
        found = metrics.dcor_test(outputs, confound.encoded, np.arange(rows) % 2, people, few)
    else:
        found = metrics.residual_dcor_test(outputs, confound.encoded, [label], people, few)
    assert plain is not None
    assert not found.p <= 0
    assert not found.p > 1
    assert not found.low > found.value + 1e-9
    assert not found.high < found.value - 1e-9
    assert not abs(found.value) > 1 + 1e-6 or asked == "probe"
    return "read"


@target
def column(data: st.DataObject) -> str:
    """A column of any cells: as many values as cells, codes that are those of levels."""
    from tests.fuzz.tables import columns

    values = data.draw(columns(data.draw(st.integers(0, 12))))
    try:
        found = metrics.column("age[/mm]", values, data.draw(st.sampled_from([None, "numeric", "categorical"])))
    except DeconfoundError:
        return "refused"
    assert len(found.values) == len(values)
    if found.kind == "numeric":
        assert not found.values.isinf().any()
    else:
        codes = found.values[found.present]
        assert set(codes.tolist()) == set(range(len(found.levels)))
        assert len(set(found.levels)) == len(found.levels)
    if isinstance(values, np.ma.MaskedArray):
        assert found.present.tolist() == (~np.ma.getmaskarray(values)).tolist()
    return "read"
