"""The rows and sentences that a report is made of."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Answer = Literal["left", "trace", "clear", "unanswerable"]


@dataclass(frozen=True)
class AuditRow:
    """One number of an audit.

    `space` is "outputs" or "features"; `level` the stratum of a performance figure or the label of an
    association, and empty otherwise; `independent` the 95 % quantile of the statistic on permuted, hence
    independent, data and `chance` its mean there. NaN stands where a number does not exist.
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
    """What the numbers say about one confound in one model, in words."""

    model: str
    space: str
    confound: str
    answer: Answer
    headline: str
    text: str


@dataclass(frozen=True)
class Embedding:
    """Two coordinates per point for one model; `rows` are the row numbers of the points in the table."""

    model: str
    method: str
    rows: tuple[int, ...]
    x: tuple[float, ...]
    y: tuple[float, ...]


def plain(record: Any) -> dict[str, Any]:
    """A record as JSON-safe data: NaN and infinities become None."""

    def safe(value: Any) -> Any:
        broken = isinstance(value, float) and (value != value or value in (float("inf"), float("-inf")))
        return None if broken else value

    return {key: safe(value) for key, value in asdict(record).items()}
