"""Malformed files, 300 of them: each gives a clear error or an audit, and nothing else."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from deconfound.auditing import audit_files
from deconfound.errors import DeconfoundError
from deconfound.metrics import Resampling

N = 24
RANDOM = np.random.default_rng(0)
TABLE = pd.DataFrame(
    {
        "id": [f"{row:03d}" for row in range(N)],
        "age": RANDOM.normal(70, 5, N).round(2),
        "site": np.array(["A", "B"])[RANDOM.integers(2, size=N)],
        "dx": np.array(["CN", "AD"])[np.arange(N) % 2],
        "score_AD": RANDOM.normal(size=N).round(3),
        "name": [f"Smith-{row}" for row in range(N)],
    }
).astype(str)
CELLS = [
    *("", " ", "NA", "nan", "inf", "-inf", "1e400", "1e308", "-1e-320", "0x10", "1_000", "1,5"),
    *(
        "１２",
        "true",
        "<script>alert(1)</script>",
        "=cmd()",
        "\0",
        "\u202e",
        "9" * 400,
        "2020-01-01",
    ),
]
BYTES = [b"\0", b"\n", b'"', b",", b"\xff", b"\r", b"PK\3\4", b"\x93NUMPY"]


def audit(predictions: Path, table: Path) -> str:
    """Return "" for an audit, or the message of the refusal. Other errors fail the test."""
    try:
        report = audit_files(
            predictions,
            table=table,
            id="id" if predictions.suffix != ".npy" else None,
            confounds=["age", "site"],
            labels=["dx"],
            positive="AD",
            resampling=Resampling(19, 0),
            planted=None,
            probes=False,
        )
    except DeconfoundError as error:
        return str(error)
    assert len(report.verdicts) == 2
    assert report.about.rows <= N
    return ""


@pytest.mark.parametrize("column", ["id", "age", "site", "dx", "score_AD"])
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("rows", [[5], range(N)], ids=["one", "all"])
def test_odd_cells(tmp_path, column, cell, rows):
    table = TABLE.copy()
    table.loc[list(rows), column] = cell
    path = tmp_path / "people.csv"
    table.to_csv(path, index=False)
    message = audit(path, path)
    assert not message or repr(column) in message or "people.csv" in message
    assert "Smith" not in message


def file_contents() -> dict[str, bytes]:
    """Return sound predictions in each format."""
    scores = TABLE["score_AD"].astype(float).to_numpy()
    parquet, npy, npz = io.BytesIO(), io.BytesIO(), io.BytesIO()
    TABLE[["id", "score_AD"]].to_parquet(parquet)
    np.save(npy, scores)
    np.savez(npz, id=TABLE["id"].to_numpy(str), scores=scores)
    text = TABLE[["id", "score_AD"]].to_csv(index=False).encode()
    return {
        "m.csv": text,
        "m.npy": npy.getvalue(),
        "m.npz": npz.getvalue(),
        "m.parquet": parquet.getvalue(),
    }


CONTENTS = file_contents()


@pytest.mark.parametrize("name", CONTENTS)
def test_sound_files_are_audited(tmp_path, name):
    """The control of the test below."""
    (tmp_path / name).write_bytes(CONTENTS[name])
    TABLE.to_csv(tmp_path / "people.csv", index=False)
    assert audit(tmp_path / name, tmp_path / "people.csv") == ""


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("seed", range(25))
def test_damaged_files(tmp_path, name, seed):
    """Kills a reader without its `except`: damaged bytes end in errors of ten types."""
    random = np.random.default_rng(seed)
    content = CONTENTS[name]
    place = int(random.integers(len(content)))
    inserted = BYTES[seed % len(BYTES)]
    damaged = [
        content[:place],
        content[:place] + inserted + content[place:],
        content[:place] + inserted + content[place + len(inserted) :],
    ][seed % 3]
    (tmp_path / name).write_bytes(damaged)
    TABLE.to_csv(tmp_path / "people.csv", index=False)
    message = audit(tmp_path / name, tmp_path / "people.csv")
    assert "Smith" not in message
