"""Is the simulated cohort kind to a linear design? The MRI experiment with one thing changed at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from deconfound.data import digest
from deconfound_lab.cohort.strengths import VARIANTS
from deconfound_lab.harness import Cell, Experiment, Finished, Page, Section, Signals, Table
from deconfound_lab.harness.estimates import Value, over_seeds, rounded
from deconfound_lab.harness.provenance import distinct, made_by, trainings
from deconfound_lab.mri.experiment import MriExperiment
from deconfound_lab.mri.measures import both_right
from deconfound_lab.mri.plan import ARMS, Part, Plan
from deconfound_lab.mri.summary import left_within
from deconfound_lab.mri.tables import ORACLE, PLAIN

OURS = ("pmdn", "pmdn-balanced")
BASE = Plan(parts=(Part((PLAIN, *OURS, ORACLE), (160,), 1),))
REPEATS = {
    "Table 1": BASE,
    **{f"Table 1, cohort seed {seed}": replace(BASE, seed=seed, start=0) for seed in (10, 20)},
    **{f"Table 1, initialisation {start}": replace(BASE, start=start) for start in (1, 2)},
}
"""The paper's cohort again: what differs between them is what chance does."""

FILTERS = "filters 3-6-9-6"
_PUBLISHED = (PLAIN, "mdn", "pmdn-paper", *OURS, ORACLE)
PLANS = {
    **REPEATS,
    **{name: replace(BASE, variant=name) for name in VARIANTS},
    FILTERS: replace(BASE, filters=(3, 6, 9, 6), parts=(Part(_PUBLISHED, (20, 160), 1),)),
}
"""Every condition, by its name; each plan has one fold."""

NOT_RUN = "not run yet"
_LEAD = (
    "Accuracy on independent people, fold 0 of five; 95 % intervals over these people, paired. Gain: over the plain "
    "network. Of the way: of the points from it to the oracle, which learns from people in whom labels are independent "
    "of the confounds. Left: mean correlation with the confounds within diagnostic groups of the test fold."
)
_RULE = (
    " Against Table 1: whether the points gained lie where a further run would lie 19 times of 20, by the runs with "
    "other seeds and initialisations (t interval)."
)
_HEAD = ("condition", "arm", "accuracy", "plain", "oracle", "gain, points", "of the way", "left", "against Table 1")


class RobustnessExperiment(Experiment):
    """The trainings of several MRI experiments, one for each condition.

    Args:
        device: Where they are trained.
        plans: The conditions by name; one fold each.
        cache: Where the simulated volumes are stored.
        show: Whether a bar is shown while volumes are simulated.
    """

    modules: ClassVar[tuple[str, ...]] = MriExperiment.modules

    def __init__(
        self,
        device: str = "cpu",
        *,
        plans: Mapping[str, Plan] = PLANS,
        cache: str | Path | None = None,
        show: bool = False,
    ) -> None:
        self.plans, self.device, self.cache, self.show = dict(plans), device, cache, show
        self._cohorts = {name: self._make(name).data for name in self.plans}
        self.data = digest(self._cohorts)
        self._loaded: dict[str, MriExperiment] = {}

    @property
    def definition(self) -> Mapping[str, Any]:
        """Conditions have nothing in common but the kind of experiment; each cell says its own."""
        return {"experiment": "robustness of the MRI experiment"}

    def cells(self) -> list[Cell]:
        """Condition by condition, so that volumes are loaded once."""
        found = []
        for condition, plan in self.plans.items():
            settings = {name: value for name, value in plan.to_dict().items() if name not in ("parts", "bootstraps")}
            for batch, fold, arm in plan.trainings():
                own = {"name": arm, "batch": batch, "fold": fold, "arm": asdict(ARMS[arm])}
                of_all = {"condition": condition, "plan": settings, "data": self._cohorts[condition]}
                found.append(Cell(_key(condition, batch, arm), {**own, **of_all}))
        return found

    def compute(self, cell: Cell, signals: Signals) -> dict[str, Any]:
        """One training of a condition, by the MRI experiment itself."""
        condition = cell.definition["condition"]
        if condition not in self._loaded:  # one at a time: volumes of all conditions are too many for a GPU
            self._loaded = {condition: self._make(condition)}
        return self._loaded[condition].compute(cell, signals)

    def summarise(self, finished: Mapping[str, Finished], failures: Mapping[str, str]) -> dict[str, Any]:
        """Of every training its accuracy on independent people, what it gained, and what is left of the confounds."""
        sources = distinct(each.provenance for each in finished.values())
        rows: list[dict[str, Any]] = []
        for condition, plan in self.plans.items():
            keys = {(batch, arm): _key(condition, batch, arm) for batch, _, arm in plan.trainings()}
            done = {place: finished[key] for place, key in keys.items() if key in finished}
            if done:
                rows += [{"condition": condition, **row} for row in _measured(self._make(condition), done, sources)]
        plans = {name: plan.to_dict() for name, plan in self.plans.items()}
        found: dict[str, Any] = rounded({"plans": plans, "provenance": sources, "failures": failures, "rows": rows})
        return found

    @classmethod
    def page(cls, results: Mapping[str, Any], folder: Path) -> Page:
        """One table of the cohorts, one of the paper's filters."""
        cohorts = [name for name in results["plans"] if name != FILTERS]
        shown = [Section("One thing at a time", _LEAD + _RULE, conditions_table(results, cohorts))]
        if FILTERS in results["plans"]:
            shown.append(Section("The paper's filters", _LEAD, conditions_table(results, [FILTERS])))
        counts = trainings(results["provenance"], [(row["source"], row["seconds"]) for row in results["rows"]])
        made = made_by(results["provenance"], counts, cls.modules)
        failed = [f"Failed: {name}: {text}" for name, text in results["failures"].items()]
        return Page("MRI experiment", "One thing changed at a time", sentence(results), shown, [*made, *failed])

    def _make(self, condition: str) -> MriExperiment:
        plan = self.plans[condition]
        return MriExperiment(device=self.device, plan=plan, cache=self.cache, show=self.show)


