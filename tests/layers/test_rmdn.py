import numpy as np
import pytest
import torch

import deconfound as dc
from tests.conftest import make_cohort


def ridge_by_hand(cohort, rows, ridge):
    """Ridge least squares in white units with a free intercept, by an augmented system."""
    white = cohort.metadata.numpy()[rows] @ cohort.design.whitening
    q = white.shape[1]
    regressors = np.column_stack([white, np.ones(len(white))])
    prior = np.sqrt(ridge) * np.eye(q + 1)[:q]
    stacked = np.vstack([regressors, prior])
    targets = np.vstack([cohort.features.numpy()[rows], np.zeros((q, cohort.features.shape[1]))])
    return np.linalg.lstsq(stacked, targets, rcond=None)[0]


@pytest.mark.parametrize("sizes", [[1] * 60, [60], [7, 1, 22, 30], [59, 1]])
def test_rmdn_without_forgetting_is_ridge_least_squares_for_any_split(sizes):
    cohort = make_cohort(mean=5.0)
    layer = dc.RMDN(cohort.design, 5, forgetting=1.0, ridge=0.7).double()
    for rows in torch.arange(sum(sizes)).split(sizes):
        layer(cohort.features[rows], cohort.metadata[rows])
    expected = ridge_by_hand(cohort, slice(0, 60), 0.7)
    assert np.abs(layer.beta.numpy() - expected).max() < 1e-8


def test_forgetting_is_counted_per_sample():
    """Batches of 2 and of 20 forget the same amount about samples of long ago."""
    cohort = make_cohort(n=2000)
    betas = []
    for size in (2, 20):
        layer = dc.RMDN(cohort.design, 5, forgetting=0.99, ridge=1e-3).double()
        for number, rows in enumerate(torch.arange(cohort.n).split(size)):
            changed = cohort.features[rows] + (5.0 if number * size >= 1000 else 0.0)
            layer(changed, cohort.metadata[rows])
        betas.append(layer.beta.clone())
    assert (betas[0] - betas[1]).abs().max() < 0.15
    never = dc.RMDN(cohort.design, 5, forgetting=1.0, ridge=1e-3).double()
    for number, rows in enumerate(torch.arange(cohort.n).split(20)):
        never(cohort.features[rows] + (5.0 if number * 20 >= 1000 else 0.0), cohort.metadata[rows])
    assert (betas[0][-1] - never.beta[-1]).abs().min() > 2.0


def test_a_batch_of_which_no_row_fits_changes_nothing(cohort):
    layer = dc.RMDN(cohort.design, 5).double()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    layer(cohort.features[:8], cohort.metadata[:8], fit_on=torch.zeros(8, dtype=torch.bool))
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name]), name
