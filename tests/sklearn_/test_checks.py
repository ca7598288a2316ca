"""scikit-learn's own estimator checks, all of them, with no expected failures."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from deconfound.sklearn import ConfoundResidualizer, DeconfoundedClassifier, DeconfoundedRegressor

FAST = {"epochs": 30, "lr": 0.02, "hidden": (16,)}

# The checks know nothing of confounds: what they fit says that it removes none.
pytestmark = pytest.mark.filterwarnings("ignore:.*was fitted without confounds:deconfound.errors.DeconfoundWarning")


@parametrize_with_checks([ConfoundResidualizer(), DeconfoundedClassifier(**FAST), DeconfoundedRegressor(**FAST)])
def test_scikit_learn_finds_no_fault(estimator, check):
    check(estimator)
