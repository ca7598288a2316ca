"""From the trainings to `results.json`: every arm measured and audited, and nothing kept about a single person."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from deconfound.auditing.audit import audit
from deconfound.errors import DeconfoundWarning
from deconfound.training.cpu import threads
from deconfound_lab.oasis.linear import linear_members
from deconfound_lab.oasis.member import Outcome
from deconfound_lab.oasis.people import Scanned, on_device
from deconfound_lab.oasis.plan import Plan
from deconfound_lab.oasis.results import OLD, measure
from deconfound_lab.oasis.scores import Cells, People, Scores, fold_of_scans, people_of, score

# Ridge regression reads voxels of this edge: finer ones make it slower and no better.
LINEAR_EDGE = 32


def summarise(plan: Plan, people: Scanned, outcomes: Mapping[tuple[int, str, int], Outcome]) -> dict[str, Any]:
    """Measure and audit every arm, a linear model, and age by itself."""
    volumes = on_device(people, min(LINEAR_EDGE, plan.size), torch.device("cpu"), plan.task)
    cells: Cells = {**outcomes, **linear_members(plan, volumes)}
    arms = ("linear", *plan.arms)
    persons = people_of(people.table, fold_of_scans(cells, plan, "linear", len(people)))
    scores = {arm: score(cells, plan, arm, people.table, persons) for arm in arms}
    lines = [measure("age", persons.table["age"], persons.table, plan.bootstraps)]
    for arm, found in scores.items():
        for afterwards, values in ((False, found.trained), (True, found.afterwards)):
            lines.append(measure(arm, values, persons.table, plan.bootstraps, afterwards, found.seconds))
    counted = {"scans": len(people), "people": len(persons.table["age"]), **_counts(persons)}
    return {"counts": counted, "lines": [line.to_dict() for line in lines], "audit": _audit(plan, scores, persons)}


def _audit(plan: Plan, scores: dict[str, Scores], persons: People) -> dict[str, Any]:
    """What `dc.audit` says of the scores, and of the hidden features of the networks."""
    options: dict[str, Any] = {
        "confounds": ["age", "sex"], "labels": ["dementia"], "fold": "fold", "embedding": False,
        "permutations": plan.permutations, "bootstraps": max(40, plan.permutations),
    }  # fmt: skip
    features = {arm: found.features for arm, found in scores.items() if found.features.shape[1]}
    trained = {arm: found.trained for arm, found in scores.items() if arm in features}
    after = {f"{arm}, afterwards": found.afterwards for arm, found in scores.items()}
    linear = {arm: found.trained for arm, found in scores.items() if arm not in features}
    with threads(1), warnings.catch_warnings():  # on more threads, so few rows wait for each other
        warnings.simplefilter("ignore", DeconfoundWarning)  # the results keep them as notes
        found = [audit({**linear, **after}, persons.table, **options).to_dict()]
        if features:
            found.insert(0, audit(trained, persons.table, features=features, **options).to_dict())
    return {
        "about": found[0]["about"],
        "notes": [note for each in found for note in each["notes"]],
        "verdicts": [verdict for each in found for verdict in each["verdicts"]],
        "rows": [row for each in found for row in each["rows"] if not row["level"]],
    }


def _counts(persons: People) -> dict[str, int]:
    old, dementia = persons.table["age"] >= OLD, persons.table["dementia"] == 1
    return {
        "controls": int((~dementia).sum()),
        "dementia": int(dementia.sum()),
        "controls of 60 and older": int((~dementia & old).sum()),
        "dementia of 60 and older": int((dementia & old).sum()),
    }
