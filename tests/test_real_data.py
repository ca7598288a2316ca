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


def fitted(people, features):
    """The design of sites, ages and sexes, the metadata, and the residual of exact least squares."""
    design = dc.Design(confounds=["site", dc.Spline("age", 3), "sex"], keep=["diagnosis"]).fit(people)
    metadata = torch.from_numpy(design.encode(people, np.float64))
    return design, metadata, dc.MDN(design, features.shape[1], gram="batch").double()(features, metadata)


def follow(layer, features, metadata, epochs, batch=32):
    order = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for rows in torch.randperm(len(features), generator=order).split(batch):
            layer(features[rows], metadata[rows])


def test_twenty_sites_leave_the_features_of_abide(abide):
    people, features = abide
    design, metadata, exact = fitted(people, features)
    assert design.confound_directions == 19 + 3 + 1
    layer = dc.PMDN(design, features.shape[1], step="average").double()  # features that stand still
    follow(layer, features, metadata, epochs=30)
    residual = layer.eval()(features, metadata)
    before, after, best = (between_sites(values, people["site"]) for values in (features, residual, exact))
    assert before > 0.1
    assert abs(after - best) < 0.01
    assert (residual - exact).norm() / (exact - exact.mean(0)).norm() < 0.05


def test_the_default_memory_leaves_no_more_of_twenty_sites_than_an_average_so_long_must(abide):
    """β that forgets with share η of a batch of n has the variance η / (2 − η) · σ² / n along each white direction.

    Of these the residual shows one for each direction of the confounds. Batches without replacement vary less, a cap on
    η makes it smaller, and a lag behind features that stand still is none: the formula is a bound, but for chance.
    """
    people, features = abide
    design, metadata, exact = fitted(people, features)
    n, memory, prior = 32, 250, 30
    layer = dc.PMDN(design, features.shape[1]).double()
    follow(layer, features, metadata, epochs=4, batch=n)
    step = n / (memory + n + prior)
    bound = step / (2 - step) / n * design.confound_directions
    noise = (exact - exact.mean(0)).square().sum()
    left = ((layer.eval()(features, metadata) - exact).square().sum() / noise).item()
    assert left < bound
    assert ((features - exact - (features - exact).mean(0)).square().sum() / noise).item() > 2 * bound  # the control


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
