"""The MRI experiment with one thing changed at a time: what changes, how it is compared, and that it goes on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from deconfound_lab import simulate_cohort
from deconfound_lab.__main__ import filled_page
from deconfound_lab.harness import Cell, run_experiment
from deconfound_lab.mri.experiment import MriExperiment
from deconfound_lab.mri.plan import ARMS, Part, Plan
from deconfound_lab.mri.robustness import (
    FILTERS,
    NOT_RUN,
    OURS,
    PLANS,
    REPEATS,
    RobustnessExperiment,
    against,
    conditions_table,
    expected,
    sentence,
)  # fmt: skip
from tests.lab.docs import without_marks

TINY = Plan(
    size=16, people=120, parts=(Part(("baseline", "pmdn", "oracle"), (40,), 1),), folds=3, filters=(2, 2, 2, 2),
    epochs=1, least_steps=1, bootstraps=10,
)  # fmt: skip
PAGE = Path(__file__).parents[2] / "docs" / "results" / "mri-robustness.md"


def test_every_condition_differs_from_the_first_in_one_thing():
    first = PLANS["Table 1"].to_dict()
    changed = {name: {k for k, v in plan.to_dict().items() if v != first[k]} for name, plan in PLANS.items()}
    assert changed.pop("Table 1") == set()
    assert changed.pop(FILTERS) == {"filters", "parts"}
    for name, what in changed.items():
        # The further cohorts keep the first one's initialisation, which is named for it.
        assert what == ({"seed", "start"} if "seed" in name else {"start"} if "initialisation" in name else {"variant"})
    assert all(PLANS[name].start == 0 for name in changed if "seed" in name)
    assert {part.folds for plan in PLANS.values() for part in plan.parts} == {1}


def test_initialisation_and_cohort_have_seeds_of_their_own(tmp_path):
    def training(arm="baseline", **changes):
        experiment = MriExperiment(plan=replace(TINY, **changes), cache=tmp_path)
        data = experiment.training(0, ARMS[arm])
        return data, data.prepare(ARMS[arm], 1e-3).state_dict()

    def equal(one, other):
        return all(torch.equal(a, b) for a, b in zip(one.values(), other.values(), strict=True))

    first, weights = training()
    started, other = training(start=3)
    again, same = training(seed=5, start=0)
    assert first.fold.train.tolist() == started.fold.train.tolist()
    assert torch.equal(first.volumes.images, started.volumes.images)
    assert not equal(weights, other)
    assert equal(weights, same)
    assert not torch.equal(first.volumes.images, again.volumes.images)
    assert not equal(weights, training(seed=5)[1])
    learned = [training("oracle", start=start)[0].fold.train.tolist() for start in (0, 3)]
    assert learned[0] == learned[1]


def test_volumes_that_a_variant_does_not_change_are_drawn_once(tmp_path):
    """Wrong tables leave the brains alone; sex is tied in Table 1's people, and only independent ones are elsewhere."""
    for independent, variant in ((False, "swapped"), (True, "swapped"), (False, "unseen-site"), (True, "sex-tied")):
        cache = tmp_path / f"{independent} {variant}"
        plain, other = (
            simulate_cohort(16, people=40, independent=independent, variant=each).keep(cache, progress=False)
            for each in (None, variant)
        )
        assert len(list(cache.rglob("*.npy"))) == 1
        np.testing.assert_array_equal(plain.read(np.arange(40)), other.read(np.arange(40)))
        assert (plain.fingerprint == other.fingerprint) == (variant != "swapped")
    simulate_cohort(16, people=40, variant="curved-age").keep(cache, progress=False)
    assert len(list(cache.rglob("*.npy"))) == 2


