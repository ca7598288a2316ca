"""How often a verdict, not one of its tests, accuses an innocent model, and how often it finds a guilty one."""

import warnings

import numpy as np
import pytest

import deconfound as dc

INNOCENT, GUILTY = 60, 20


def share_found(planted, label, audits):
    """The share of audits whose verdict finds the site in outputs that are the label, noise and a planted effect."""
    found = 0
    for seed in range(audits):
        rng = np.random.default_rng([7, seed])
        site = rng.choice(["A", "B", "C"], 120)
        truth = rng.normal(60, 10, 120) + 3 * (site == "A")
        if label == "binary":
            truth = (truth > 61).astype(float)
        scale = truth.std()
        outputs = truth + scale * (rng.normal(0, 0.5, 120) + planted * (site == "A"))
        table = {"site": site, "label": truth}
        draws = {"permutations": 99, "bootstraps": 40, "seed": seed}
        audit = dc.audit(outputs, table, confounds=["site"], labels=["label"], embedding=False, **draws)
        found += audit.verdicts[0].grade not in ("none found", "no answer")
    return found / audits


@pytest.mark.parametrize("label", ["numeric", "binary"])
def test_a_verdict_rarely_accuses_a_model_that_knows_nothing_but_the_label(label):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dc.errors.DeconfoundWarning)
        # With a true rate of 7.5 % more than 17 % of 60 audits come once in two hundred times.
        assert share_found(0.0, label, INNOCENT) <= 0.17
        assert share_found(0.6, label, GUILTY) >= 0.8


def test_a_probe_alone_needs_more_than_the_level_of_the_main_test():
    from deconfound.auditing.verdicts import LEVEL, PROBE_LEVEL

    assert LEVEL + 2 * PROBE_LEVEL <= 0.075


def test_a_probe_has_permutations_enough_to_decide_alone():
    from deconfound.auditing.verdicts import PROBE_LEVEL

    rng = np.random.default_rng(0)
    age = rng.normal(size=60)
    found = dc.audit(age, {"age": age}, confounds=["age"], permutations=19, bootstraps=40, embedding=False)
    assert found.where(statistic="linear_probe_r2")[0].p <= PROBE_LEVEL
