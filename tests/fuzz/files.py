"""Files with bytes changed or cut: tables, arrays, scans."""

from __future__ import annotations

import gzip
import io
import logging
import struct
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from deconfound.data import open_array, open_scans, read_table
from tests.fuzz.harness import target

logging.disable()  # nibabel tells at length what it thinks of headers
FOLDERS = st.builds(lambda: _folder.name)
_folder = tempfile.TemporaryDirectory(prefix="fuzz-")


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
