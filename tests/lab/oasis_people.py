"""Made-up people for the OASIS-1 experiment, and a plan that trains them in a second."""

import numpy as np

from deconfound_lab.oasis import Scanned
from deconfound_lab.oasis.plan import Plan

TINY = Plan(
    size=16, folds=2, members=2, arms=("baseline", "pmdn"), filters=(2, 2, 2, 2), epochs=1,
    age_df=1, permutations=19, bootstraps=40,
)  # fmt: skip


def made_up(people=60, seed=0):
    """Scans of people whose brightness falls with age and with dementia, which is found in the old; some come twice."""
    random = np.random.default_rng(seed)
    age = np.where(np.arange(people) % 3 == 0, random.uniform(20, 59, people), random.uniform(60, 90, people))
    dementia = ((age >= 60) & (random.random(people) < 0.5)).astype(np.int64)
    person = np.concatenate([np.arange(people), np.flatnonzero(age < 60)[:5]])
    volumes = np.zeros((len(person), 64, 64, 64), np.uint8)
    bright = 200 - age[person] - 30 * dementia[person] + random.normal(0, 3, len(person))
    volumes[:, 4:60, 4:60, 4:60] = bright[:, None, None, None].astype(np.uint8)
    sex = np.where(np.arange(people) % 2, "M", "F")
    table = {"age": age[person], "sex": sex[person], "dementia": dementia[person], "person": person}
    return Scanned(volumes, table, "made up")
