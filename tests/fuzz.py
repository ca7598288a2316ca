"""Hostile input without end: `python -m tests.fuzz --seconds 600` for all targets, and a short part of it in the suite.

The rule for every target: a `DeconfoundError`, or a right number. A raw exception, a warning of another library, or a
wrong number is a failure. A target is a function that takes hypothesis' `data`; what it returns is how the input was
taken ("refused" or "read"), so that a target that only ever refuses is noticed.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import logging
import struct
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import deconfound as dc
from deconfound.data import open_array, open_scans, read_table
from deconfound.design.balance import balance
from deconfound.errors import DeconfoundError, DeconfoundWarning

Target = Callable[[st.DataObject], str]
TARGETS: dict[str, Target] = {}


def target(run: Target) -> Target:
    """Register a target under its name; a DeconfoundError is a refusal."""

    def guarded(data: st.DataObject) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", DeconfoundWarning)
            try:
                return run(data) or "read"
            except DeconfoundError as error:
                return "refused" if str(error).strip() else "refused without a word"

    TARGETS[run.__name__] = guarded
    return guarded


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


@target
def text_table(data: st.DataObject) -> str:
    """A text file of cells, quotes, delimiters and line ends: refused, or as many cells in every column."""
    pieces = st.sampled_from(
        [
            ",",
            ";",
            "\t",
            "\n",
            "\r\n",
            "\r",
            '"',
            "a",
            "b",
            "1",
            "2.5",
            "3,5",
            "n/a",
            "nan",
            "TRUE",
            " ",
            "é",
            "\0",
            "﻿",
            "|",
            "=1",
        ]
    )
    content = "".join(data.draw(st.lists(pieces, max_size=60))).encode()
    if data.draw(st.integers(0, 19)) == 0:
        content += b"\xff\xfe"
    path = Path(data.draw(FOLDERS)) / f"t.{data.draw(st.sampled_from(['csv', 'tsv', 'txt', 'parquet']))}"
    path.write_bytes(content)
    found = read_table(path, data.draw(st.sampled_from([(), ("a",)])))
    assert len({len(column) for column in found.values()}) == 1
    assert all(found)
    assert all(len(column) for column in found.values())
    return "read"


@target
def written_table(data: st.DataObject) -> str:
    """What a strict writer wrote is read back cell for cell."""
    import csv

    width = data.draw(st.integers(2, 4))
    cell = st.text(st.sampled_from("ab1,;\"\t| 'é"), max_size=6)
    rows = data.draw(st.lists(st.lists(cell, min_size=width, max_size=width), min_size=1, max_size=8))
    text = io.StringIO()
    names = [f"n{i}" for i in range(width)]
    csv.writer(text).writerows([names, *rows])
    path = Path(data.draw(FOLDERS)) / "w.csv"
    path.write_text(text.getvalue(), newline="")
    found = read_table(path, names)
    expected = [[None if c.strip() in ("", "n/a", "nan") else c.strip() for c in row] for row in rows]
    assert [list(row) for row in zip(*(found[name].tolist() for name in names), strict=True)] == expected
    return "read"


@target
def array_file(data: st.DataObject) -> str:
    """An NPY or NPZ with bytes changed or cut."""
    content = io.BytesIO()
    kind = data.draw(st.sampled_from(["f4", "f8", "i2", "c8", "U3", "?"]))
    values = np.arange(24).astype(kind).reshape(6, 2, 2)
    (np.savez if data.draw(st.booleans()) else np.save)(content, values)
    folder = Path(data.draw(FOLDERS))
    (folder / "x.npz").write_bytes(_damaged(data, content.getvalue()))
    (folder / "x.csv").write_text("dx\n" + "1\n" * 6)
    source = open_array(folder / "x.npz", table=folder / "x.csv")
    assert source.read(np.arange(6)).dtype == np.float32
    return "read"


@target
def scan_header(data: st.DataObject) -> str:
    """A NIfTI whose header or voxels are changed or cut: refused, or a volume in 0 … 1."""
    shape = data.draw(st.one_of(st.just([4, 5, 3]), st.lists(st.integers(-3, 6), min_size=1, max_size=5)))
    header = bytearray(352)
    struct.pack_into("<i", header, 0, 348)
    struct.pack_into("<8h", header, 40, *([len(shape), *shape] + [1] * 7)[:8])
    kind, bits = data.draw(st.sampled_from([(2, 8), (4, 16), (16, 32), (64, 64), (32, 64), (128, 24)]))
    struct.pack_into("<hh", header, 70, kind, bits)
    struct.pack_into("<8f", header, 76, *[data.draw(st.sampled_from([1.0, 0.0, -1.0, float("nan"), 1e30]))] * 8)
    struct.pack_into("<f", header, 108, 352.0)
    header[344:348] = b"n+1\0"
    size = int(np.prod([max(edge, 0) for edge in shape])) * bits // 8
    content = bytes(header) + np.random.default_rng(0).integers(0, 60, size, dtype=np.uint8).tobytes()
    folder = Path(data.draw(FOLDERS))
    content = _damaged(data, content)
    (folder / "s.nii.gz").write_bytes(gzip.compress(content, 1))
    (folder / "s.nii").write_bytes(content)
    name = data.draw(st.sampled_from(["s.nii", "s.nii.gz"]))
    scans = open_scans(folder, table={"path": [name]}, shape=(3, 3, 3), cache=folder / "c", jobs=1, progress=False)
    volume = scans.read([0])
    assert volume.shape == (1, 1, 3, 3, 3)
    assert volume.min() >= 0
    assert volume.max() <= 1
    return "read"


def _damaged(data: st.DataObject, content: bytes) -> bytes:
    changed = bytearray(content)
    if data.draw(st.booleans()):
        return content
    for _ in range(data.draw(st.integers(0, 3))):
        if changed:
            changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    return bytes(changed[: data.draw(st.integers(0, len(changed)))] if data.draw(st.integers(0, 3)) == 0 else changed)


logging.disable()  # nibabel tells at length what it thinks of headers
FOLDERS = st.builds(lambda: _folder.name)
_folder = tempfile.TemporaryDirectory(prefix="fuzz-")


def fuzz(name: str, examples: int, seed: int | None = None) -> Counter[str]:
    """Run a target so many times; raises with the smallest failing input. Counts how inputs were taken."""
    taken: Counter[str] = Counter()

    def once(data: st.DataObject) -> None:
        taken[TARGETS[name](data)] += 1

    phases = (Phase.explicit, Phase.generate, Phase.target, Phase.shrink)
    run = given(st.data())(once)
    run = settings(
        max_examples=examples, deadline=None, database=None, derandomize=seed is None, phases=phases,
        suppress_health_check=list(HealthCheck), print_blob=False,
    )(run)  # fmt: skip
    if seed is not None:
        from hypothesis import seed as seeded

        run = seeded(seed)(run)
    run()
    return taken


def main() -> None:
    """Every target in turn until the time is up; the count of inputs goes to a file."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    total = {name: Counter[str]() for name in TARGETS}
    failures: dict[str, str] = {}
    end, seed = time.monotonic() + asked.seconds, 0
    while time.monotonic() < end and len(failures) < len(TARGETS):
        for name in [name for name in TARGETS if name not in failures]:
            try:
                total[name] += fuzz(name, 200, seed)
            except Exception as error:
                failures[name] = f"{type(error).__name__}: {error}"
        seed += 1
    report = {
        "version": dc.__version__,
        "seconds": asked.seconds,
        "inputs": {name: dict(sorted(taken.items())) for name, taken in total.items()},
        "failures": failures,
    }
    print(json.dumps(report, indent=1))
    if asked.out:
        asked.out.write_text(json.dumps(report, indent=1) + "\n")
    if failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
