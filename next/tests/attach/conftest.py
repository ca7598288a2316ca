"""The cohort that most tests of this room use."""

import pytest

from tests.attach.cohort import Cohort, make_cohort


@pytest.fixture(scope="session")
def cohort() -> Cohort:
    """120 people; tests must not change it."""
    return make_cohort()
