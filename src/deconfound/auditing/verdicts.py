"""A grade and a plain sentence for each confound, from the numbers that speak to it."""

import bisect
import math
from collections.abc import Sequence
from dataclasses import replace

from deconfound.auditing.records import AuditRow, Grade, Note, Verdict
from deconfound.auditing.words import shown
from deconfound.metrics.resampling import holm

LEVEL = 0.05
# A probe alone decides at 1 %: two probes beside the test at 5 % then accuse an innocent model in 7 % of cases at most.
PROBE_LEVEL = 0.01
# The upper end of each grade, as the dcor² of two normal variables with correlation .1, .25 and .5.
GRADES: tuple[tuple[float, Grade], ...] = ((0.01, "faint"), (0.05, "weak"), (0.2, "clear"), (math.inf, "strong"))
# An effect whose odds dcor² / (1 - dcor²) are so many times those of the 95 % quantile of independent data is found
# four times in five: a noncentral χ² of one degree of freedom needs 2.8 times, dcor² up to 3.5 times in simulations.
_FOUR_IN_FIVE = 3.5


def verdict(rows: Sequence[AuditRow], reasons: Sequence[Note]) -> Verdict:
    """The verdict on one model, space and confound from its rows, of which the first decides.

    The test of dcor² given the label decides at 5 %; where it rejects, the grade follows from its size. Where it does
    not but a probe does at 1 %, the grade is "faint". "no answer": one of `reasons`, or nothing could be measured.
    """
    main, *others = rows
    who, name = (main.model, main.space, main.confound), main.confound
    if reasons or main.value != main.value or main.p != main.p:
        text = " ".join(note.text for note in reasons) or f"Too few rows to measure {name}."
        return Verdict(*who, "no answer", f"{name}: no answer", text)
    probes = [row for row in others if "probe" in row.statistic]
    grade = _grade(main, probes)
    headline = f"no sign of {name}" if grade == "none found" else f"{name} is still there: {grade}"
    if grade == "faint" and main.p > LEVEL:
        headline = f"a probe finds a faint trace of {name}"
    sentences = [_main_sentence(main), *(_probe_sentence(row) for row in probes)]
    detectable = _detectable(main)
    if grade == "none found" and detectable == detectable:
        sentences.append(
            f"In people like these a dcor² of {shown(detectable)} or more (that of two normal variables with "
            f"correlation {_correlation_like(detectable):.2f}) would be found at least four times in five; less could "
            "be missed."
        )
    numbers = (main.statistic, main.value, main.p)
    return Verdict(*who, grade, headline, " ".join(sentences), *numbers, detectable=detectable)


def corrected(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The same verdicts with p-values corrected for their number (Holm)."""
    values = holm([item.p for item in verdicts])
    out = []
    for item, p in zip(verdicts, values, strict=True):
        text = item.text
        if item.found and p > LEVEL:
            text += f" Corrected for the {len(verdicts)} verdicts of this audit, p = {p:.3f}: it could be chance."
        out.append(replace(item, p_holm=p, text=text))
    return out


def _grade(main: AuditRow, probes: Sequence[AuditRow]) -> Grade:
    if main.p <= LEVEL:
        return next(word for limit, word in GRADES if main.value < limit)
    return "faint" if any(row.p <= PROBE_LEVEL for row in probes) else "none found"


def _detectable(row: AuditRow) -> float:
    """The dcor² that would pass the level of independent data at least four times in five, NaN where that level is 0.

    The spread of dcor² grows with the effect, so the width of an interval around no effect would promise too much.
    Several rows of a person raise the mean of independent data, `chance`, and that of every effect alike.
    """
    reach = row.independent - row.chance
    if not reach > 0:
        return math.nan
    return row.chance + (1 - row.chance) * _FOUR_IN_FIVE * reach / (1 + (_FOUR_IN_FIVE - 1) * reach)


def normal_dcor_sqr(correlation: float) -> float:
    """The dcor² of two normal variables with this correlation (Székely, Rizzo and Bakirov 2007, theorem 7)."""
    r = abs(correlation)
    top = r * math.asin(r) + math.sqrt(1 - r * r) - r * math.asin(r / 2) - math.sqrt(4 - r * r) + 1
    return top / (1 + math.pi / 3 - math.sqrt(3))


def _correlation_like(dcor_sqr: float) -> float:
    """The correlation whose normal variables have this dcor², to six digits."""
    return bisect.bisect_left(range(10**6), dcor_sqr, key=lambda millionths: normal_dcor_sqr(millionths / 1e6)) / 1e6


def _main_sentence(row: AuditRow) -> str:
    given = "" if row.statistic == "dcor_sqr" else " once the label is known"
    verb = "depend" if row.p <= LEVEL else "do not measurably depend"
    reach = f"95 % confidence interval {shown(row.low)} to {shown(row.high)}"
    return (
        f"The {row.space} {verb} on {row.confound}{given}: dcor² is {shown(row.value)} "
        f"({reach if row.low == row.low else 'too few rows for an interval'}), where independent data stay below "
        f"{shown(row.independent)} in 95 of 100 cases (p = {row.p:.3f})."
    )


def _probe_sentence(row: AuditRow) -> str:
    kind = "linear" if row.statistic.startswith("linear") else "non-linear"
    measure = "R²" if row.statistic.endswith("r2") else "AUC"
    numbers = f"{measure} {shown(row.value)}; what the label alone gives: {shown(row.chance)}"
    if row.p <= PROBE_LEVEL:
        return f"A {kind} probe reads some of it ({numbers})."
    return f"A {kind} probe reads no more than the label gives ({numbers})."
