"""scikit-learn's own estimator checks, all of them."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from deconfound.sklearn import ConfoundResidualizer, DeconfoundedClassifier, DeconfoundedRegressor

FAST = {"epochs": 30, "lr": 0.02, "hidden": (16,)}

# The checks know nothing of confounds: what they fit says that it removes none.
pytestmark = pytest.mark.filterwarnings("ignore:.*was fitted without confounds:deconfound.errors.DeconfoundWarning")


# A row of weight 2 and two rows are the same to the loss of a full batch, and not to a shuffle or to rows held out.
BY_BATCHES = {"check_sample_weight_equivalence_on_dense_data": "rows are held out and come in random batches"}


def expected_failures(estimator):
    return {} if isinstance(estimator, ConfoundResidualizer) else BY_BATCHES


@parametrize_with_checks(
    [ConfoundResidualizer(), DeconfoundedClassifier(**FAST), DeconfoundedRegressor(**FAST)],
    expected_failed_checks=expected_failures,
)
def test_scikit_learn_finds_no_fault(estimator, check):
    check(estimator)