def _key(condition: str, batch: int, arm: str) -> str:
    return f"{condition}: {arm}, batch {batch}"


def _measured(
    experiment: MriExperiment, done: Mapping[tuple[int, str], Finished], sources: Sequence[Mapping[str, Any]]
) -> Iterable[dict[str, Any]]:
    """One row for each training, refitted where it can be; differences are paired over the independent people."""
    people, plan = experiment.independent, experiment.plan
    right = {
        place: both_right(each.result["independent"], people, np.arange(len(people))).astype(np.float64)
        for place, each in done.items()
    }
    for (batch, arm), each in done.items():
        plain, oracle = (right.get((batch, name)) for name in (PLAIN, ORACLE))
        yield {
            "batch": batch,
            "arm": arm,
            "accuracy": asdict(over_seeds(right[batch, arm].tolist())),
            "gained": None if plain is None else asdict(over_seeds((right[batch, arm] - plain).tolist())),
            "way": None if plain is None or oracle is None else float((oracle - plain).mean()),
            "left": asdict(left_within([each.result], experiment.cohort, plan.bootstraps)[1]),
            "best": each.result["best"],
            "seconds": each.result["seconds"],
            "source": sources.index(each.provenance),
        }


def expected(results: Mapping[str, Any], arm: str) -> Value | None:
    """Where the points that an arm gains would lie in a further run on Table 1; None before all of those are there."""
    rows = [row for row in results["rows"] if row["condition"] in REPEATS and row["arm"] == arm and row["gained"]]
    if len(rows) < len(REPEATS):
        return None
    mean = over_seeds([row["gained"]["mean"] for row in rows])
    wider = (mean.high - mean.mean) * math.sqrt(len(rows) + 1)  # of one more value, not of the mean
    return Value(mean.mean, mean.mean - wider, mean.mean + wider)


def against(results: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Whether a condition changes what an arm gains by more than chance does."""
    further = expected(results, row["arm"])
    if row["condition"] not in VARIANTS or further is None or row["gained"] is None:
        return "–"
    gained = row["gained"]["mean"]
    return "**less**" if gained < further.low else "more" if gained > further.high else "alike"


def conditions_table(results: Mapping[str, Any], conditions: Sequence[str]) -> Table:
    """A line for each arm but plain network and oracle, which stand beside it; what is missing says so."""
    found = {(row["condition"], row["batch"], row["arm"]): row for row in results["rows"]}
    lines = []
    for name in conditions:
        for part in results["plans"][name]["parts"]:
            several = len(part["batch_sizes"]) > 1
            for batch in part["batch_sizes"]:
                ends = [_accuracy(found.get((name, batch, arm))) for arm in (PLAIN, ORACLE)]
                for arm in (each for each in part["arms"] if each not in (PLAIN, ORACLE)):
                    row = found.get((name, batch, arm))
                    shown = ["–"] * 4 if row is None else _differences(results, row)
                    where = f"{name}, batch {batch}" if several else name
                    lines.append([where, ARMS[arm].title, _accuracy(row), *ends, *shown])
    ranges = {arm: expected(results, arm) for arm in OURS if REPEATS.keys() <= set(conditions)}
    for arm, further in ranges.items():
        if further is not None:
            points = further.shown("+.1f", 100)
            lines.append(["a further run on Table 1", ARMS[arm].title, *[""] * 3, points, *[""] * 3])
    return Table(_HEAD, lines)


def _accuracy(row: Mapping[str, Any] | None) -> str:
    return NOT_RUN if row is None else Value(**row["accuracy"]).shown(".1%")


def _differences(results: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    left = Value(**row["left"]).shown(".3f")
    if row["gained"] is None:
        return ["–", "–", left, "–"]
    gained = Value(**row["gained"])
    share = f"{gained.mean / row['way']:.0%}" if row["way"] and row["way"] > 0 else "–"
    return [gained.shown("+.1f", 100), share, left, against(results, row)]


def sentence(results: Mapping[str, Any]) -> str:
    """In how many of the less kind cohorts each of ours gains less, from the numbers alone."""
    parts = []
    for arm in OURS:
        rows = [row for row in results["rows"] if row["condition"] in VARIANTS and row["arm"] == arm and row["gained"]]
        verdicts = [against(results, row) for row in rows]
        if rows and "–" not in verdicts:
            ahead = sum(row["gained"]["low"] > 0 for row in rows)
            parts.append(
                f"{ARMS[arm].title} is ahead of the plain network (interval above 0) in {ahead} of {len(rows)} less "
                f"kind cohorts, and gains less than on Table 1 in {verdicts.count('**less**')}."
            )
    return " ".join(parts) or "Too little is trained to say anything yet."
