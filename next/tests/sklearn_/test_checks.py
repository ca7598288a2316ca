"""scikit-learn's own checks, on an estimator that removes something."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from deconfound.sklearn import ConfoundResidualizer

# Some checks have a constant first column, which the design leaves out with a warning.
pytestmark = pytest.mark.filterwarnings("ignore::deconfound.errors.DeconfoundWarning")

# The checks have columns of few whole numbers, so the kind of the confound is written down.
STRICT = ConfoundResidualizer([0], types={0: "numeric"})
LENIENT = ConfoundResidualizer([0], types={0: "numeric"}, unseen="mean")


def expected_failures(estimator):
    if estimator.unseen == "mean":
        return {"check_estimators_nan_inf": "a missing confound is the mean of the training rows"}
    return {}


@parametrize_with_checks([STRICT, LENIENT], expected_failed_checks=expected_failures)
def test_scikit_learn_finds_no_fault(estimator, check):
    """Acceptance 43 and fault 18: the configuration removes column 0."""
    check(estimator)
