"""The records that a report is made of: numbers, verdicts, notes and points of a figure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Grade = Literal["strong", "clear", "weak", "faint", "none found", "no answer"]
NoteKind = Literal[
    "reading",
    "unknown classes",
    "codes",
    "missing",
    "sampled",
    "few people",
    "repeated people",
    "alike levels",
    "small groups",
    "one class",
    "rare levels",
    "same as label",
    "level per row",
    "tied to label",
    "constant given the label",
    "constant in test sets",
    "nothing to permute",
    "people",
    "constant outputs",
    "no performance",
    "no independent rows",
    "points away",
    "not linear",
    "many tests",
]
# With one of these a question about the confound has no answer in these people.
NO_ANSWER = frozenset(
    {"same as label", "level per row", "constant given the label", "constant in test sets", "nothing to permute"}
)


@dataclass(frozen=True)
class AuditRow:
    """One number of an audit.

    `space` is "outputs", "features", "table" (without any model) or "baseline" (confounds instead of a model);
    `level` the stratum of a performance figure, the label of an association, the model that a difference is to or
    the share that was erased, and empty otherwise; `independent` the 95 % quantile of the statistic on permuted,
    hence independent, data and `chance` its mean there: what the label alone gives. NaN stands where a number does
    not exist.
    """

    model: str
    space: str
    confound: str
    statistic: str
    level: str
    value: float
    low: float
    high: float
    p: float
    chance: float
    independent: float
    n: int


@dataclass(frozen=True)
class Verdict:
    """What the numbers say about one confound in one model.

    Attributes:
        model: Whose outputs or features.
        space: "outputs" or "features".
        confound: Which confound.
        grade: "none found", "faint", "weak", "clear", "strong", or "no answer".
        headline: The grade as a short sentence.
        text: The numbers behind it, in words.
        statistic: The number that it rests on, as in `AuditRow.statistic`.
        effect: That number.
        p: Its p-value.
        p_holm: The p-value corrected for all verdicts of the audit (Holm).
        detectable: An effect that would be found at least four times in five.
    """

    model: str
    space: str
    confound: str
    grade: Grade
    headline: str
    text: str
    statistic: str = ""
    effect: float = float("nan")
    p: float = float("nan")
    p_holm: float = float("nan")
    detectable: float = float("nan")

    @property
    def found(self) -> bool:
        """Whether the test of independence was rejected at 5 %."""
        return self.p <= 0.05 and self.grade != "no answer"


@dataclass(frozen=True)
class Note:
    """One thing to know before reading the numbers; a warning where they may mislead."""

    kind: NoteKind
    severity: Literal["warning", "note"]
    confound: str
    text: str


@dataclass(frozen=True)
class Embedding:
    """Two coordinates per point for one model; `rows` are the row numbers of the points in the table."""

    model: str
    method: str
    rows: tuple[int, ...]
    x: tuple[float, ...]
    y: tuple[float, ...]


def by_stratum(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of rows as JSON holds them, the first measure of performance on each stratum of each confound."""
    found = [row for row in rows if row["space"] == "outputs" and row["confound"] and row["level"]]
    found = [row for row in found if not row["statistic"].endswith("_difference")]  # their level is a model
    return [row for row in found if row["statistic"] == found[0]["statistic"]]


def plain(record: Any) -> dict[str, Any]:
    """A record as JSON-safe data: NaN and infinities become None."""
    values = asdict(record).items()
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in values}
