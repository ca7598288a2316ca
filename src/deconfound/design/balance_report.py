"""What weights cost and what they leave, reported before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deconfound.design.diagnosis import explained_share
from deconfound.design.propensity import Array, distance_correlation
from deconfound.errors import TableError

# With fewer effective rows of a class there is too little to learn it from.
FEWEST_EFFECTIVE = 10
# Weights that leave less than this share of a class's rows say that confounds nearly determine it.
DETERMINED = 0.5
# A label of which the confounds explain less than this is hardly tied to them.
WEAK_TIE = 0.02

QUESTION = (
    "Weights break the tie whatever its cause. Balance a confound that only came along with the label (site, scanner); "
    "do not balance away a mediator, through which the label itself acts, nor a collider, which label and confound "
    "both cause (who was recruited). No statistic can tell these apart."
)


@dataclass(frozen=True)
class NoOverlap:
    """A stratum in which a class of a label is absent, so that its rows teach nothing about the label.

    Attributes:
        label: The label.
        column: The confound.
        level: Its level.
        absent: The classes that the stratum lacks.
        rows: How many rows it has.
    """

    label: str
    column: str
    level: str
    absent: tuple[str, ...]
    rows: int

    def __str__(self) -> str:
        classes = " or ".join(self.absent)
        rows = "row teaches" if self.rows == 1 else "rows teach"
        where = f"{self.column} {self.level}: its {self.rows:,} {rows}"
        return f"no {self.label} {classes} at {where} nothing about {self.label}"


@dataclass(frozen=True)
class LabelBalance:
    """The weights of one label as they were fitted."""

    name: str
    classes: tuple[str, ...] | None
    codes: NDArray[Any]
    weight: Array
    lacking: tuple[NoOverlap, ...]
    how: str
    y: Array
    metadata: Array
    terms: tuple[str, ...]
    present: NDArray[np.bool_]
    separated: bool


@dataclass(frozen=True)
class LabelReport:
    """What the weights of one label cost and leave.

    Attributes:
        label: The label.
        how: Where `P(label | confounds)` comes from: "cells", "logistic" or "entropy".
        rows: Rows that have the label.
        effective: Effective sample size `(Σw)² / Σw²` of each class ("all" for a numeric label).
        effective_strata: The same for each level of each categorical confound.
        effective_people: The same over people, whose weights are added up; None without a column of people.
        largest: The largest weight, in multiples of the mean.
        tied_before: R² of the label on each confound, and on all of them ("all"), before weighting.
        tied_after: The same under the weights.
        dependence: Squared distance correlation before and after, for entropy weights, which see linear ties alone.
        no_overlap: Strata that lack a class.
        separated: Whether the confounds tell classes apart without error in some rows, whose weights are then near 0.
        prevalence: The share of each class, before weighting.
        weighted_prevalence: The same under the weights.
    """

    label: str
    how: str
    rows: int
    effective: Mapping[str, float]
    effective_strata: Mapping[str, Mapping[str, float]]
    effective_people: float | None
    largest: float
    tied_before: Mapping[str, float]
    tied_after: Mapping[str, float]
    dependence: tuple[float, float] | None
    no_overlap: tuple[NoOverlap, ...]
    separated: bool
    prevalence: Mapping[str, float]
    weighted_prevalence: Mapping[str, float]

    @property
    def answerable(self) -> bool:
        """Whether every class keeps at least 10 effective rows."""
        return min(self.effective.values()) >= FEWEST_EFFECTIVE

    @property
    def verdict(self) -> str:
        """What to make of it, in a sentence or two."""
        if not self.answerable:
            return " ".join(self._too_few())
        if self.tied_before["all"] < WEAK_TIE:
            return f"{self.label} is hardly tied to the confounds: weights would only cost rows."
        before, after = self.tied_before["all"], self.tied_after["all"]
        if after >= WEAK_TIE:
            return (
                f"Weights do not balance {self.label}: its tie to the confounds is {before:.1%} before and {after:.1%} "
                "after."
            )
        return f"{self.label} can be balanced: its tie to the confounds falls from {before:.1%} to {after:.1%}."

    def _too_few(self) -> list[str]:
        """A sentence on classes that were rare before any weighting, and one on those that the weights left few of."""
        before = {name: round(share * self.rows) for name, share in self.prevalence.items()}
        few = [name for name, size in self.effective.items() if size < FEWEST_EFFECTIVE]
        rare = [name for name in few if before[name] < FEWEST_EFFECTIVE]
        lost = [name for name in few if name not in rare]

        def rows(name: str) -> str:
            count = f"{before[name]:,} {'row' if before[name] == 1 else 'rows'}"
            return count if len(before) == 1 else f"{count} of {name}"

        sentences = []
        if rare:
            listed = ", ".join(map(rows, rare))
            start = f"{self.label} has too few rows to be learned, before any weighting: {listed}."
            sentences.append(f"{start} Add rows, or join classes.")
        if lost:
            listed = ", ".join(f"{self.effective[name]:.1f} of {rows(name)}" for name in lost)
            determined = any(self.effective[name] < DETERMINED * before[name] for name in lost)
            why = "the confounds nearly determine it in these rows" if determined else "there were few from the start"
            sentences.append(f"Too little is left to learn {self.label} from: weights leave {listed}; {why}.")
        return sentences

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {size:,.0f}" for name, size in self.effective.items())
        lines = [f"{self.label}: {self.rows:,} rows; effective sample size {sizes}; largest weight {self.largest:.1f}"]
        if self.effective_people is not None:
            lines.append(f"  effective people {self.effective_people:,.0f}")
        for column, levels in self.effective_strata.items():
            lines.append(f"  effective rows by {column}: {', '.join(f'{k} {v:,.0f}' for k, v in levels.items())}")
        ties = ", ".join(f"{n} {r2:.1%} → {self.tied_after[n]:.1%}" for n, r2 in self.tied_before.items())
        lines.append(f"  explained by the confounds before → after: {ties}")
        if self.dependence is not None:
            lines.append(f"  squared distance correlation {self.dependence[0]:.3f} → {self.dependence[1]:.3f}")
        lines += [f"  {item}" for item in self.no_overlap]
        if self.separated:
            lines.append("  some rows have one possible class given their confounds; their weight is near 0")
        return "\n".join([*lines, f"  {self.verdict}"])


@dataclass(frozen=True)
class Balance:
    """Weights of rows under which labels and confounds are independent, and what they cost; `str()` is a text to read.

    Attributes:
        kind: "overlap", "inverse" or "entropy".
        labels: One column of `weights` for each.
        weights: `(n, labels)`: each column has mean 1 over the rows that have the label, 0 elsewhere. One column per
            label, so that a site without a case of one label still teaches the other.
        row_weight: `(n,)`: the mean of the columns, for layers and refit, which take one weight per row. A level whose
            rows would all be left without weight has weight 1, and is named in `unweighted`.
        reports: What each label's weights cost and leave.
        unweighted: Levels that the labels' weights leave out, as `(column, level)`.
    """

    kind: str
    labels: tuple[str, ...]
    weights: Array
    row_weight: Array
    reports: tuple[LabelReport, ...]
    unweighted: tuple[tuple[str, str], ...]

    @property
    def answerable(self) -> bool:
        """Whether each label keeps enough effective rows to be learned."""
        return all(report.answerable for report in self.reports)

    def __str__(self) -> str:
        lines = [f"{self.kind} weights", *map(str, self.reports)]
        lines += [
            f"{column} {level} has no weight for any label; layers use weight 1" for column, level in self.unweighted
        ]
        return "\n".join([*lines, QUESTION])

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-safe data, without the weights themselves."""
        reports = []
        for report in self.reports:
            data = {name: _plain(value) for name, value in vars(report).items()}
            reports.append({**data, "answerable": report.answerable, "verdict": report.verdict})
        return {"kind": self.kind, "reports": reports, "unweighted": [list(item) for item in self.unweighted]}


