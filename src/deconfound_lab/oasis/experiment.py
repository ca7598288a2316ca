"""Dementia against control on the real scans of OASIS-1, with age and sex as confounds: every arm, fold and member."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch

import deconfound as dc
from deconfound.errors import DeconfoundWarning
from deconfound.training import threads
from deconfound_lab.harness import Cell, Experiment, Finished, Page, Signals
from deconfound_lab.harness.provenance import distinct
from deconfound_lab.mri.training import FoldTraining, Volumes
from deconfound_lab.oasis.measures import OLD, difference, measure
from deconfound_lab.oasis.page import make_page
from deconfound_lab.oasis.people import Scanned, on_device, read_people
from deconfound_lab.oasis.plan import ARMS, FULL, QUICK, Plan
from deconfound_lab.oasis.scores import Members, People, Scores, fold_of_scans, linear_members, people_of, score
from deconfound_lab.oasis.training import member_data, train_member

# Ridge regression reads voxels of this edge: finer ones make it slower and no better.
LINEAR_EDGE = 32
PLAIN = "baseline"


class OasisExperiment(Experiment):
    """Every training of a plan; measured when all of them are there.

    Args:
        data: The BIDS folder of OASIS-1, or a file that `write_people` made from it.
        quick: Smaller volumes and networks, two arms, for two cores; instead of all of it on a GPU.
        device: Where it is trained.
        plan: Used instead of the full or the quick one.
        show: Whether a bar is shown while scans are read.
    """

    modules: ClassVar[tuple[str, ...]] = ("oasis.people", "oasis.training", "oasis.scores", "oasis.measures")

    def __init__(
        self,
        data: str | Path | Scanned,
        quick: bool = False,
        device: str = "cpu",
        *,
        plan: Plan | None = None,
        show: bool = False,
    ) -> None:
        self.plan = plan or (QUICK if quick else FULL)
        self.people = data if isinstance(data, Scanned) else read_people(data, show)
        self.device = torch.device(device)
        self.seed, self.data = self.plan.seed, self.people.fingerprint
        self._data: dict[tuple[int, int, bool], FoldTraining] = {}

    @property
    def definition(self) -> Mapping[str, Any]:
        """The plan and the scans."""
        return {"plan": self.plan.to_dict(), "data": self.data}

    @cached_property
    def volumes(self) -> Volumes:
        """All scans on the device."""
        return on_device(self.people, self.plan.size, self.device, self.plan.question)

    def cells(self) -> list[Cell]:
        """One for each training."""
        return [
            Cell(
                f"{name}, fold {fold}, member {member}",
                {"name": name, "fold": fold, "member": member, "arm": asdict(ARMS[name])},
            )
            for member, name, fold in self.plan.trainings()
        ]

    def compute(self, cell: Cell, signals: Signals) -> dict[str, Any]:
        """Train one member; the arms of a fold and member share their data."""
        name, fold, member = (cell.definition[key] for key in ("name", "fold", "member"))
        key = fold, member, ARMS[name].balanced
        if key not in self._data:
            self._data[key] = member_data(self.plan, self.volumes, *key)
        return train_member(self.plan, self._data[key], name)

    def summarise(self, finished: Mapping[str, Finished], failures: Mapping[str, str]) -> dict[str, Any] | None:
        """Measure and audit every arm, a linear model, and age by itself; nothing is said about a single person."""
        if len(finished) < len(self.cells()):
            return None
        plan, table = self.plan, self.people.table
        volumes = on_device(self.people, min(LINEAR_EDGE, plan.size), torch.device("cpu"), plan.question)
        named = zip(self.cells(), plan.trainings(), strict=True)
        members: Members = {
            **{training: finished[cell.key].result for cell, training in named},
            **linear_members(plan, volumes),
        }
        persons = people_of(table, fold_of_scans(plan, table))
        scores = {arm: score(members, plan, arm, table, persons) for arm in ("linear", *plan.arms)}
        lines = [measure("age", "as trained", persons.table["age"][None], persons.table, plan.bootstraps)]
        for arm, found in scores.items():
            for judged, values in found.judged.items():
                lines.append(measure(arm, judged, values, persons.table, plan.bootstraps, found.seconds))
        return {
            **self.definition,
            "provenance": distinct(each.provenance for each in finished.values()),
            "counts": {"scans": len(self.people), **_counts(persons)},
            "lines": [line.to_dict() for line in lines],
            "differences": _differences(plan, scores, persons),
            "audit": _audit(plan, scores, persons),
        }

    @classmethod
    def page(cls, results: Mapping[str, Any], folder: Path) -> Page:
        """Scores, W-scores and the audit."""
        return make_page(results, cls.modules)


def _differences(plan: Plan, scores: dict[str, Scores], persons: People) -> list[dict[str, Any]]:
    """Every score against the plain network's own and against its W-score."""
    if PLAIN not in scores:
        return []
    found = []
    for arm, own in scores.items():
        for judged, values in own.judged.items():
            for against in ("as trained", "W-score"):
                if (arm, judged) != (PLAIN, against):
                    other = scores[PLAIN].judged[against]
                    less = difference(values, other, persons.table, plan.bootstraps)
                    plain = {name: asdict(value) for name, value in less.items()}
                    found.append({"arm": arm, "judged": judged, "against": against, **plain})
    return found


def _audit(plan: Plan, scores: dict[str, Scores], persons: People) -> dict[str, Any]:
    """What `dc.audit` says of the scores, and of the hidden features of the networks."""
    options: dict[str, Any] = {
        "confounds": ["age", "sex"], "labels": ["dementia"], "fold": "fold", "embedding": False,
        "permutations": plan.permutations, "bootstraps": max(40, plan.permutations),
    }  # fmt: skip
    features = {arm: found.features for arm, found in scores.items() if found.features.shape[1]}
    last = {arm: found.judged.get("refitted", found.judged["as trained"]).mean(0) for arm, found in scores.items()}
    trained = {arm: values for arm, values in last.items() if arm in features}
    others = {arm: values for arm, values in last.items() if arm not in features}
    others |= {f"{arm}, W-score": found.judged["W-score"].mean(0) for arm, found in scores.items()}
    with threads(1), warnings.catch_warnings():  # on more threads, so few rows wait for each other
        warnings.simplefilter("ignore", DeconfoundWarning)  # the results hold them as notes
        found = [dc.audit(others, persons.table, **options).to_dict()]
        if features:
            found.insert(0, dc.audit(trained, persons.table, features=features, **options).to_dict())
    return {
        "about": found[0]["about"],
        "notes": [note for each in found for note in each["notes"]],
        "verdicts": [verdict for each in found for verdict in each["verdicts"]],
        "rows": [row for each in found for row in each["rows"] if not row["level"]],
    }


def _counts(persons: People) -> dict[str, int]:
    old, dementia = persons.table["age"] >= OLD, persons.table["dementia"] == 1
    return {
        "people": len(old),
        "controls": int((~dementia).sum()),
        "dementia": int(dementia.sum()),
        "controls of 60 and older": int((~dementia & old).sum()),
        "dementia of 60 and older": int((dementia & old).sum()),
    }
