"""Pipelines on ABIDE: sites leave the score. Skipped where the table is absent."""

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from deconfound.sklearn import ConfoundResidualizer, DeconfoundedClassifier
from tests.test_real_data import read

CONFOUNDS = ["site", "age", "sex"]


@pytest.fixture(scope="module")
def abide():
    people = read("abide1", "participants.tsv")
    features = read("abide1", "features.csv").set_index("participant_id").loc[people["participant_id"]]
    features = features.loc[:, features.std() > 0].dropna(axis=1).reset_index(drop=True)
    return pd.concat([features, people[CONFOUNDS]], axis=1), people["diagnosis"].to_numpy()


def between_sites(model, X, y):
    """The share of the score's variance that lies between sites within diagnostic groups, zero by chance."""
    score = pd.Series(model.decision_function(X), index=X.index)
    shares = []
    for group in np.unique(y):
        rows, sites = score[y == group], X["site"][y == group]
        inside = rows - rows.groupby(sites).transform("mean")
        shares.append(1 - inside.pow(2).sum() / (len(rows) - sites.nunique()) / rows.var())
    return float(np.mean(shares))


def validated(model, X, y, **scoring):
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    found = cross_validate(model, X, y, cv=folds, scoring=scoring, error_score="raise")
    return tuple(found[f"test_{name}"].mean() for name in scoring)


def test_a_probe_finds_the_site_in_the_features_and_no_longer_after_the_residualiser(abide):
    X, _ = abide
    probe = (StandardScaler(), LogisticRegression(C=0.01, max_iter=200))
    bare = make_column_transformer(("drop", CONFOUNDS), remainder="passthrough")
    (before,) = validated(make_pipeline(bare, *probe), X, X["site"], accuracy="accuracy")
    (after,) = validated(make_pipeline(ConfoundResidualizer(CONFOUNDS), *probe), X, X["site"], accuracy="accuracy")
    majority = X["site"].value_counts(normalize=True).max()
    assert before > 2 * majority
    assert after < majority + 0.03


def test_a_residualised_pipeline_still_tells_the_diagnosis(abide):
    line = (StandardScaler(), LogisticRegression(C=0.01, max_iter=500))
    (auc,) = validated(make_pipeline(ConfoundResidualizer(CONFOUNDS, keep="y"), *line), *abide, auc="roc_auc")
    assert auc > 0.6


def test_a_network_carries_less_of_the_sites_than_the_same_network_without_the_layer(abide):
    options = {"epochs": 10, "random_state": 0}
    scoring = {"auc": "roc_auc", "sites": between_sites}
    _, plain = validated(DeconfoundedClassifier(CONFOUNDS, layer=None, **options), *abide, **scoring)
    auc, sites = validated(DeconfoundedClassifier(CONFOUNDS, **options), *abide, **scoring)
    assert auc > 0.58
    assert sites < 0.75 * plain