def describe(
    fitted: Sequence[LabelBalance], kind: str, strata: Mapping[str, Any], people: NDArray[np.intp] | None
) -> Balance:
    """Scale the weights of labels to mean 1, join them to one weight per row, and measure what they cost and leave."""
    columns = []
    for label in fitted:
        mean = label.weight[label.present].mean()
        columns.append(label.weight / mean if mean > 0 else label.weight)
    weights = np.stack(columns, axis=1)
    row_weight = weights.mean(1)
    unweighted = []
    for column, (index, levels) in strata.items():
        for level, name in enumerate(levels):
            rows = index == level
            if rows.any() and not row_weight[rows].any():
                row_weight[rows] = 1.0
                unweighted.append((column, name))
    reports = tuple(_report(label, weights[:, i], strata, people) for i, label in enumerate(fitted))
    return Balance(kind, tuple(label.name for label in fitted), weights, row_weight, reports, tuple(unweighted))


def effective_size(weight: Array) -> float:
    """`(Σw)² / Σw²`: how many equally weighted rows have as large a variance; 0 where all weights are."""
    squares = float(np.square(weight).sum())
    return float(weight.sum()) ** 2 / squares if squares > 0 else 0.0


def _report(
    label: LabelBalance, weight: Array, strata: Mapping[str, Any], people: NDArray[np.intp] | None
) -> LabelReport:
    classes = label.classes or ("all",)
    rows = {name: label.codes == code for code, name in enumerate(classes)}
    inside, equal = weight[label.present], np.ones(int(label.present.sum()))
    if not inside.sum() > 0:
        raise TableError(f"weights must leave rows of {label.name!r}; got none: its classes share no confounds.")
    dependence = None
    if label.how == "entropy":
        dependence = (
            distance_correlation(label.y, label.metadata, equal),
            distance_correlation(label.y, label.metadata, inside),
        )
    tied = [_ties(label, share) for share in (equal, inside)]
    by_person = None
    if people is not None:
        by_person = effective_size(np.bincount(people, weights=weight).astype(np.float64))
    return LabelReport(
        label=label.name,
        how=label.how,
        rows=int(label.present.sum()),
        effective={name: effective_size(weight[where]) for name, where in rows.items()},
        effective_strata={
            column: {name: effective_size(weight[index == level]) for level, name in enumerate(levels)}
            for column, (index, levels) in strata.items()
        },
        effective_people=by_person,
        largest=float(inside.max()),
        tied_before=tied[0],
        tied_after=tied[1],
        dependence=dependence,
        no_overlap=label.lacking,
        separated=label.separated,
        prevalence={name: float(where.sum() / label.present.sum()) for name, where in rows.items()},
        weighted_prevalence={name: float(weight[where].sum() / weight.sum()) for name, where in rows.items()},
    )


def _ties(label: LabelBalance, weight: Array) -> dict[str, float]:
    """R² of the label on all columns of the confounds, and on those of each, under weights."""
    blocks = {"all": label.metadata}
    for term in dict.fromkeys(label.terms):
        blocks[term] = label.metadata[:, [place for place, other in enumerate(label.terms) if other == term]]
    share = weight / weight.sum()
    found = {}
    for name, block in blocks.items():
        both = np.concatenate([label.y, block], axis=1)
        both = both - share @ both
        gram = (both.T * share) @ both
        width = label.y.shape[1]
        found[name] = explained_share(gram, range(width), range(width, both.shape[1]))
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [vars(item) | {"absent": list(item.absent)} if isinstance(item, NoOverlap) else item for item in value]
    return value