def test_each_condition_is_the_mri_experiment_on_its_own_cohort_and_goes_on(tmp_path):
    plans = {"Table 1": TINY, "swapped": replace(TINY, variant="swapped")}
    made = RobustnessExperiment(plans=plans, cache=tmp_path / "cache")
    nothing = run_experiment(made, tmp_path / "out", minutes=0)
    assert (nothing.finished, nothing.cells) == (0, 6)
    assert {row[2] for row in conditions_table(nothing.results, list(plans)).rows} == {NOT_RUN}
    run = run_experiment(made, tmp_path / "out")
    assert run.finished == 6
    rows = {(row["condition"], row["arm"]): row for row in run.results["rows"]}
    assert rows["Table 1", "baseline"]["gained"]["mean"] == 0
    alone = MriExperiment(plan=plans["swapped"], cache=tmp_path / "cache")
    by_hand = {}
    for arm in ("baseline", "pmdn"):
        found = alone.compute(Cell("", {"name": arm, "batch": 40, "fold": 0}), None)
        truth = np.stack([alone.independent.table[name] for name in ("hiv", "mci")], axis=1)
        by_hand[arm] = ((found["independent"] > 0) == truth).all(axis=1)
        assert rows["swapped", arm]["accuracy"]["mean"] == pytest.approx(by_hand[arm].mean(), rel=1e-5)
    gained = by_hand["pmdn"].astype(float) - by_hand["baseline"]
    half = 1.98 * gained.std(ddof=1) / np.sqrt(len(gained))
    assert rows["swapped", "pmdn"]["gained"]["mean"] == pytest.approx(gained.mean(), abs=1e-6)
    assert rows["swapped", "pmdn"]["gained"]["high"] == pytest.approx(gained.mean() + half, abs=2e-3)
    assert run.results["provenance"][0]["commit"]
    assert "6 trainings in " in (tmp_path / "out" / "report.html").read_text()


def made_up(**gains):
    """Rows of ours with known gains: those of the repeats, and those of variants."""
    gained = {**dict(zip(REPEATS, (0.10, 0.12, 0.08, 0.11, 0.09), strict=True)), **gains}
    ends = {"low": 0.6, "high": 0.7, "mean": 0.65}
    rows = [
        {"condition": name.replace("_", "-"), "batch": 160, "arm": arm, "accuracy": ends, "left": ends, "way": 0.2,
         "gained": {"mean": gain, "low": gain - 0.03, "high": gain + 0.03}, "best": 3, "seconds": 1.0, "source": 0}
        for name, gain in gained.items() for arm in OURS
    ]  # fmt: skip
    return {"plans": {name: plan.to_dict() for name, plan in PLANS.items()}, "rows": rows}


def test_a_cohort_changes_a_gain_where_a_further_run_on_table_one_would_not_lie():
    results = made_up(curved_age=0.04, age_disease=0.06, swapped=0.15, sex_tied=0.02)
    # Student's 97.5 % point of 4 degrees of freedom is 2.776; the sd of the five is 0.0158.
    half = 2.776 * 0.015811 * np.sqrt(1 + 1 / 5)
    further = expected(results, "pmdn")
    assert (further.low, further.high) == pytest.approx((0.1 - half, 0.1 + half), abs=1e-4)
    found = {row["condition"]: against(results, row) for row in results["rows"]}
    assert {found[name] for name in REPEATS} == {"–"}
    assert [found[name] for name in ("curved-age", "age-disease", "swapped", "sex-tied")] == [
        "**less**", "alike", "more", "**less**",
    ]  # fmt: skip
    line = next(row for row in conditions_table(results, list(PLANS)).rows if row[0] == "curved-age")
    assert line[1:7] == ["PMDN (ours)", "65.0% (60.0% to 70.0%)", NOT_RUN, NOT_RUN, "+4.0 (+1.0 to +7.0)", "20%"]
    assert sentence(results).startswith(
        "PMDN (ours) is ahead of the plain network (interval above 0) in 3 of 4 less kind cohorts, and gains less than "
        "on Table 1 in 2."
    )
    results["rows"] = [row for row in results["rows"] if row["condition"] != "Table 1"]
    assert expected(results, "pmdn") is None
    assert sentence(results) == "Too little is trained to say anything yet."


def test_the_page_in_the_docs_is_that_of_the_committed_results():
    assert without_marks(PAGE.read_text()) == without_marks(filled_page("mri-robustness"))
