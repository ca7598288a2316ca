"""The experiment's numbers, as they stand in `results.json`: all that tables and figures are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from deconfound.errors import RunError
from deconfound_lab.footing import Judged
from deconfound_lab.harness.estimates import Value, over_folds, rounded

OURS = "pmdn"
"""The arm that the others are compared with."""


@dataclass(frozen=True)
class Trial:
    """One training, measured.

    Attributes:
        fold: Whose test people.
        marginal: The paper's three correlations, by confound.
        within: The same within diagnostic groups.
        groups: The accuracy in each diagnostic group.
        independent: The mean of the four groups' accuracies among people whose labels are independent of the confounds.
        best: The epoch that is tested.
        validation: Validation loss under weights that make labels and confounds independent.
        seconds: Of training.
        source: Which entry of the provenance it comes from.
    """

    fold: int
    marginal: Mapping[str, float]
    within: Mapping[str, float]
    groups: Mapping[str, float]
    independent: float
    best: int
    validation: float
    seconds: float
    source: int

    @property
    def accuracy(self) -> float:
        """The mean of the four groups' accuracies."""
        return float(np.mean(list(self.groups.values())))

    @property
    def within_mean(self) -> float:
        """The mean of the three correlations within groups."""
        return float(np.mean(list(self.within.values())))


@dataclass(frozen=True)
class Line:
    """One arm at one batch size.

    Attributes:
        batch: The batch size.
        arm: Its name in the plan.
        judged: Refitted, or as trained; methods without coefficients are there once, as trained.
        trials: One for each fold that is trained.
        within: The three correlations within groups over all folds' test people, with bootstrap intervals.
        within_mean: The mean of the three: the smaller, the less of the confounds is left.
        share: Test people for each training person, for the intervals over folds.
    """

    batch: int
    arm: str
    judged: Judged
    trials: tuple[Trial, ...]
    within: Mapping[str, Value]
    within_mean: Value
    share: float

    @property
    def accuracy(self) -> Value:
        """The mean of the four groups' accuracies on the test folds."""
        return self._over_folds(lambda trial: trial.accuracy)

    @property
    def independent(self) -> Value:
        """The same on the independent people."""
        return self._over_folds(lambda trial: trial.independent)

    def marginal(self, name: str) -> Value:
        """The paper's correlation with a confound: within folds, then averaged."""
        found = self._over_folds(lambda trial: trial.marginal[name])
        return found if name == "site" else replace(found, low=max(found.low, 0.0))  # dcor² may be negative, |r| not

    def group(self, name: str) -> Value:
        """The accuracy on the test folds in a diagnostic group."""
        return _estimate({t.fold: t.groups[name] for t in self.trials if name in t.groups}, self.share)

    def beyond_half(self, plain: Line, oracle: Line) -> Value | None:
        """By how much accuracy on independent people passes the middle of plain network and oracle, over folds."""
        own, low, high = ({trial.fold: trial.independent for trial in line.trials} for line in (self, plain, oracle))
        both = sorted(own.keys() & low.keys() & high.keys())
        return _estimate({f: own[f] - (low[f] + high[f]) / 2 for f in both}, self.share) if both else None

    def minus(self, other: Line, measure: Callable[[Trial], float]) -> Value | None:
        """By how much a measure of this line is larger than the other's, paired over the folds of both."""
        own, theirs = ({trial.fold: measure(trial) for trial in line.trials} for line in (self, other))
        both = sorted(own.keys() & theirs.keys())
        return _estimate({fold: own[fold] - theirs[fold] for fold in both}, self.share) if both else None

    def _over_folds(self, measure: Callable[[Trial], float]) -> Value:
        return _estimate({trial.fold: measure(trial) for trial in self.trials}, self.share)


