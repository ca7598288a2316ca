"""Real data, where they are at hand: their numbers are those of their papers."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from deconfound.data import open_samples

ROOT = Path(__file__).parents[2]
FOLDERS = [ROOT.parent / "shared" / "data", ROOT.parents[1] / "shared" / "data"]
DATA = Path(os.environ.get("DECONFOUND_DATA") or next(filter(Path.exists, FOLDERS), FOLDERS[0]))


def need(name: str) -> Path:
    if not (DATA / name).exists():
        pytest.skip(f"needs the folder {name!r} in $DECONFOUND_DATA")
    return DATA / name


def test_heart() -> None:
    """Truth values, levels, numbers and empty cells of four hospitals."""
    path = need("heart") / "heart_disease_uci.csv"
    samples = open_samples(path, id="id", roles=["HeartDisease", "dataset", "Age", "sex"])
    assert samples.x.shape == (920, 20)
    assert samples.features is not None
    numeric = [name for name, levels in samples.features.columns.items() if levels is None]
    assert numeric == ["trestbps", "chol", "thalch", "oldpeak", "ca"]
    assert samples.features.columns["exang"] == ("False", "True")
    with_gaps = np.array(samples.features.names)[np.isnan(samples.x).any(axis=0)]
    assert {*with_gaps} == {*numeric, "fbs: True", "exang: True"}


def test_abide_joins_two_tables() -> None:
    folder = need("abide1")
    samples = open_samples(
        folder / "features.csv",
        folder / "participants.tsv",
        id="participant_id",
        roles=["diagnosis", "site", "age", "sex"],
    )
    assert len(samples) == 1035
    assert samples.features is not None
    assert "fiq" not in samples.features.columns
    assert np.isfinite(samples.x).all()
    assert samples.table["diagnosis"].value_counts().to_dict() == {"control": 530, "asd": 505}
    # Features follow the id: older people have larger ventricles, and an order at random has not.
    column = list(samples.features.names).index("Left-Lateral-Ventricle")
    assert np.corrcoef(samples.x[:, column], samples.table["age"].astype(float))[0, 1] > 0.2


@pytest.mark.slow
def test_oasis_has_436_scans_of_416_people() -> None:
    folder = need("oasis1")
    samples = open_samples(folder, roles=["age", "diagnosis", "participant_id"])
    assert samples.x.shape == (436, 1, 64, 64, 64)
    assert samples.table["participant_id"].nunique() == 416
    assert set(samples.table["session_id"]) == {"ses-1", "ses-2"}
    # The brain shrinks with age; rows of other people would show nothing.
    size = (samples.x.reshape(436, -1) > 60).mean(axis=1)
    assert np.corrcoef(size, samples.table["age"].astype(float))[0, 1] < -0.3


@pytest.mark.slow
def test_pacs(tmp_path: Path) -> None:
    folder = need("pacs64")
    with zipfile.ZipFile(folder / "images.zip") as archive:
        archive.extractall(tmp_path / "images")
    samples = open_samples(tmp_path / "images", folder / "labels.csv", id="file", roles=["domain"])
    assert samples.x.shape == (9991, 3, 64, 64)
    # Sketches have no colour, photographs do.
    spread = np.ptp(samples.x.astype(np.int16), axis=1).mean(axis=(1, 2))
    means = {name: spread[samples.table["domain"] == name].mean() for name in ("sketch", "photo")}
    assert means["sketch"] < 1 < 20 < means["photo"]
