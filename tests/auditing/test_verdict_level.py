"""How often a verdict, not one of its tests, accuses an innocent model, and how often it finds a guilty one."""

import warnings

import numpy as np
import pytest
import torch

import deconfound as dc
from deconfound import metrics
from deconfound.auditing.scoring import audit_row
from deconfound.auditing.verdicts import normal_dcor_sqr, verdict

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


def verdict_on(rng, strength, label, people, rows):
    """The verdict on outputs whose correlation with a normal age is `strength` within the label."""
    person = np.repeat(np.arange(people), rows)
    age, noise = rng.normal(size=(2, people))
    truth = {"none": np.zeros(people), "classes": rng.integers(0, 2, people), "number": rng.normal(size=people)}[label]
    score = truth + strength * age + np.sqrt(1 - strength**2) * noise
    x, y = (torch.from_numpy(values[person])[:, None] for values in (score, age))
    few, units = metrics.Resampling(permutations=99, bootstraps=40), torch.from_numpy(person)
    if label == "number":
        found = metrics.residual_dcor_test(x, y, [metrics.column("label", truth[person])], units, few)
    else:
        found = metrics.dcor_test(x, y, truth[person], units, few)
    return verdict([audit_row("m", "outputs", "age", "", found)], [])


def share_of_promised_effects_found(label, people, rows, audits):
    """How often an effect is found that is as large as the median promise of verdicts on independent data."""
    rng = np.random.default_rng(0)
    innocent = [verdict_on(rng, 0.0, label, people, rows) for _ in range(15)]
    promised = np.median([item.detectable for item in innocent if item.grade == "none found"])
    strength = next(r for r in np.linspace(0, 1, 1001) if normal_dcor_sqr(r) >= promised)
    return np.mean([verdict_on(rng, strength, label, people, rows).found for _ in range(audits)])


@pytest.mark.parametrize(("label", "people", "rows"), [("none", 60, 1), ("classes", 80, 1), ("number", 60, 1)])
def test_an_effect_that_would_be_found_four_times_in_five_is(label, people, rows):
    # With a true share of 80 % less than 72 % of 120 audits come once in seventy times.
    assert 0.72 <= share_of_promised_effects_found(label, people, rows, 120) < 0.99


@pytest.mark.slow
@pytest.mark.parametrize("label", ["none", "classes", "number"])
@pytest.mark.parametrize(("people", "rows"), [(60, 1), (120, 1), (400, 1), (60, 3)])
def test_an_effect_that_would_be_found_four_times_in_five_is_in_four_hundred_audits(label, people, rows):
    # Several rows of a person raise the dcor² that is shown above the one that is planted here.
    assert 0.76 <= share_of_promised_effects_found(label, people, rows, 400) < (0.99 if rows == 1 else 1.0)


def test_a_level_of_zero_promises_nothing():
    found = metrics.Estimate("dcor_sqr", 0.0, 50, 0.0, 0.0, 1.0, 0.0, 0.0)
    item = verdict([audit_row("m", "outputs", "age", "", found)], [])
    assert (item.grade, item.detectable != item.detectable, "four times" in item.text) == ("none found", True, False)
