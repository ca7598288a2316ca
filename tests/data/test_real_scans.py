"""The reader on the real scans of OASIS-1, where they are."""

import os
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from deconfound.data.scans import open_scans

OASIS = Path(os.environ.get("DECONFOUND_DATA", Path(__file__).parents[3] / "shared" / "data")) / "oasis1"

pytestmark = pytest.mark.skipif(
    not OASIS.exists(), reason="oasis1 is not there; set DECONFOUND_DATA to the folder that holds it"
)


@pytest.fixture
def few(tmp_path):
    """A folder of links to the scans of four people, two of whom have a second session."""
    twice = sorted(path.parts[-2] for path in OASIS.glob("sub-*/ses-2"))[:2]
    once = sorted(path.name for path in OASIS.glob("sub-*") if not (path / "ses-2").exists())[:2]
    root = tmp_path / "oasis"
    root.mkdir()
    lines = (OASIS / "participants.tsv").read_text().splitlines()
    rows = [line for line in lines if line.split("\t")[0] in (*twice, *once)]
    (root / "participants.tsv").write_text("\n".join([lines[0], *rows]) + "\n")
    for name in (*twice, *once):
        (root / name).mkdir()
        for path in sorted((OASIS / name).rglob("*_T1w.nii.gz")):
            link = root / path.relative_to(OASIS)
            link.parent.mkdir(parents=True)
            link.symlink_to(path)
    return root


def test_real_scans_are_read_with_their_rows_and_people(few, tmp_path):
    scans = open_scans(few, cache=tmp_path / "cache", progress=False)
    assert len(scans) == 6
    assert len(set(scans.table["person"])) == 4
    assert scans.table["session_id"].tolist().count("ses-2") == 2
    volumes = scans.read(np.arange(6))
    assert volumes.shape == (6, 1, 64, 64, 64)
    assert 0.2 < (volumes > 0).mean() < 0.35
    raw = nib.load(scans.paths[0]).get_fdata()
    assert np.corrcoef(raw.ravel(), volumes[0].ravel())[0, 1] > 0.999
    assert open_scans(few, cache=tmp_path / "cache", progress=False).made == 0


def test_sessions_of_one_person_look_more_alike_than_two_people(few, tmp_path):
    scans = open_scans(few, cache=tmp_path / "cache", shape=(32, 32, 32), progress=False)
    alike = np.corrcoef(scans.read(np.arange(6)).reshape(6, -1))
    person = scans.table["person"]
    same = person[:, None] == person
    np.fill_diagonal(alike, np.nan)
    assert np.nanmin(alike[same]) > np.nanmax(alike[~same])
