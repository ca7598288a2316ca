"""ABIDE: a linear model of brain measures carries the site, and residualised outputs carry less of it."""

import os
from pathlib import Path

import numpy as np
import pytest

from deconfound import metrics
from deconfound.auditing import audit
from deconfound.auditing.files import read_file

DATA = Path(os.environ.get("DECONFOUND_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def abide():
    folder = DATA / "abide1"
    if not folder.exists():
        pytest.skip("the ABIDE tables are not here; set DECONFOUND_DATA to the folder that holds abide1/")
    people = read_file(folder / "participants.tsv", ["participant_id"]).columns
    brain = read_file(folder / "features.csv", ["participant_id"]).columns
    assert (people["participant_id"] == brain["participant_id"]).all()
    features = np.column_stack([values for name, values in brain.items() if name != "participant_id"]).astype(float)
    return people, (features - features.mean(0)) / (features.std(0) + 1e-9)


def test_site_and_age_are_found_in_brain_measures_and_leave_with_residualisation(abide):
    people, features = abide
    encoded = torch.cat([metrics.column(name, people[name]).encoded for name in ("age", "sex", "site")], dim=1)
    x = torch.from_numpy(features[:, :40])
    given = torch.cat([encoded, torch.ones(len(encoded), 1)], dim=1)
    residual = x - given @ torch.linalg.lstsq(given, x, driver="gelsd").solution
    result = audit(
        {"raw": x, "residualised": residual},
        people,
        confounds=["age", "site"],
        labels=["diagnosis"],
        permutations=39,
        bootstraps=40,
        embedding=False,
    )
    for confound in ("age", "site"):
        raw, left = result.where(confound=confound, statistic="within_group_dcor_sqr")
        assert raw.p == 1 / 40
        assert left.value < 0.25 * raw.value
        raw, left = (row for row in result.where(confound=confound) if row.statistic.startswith("linear_probe"))
        assert left.value < raw.value
