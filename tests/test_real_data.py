"""Design and layers on real tables. They stay where they are: a test skips where they are absent."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import deconfound as dc

DATA = Path(os.environ.get("DECONFOUND_DATA", Path(__file__).parents[2] / "shared" / "data"))


def read(name, *parts):
    path = DATA.joinpath(name, *parts)
    if not path.exists():
        pytest.skip(f"{name} is not at {DATA}; set DECONFOUND_DATA to the folder that holds it")
    return pd.read_csv(path, sep="\t" if path.suffix == ".tsv" else ",")


@pytest.fixture
def abide():
    people = read("abide1", "participants.tsv")
    features = read("abide1", "features.csv").set_index("participant_id").loc[people["participant_id"]]
    features = features.loc[:, features.std() > 0].dropna(axis=1)
    standardised = (features - features.mean()) / features.std(ddof=0)
    return people, torch.from_numpy(standardised.to_numpy(np.float64).copy())


def between_sites(values, sites):
    """The mean share of the features' variance that lies between sites."""
    frame = pd.DataFrame(values.numpy())
    return (frame.groupby(np.asarray(sites)).transform("mean").var() / frame.var()).mean()


def test_twenty_sites_leave_the_features_of_abide(abide):
    people, features = abide
    design = dc.Design(confounds=["site", dc.Spline("age", 3), "sex"], keep=["diagnosis"]).fit(people)
    assert design.confound_directions == 19 + 3 + 1
    metadata = torch.from_numpy(design.encode(people, np.float64))
    layer = dc.PMDN(design, features.shape[1], step="average").double()  # features that stand still
    order = torch.Generator().manual_seed(0)
    for _ in range(30):
        for rows in torch.randperm(len(features), generator=order).split(32):
            layer(features[rows], metadata[rows])
    residual = layer.eval()(features, metadata)
    exact = dc.MDN(design, features.shape[1], gram="batch").double()(features, metadata)
    before, after, best = (between_sites(values, people["site"]) for values in (features, residual, exact))
    assert before > 0.1
    assert abs(after - best) < 0.01
    assert (residual - exact).norm() / (exact - exact.mean(0)).norm() < 0.05


def test_missing_values_of_oasis_are_refused_by_name_and_filled_on_request():
    people = read("oasis1", "participants.tsv")
    assert people["education"].isna().any()
    options = {"confounds": ["age", "sex", "education"], "keep": ["diagnosis"], "types": {"education": "numeric"}}
    with pytest.raises(dc.errors.TableError, match="column 'education' must have a value in every row"):
        dc.Design(**options).fit(people)
    design = dc.Design(**options, missing="mean").fit(people)
    empty = people["education"].isna().to_numpy()
    assert (design.encode(people)[empty, 2] == 0).all()
    (explained,) = design.diagnose().explained
    assert 0.2 < explained.by_each["age"] < 0.4  # r ≈ 0.54 between age and dementia