@dataclass(frozen=True)
class Cloud:
    """Test people of one fold in the plane, by their last hidden features.

    Attributes:
        arm: Whose features.
        batch: The batch size.
        fold: Whose test people.
        method: How the points were found.
        x: One coordinate of each person.
        y: The other.
        levels: The people's `site` and `sex`.
    """

    arm: str
    batch: int
    fold: int
    method: str
    x: Sequence[float]
    y: Sequence[float]
    levels: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Results:
    """The experiment's numbers.

    Attributes:
        plan: What is to be trained.
        data: The cohort's fingerprint.
        arms: Of every arm: its title, method, places and options.
        provenance: Where trainings come from.
        failures: Trainings that stopped with an error, and its text.
        lines: One for each batch size and arm of which something is trained.
        truth: The paper's three correlations of the true labels themselves, which are not zero.
        chance: The three correlations within groups of random scores: what is left of nothing.
        ceiling: The best accuracy without the confounds.
        ceiling_with_confounds: The best accuracy on the cohort with the site's help.
        table_one: The simulated Table 1, and the paper's.
        clouds: For the t-SNE figure.
    """

    plan: Mapping[str, Any]
    data: str
    arms: Mapping[str, Mapping[str, Any]]
    provenance: Sequence[Mapping[str, Any]]
    failures: Mapping[str, str]
    lines: tuple[Line, ...]
    truth: Mapping[str, float]
    chance: Mapping[str, float]
    ceiling: float
    ceiling_with_confounds: float
    table_one: Mapping[str, Any]
    clouds: tuple[Cloud, ...]

    @property
    def batches(self) -> list[int]:
        """Batch sizes of which something is trained."""
        return sorted({line.batch for line in self.lines})

    @property
    def present(self) -> list[str]:
        """Arms of which something is trained, in the plan's order."""
        return [arm for arm in self.arms if any(line.arm == arm for line in self.lines)]

    @property
    def mean_chance(self) -> float:
        """The mean of the three correlations within groups of random scores."""
        return sum(self.chance.values()) / len(self.chance)

    def find(self, batch: int, arm: str, judged: Judged | None = None) -> Line | None:
        """The line of a batch size and an arm, refitted where it can be, if something of it is trained."""
        found = {line.judged: line for line in self.lines if (line.batch, line.arm) == (batch, arm)}
        return found.get(judged) if judged else found.get("refitted", found.get("as trained"))

    @property
    def shown(self) -> list[Line]:
        """The lines of the tables: each batch size and arm once, refitted where it can be."""
        return [line for batch in self.batches for arm in self.present if (line := self.find(batch, arm)) is not None]

    def title(self, arm: str) -> str:
        """As in the tables."""
        return str(self.arms[arm]["title"])

    def missing(self) -> dict[tuple[int, str], list[int]]:
        """The folds that are not trained, by batch size and arm."""
        found: dict[tuple[int, str], list[int]] = {}
        for batch, arm, folds in self.planned():
            line = self.find(batch, arm)
            done = {trial.fold for trial in line.trials} if line else set()
            if left := [fold for fold in range(folds) if fold not in done]:
                found[batch, arm] = left
        return found

    def planned(self) -> list[tuple[int, str, int]]:
        """Batch size, arm and number of folds of all that is to be trained; the smallest batch first."""
        most: dict[tuple[int, str], int] = {}
        for part in self.plan["parts"]:
            for batch in part["batch_sizes"]:
                for arm in part["arms"]:
                    most[batch, arm] = max(part["folds"], most.get((batch, arm), 0))
        return sorted(((*key, folds) for key, folds in most.items()), key=lambda each: each[0])

    def to_dict(self) -> dict[str, Any]:
        """Plain values with six significant digits, as in `results.json`."""
        plain: dict[str, Any] = rounded(asdict(self))
        return plain

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Results:
        """What `to_dict` gave."""
        absent = [field.name for field in fields(cls) if field.name not in content]
        if absent:
            raise RunError(
                f"results.json must hold {', '.join(absent)}; got a file without. Make it again with `deconfound "
                "reproduce mri` in the folder of the trainings."
            )
        values = {field.name: content[field.name] for field in fields(cls)}
        values["lines"] = tuple(_read_line(line) for line in content["lines"])
        values["clouds"] = tuple(Cloud(**cloud) for cloud in content["clouds"])
        return cls(**values)


def _estimate(values: Mapping[int, float], share: float) -> Value:
    """The mean over folds; without an interval where fewer than three are trained, since it would say nothing."""
    found = over_folds(values, share)
    return found if len(values) > 2 else Value(found.mean, found.mean, found.mean)


def _read_line(content: Mapping[str, Any]) -> Line:
    return Line(
        content["batch"],
        content["arm"],
        content["judged"],
        tuple(Trial(**trial) for trial in content["trials"]),
        {name: Value(**value) for name, value in content["within"].items()},
        Value(**content["within_mean"]),
        content["share"],
    )
