"""A plain sentence for each confound, from the numbers that speak to it."""

from collections.abc import Sequence

from deconfound.auditing.records import Answer, AuditRow, Verdict

LEVEL = 0.05
# dcor² of two normal variables with correlation .1, .25 and .5 is about .008, .05 and .2.
_WORDS = ((0.01, "faintly"), (0.05, "weakly"), (0.2, "clearly"), (float("inf"), "strongly"))


def verdict(rows: Sequence[AuditRow], *, unanswerable: bool) -> Verdict:
    """The verdict on one model, space and confound from its rows.

    "left": the dcor² (within label groups where there are labels) rejects independence at 5 %. "trace": it
    does not, but a probe does. "clear": neither does. "unanswerable": the confound cannot be told from the
    label, or nothing could be measured.
    """
    found = {row.statistic: row for row in rows}
    main = found.get("within_group_dcor_sqr", found.get("dcor_sqr"))
    first = rows[0]
    given = " once the label is known" if "within_group_dcor_sqr" in found else ""
    if unanswerable or main is None or main.value != main.value:
        headline = f"{first.confound}: no answer"
        text = f"From these people the effect of {first.confound} cannot be told from the label's."
        return Verdict(first.model, first.space, first.confound, "unanswerable", headline, text)
    probes = [row for name, row in found.items() if "probe" in name]
    answer: Answer = "clear"
    if main.p <= LEVEL:
        answer = "left"
    elif any(row.p <= LEVEL for row in probes):
        answer = "trace"
    strength = next(word for limit, word in _WORDS if main.value < limit)
    headline = {
        "left": f"{first.confound} is still there, {strength}",
        "trace": f"{first.confound} leaves a trace",
        "clear": f"no sign of {first.confound}",
    }[answer]
    sentences = [_main_sentence(main, first.space, given), *(_probe_sentence(row) for row in probes)]
    if answer == "clear":
        sentences.append("No sign is not proof of absence: a larger sample could show one.")
    return Verdict(first.model, first.space, first.confound, answer, headline, " ".join(sentences))


def _main_sentence(row: AuditRow, space: str, given: str) -> str:
    verb = "depend" if row.p <= LEVEL else "do not measurably depend"
    limit = f"independent data stay below {row.independent:.3f} in 95 of 100 cases"
    interval = f"95 % interval {row.low:.3f} to {row.high:.3f}"
    return (
        f"The {space} {verb} on {row.confound}{given}: dcor² is {row.value:.3f} ({interval}), "
        f"where {limit} (p = {row.p:.3f})."
    )


def _probe_sentence(row: AuditRow) -> str:
    kind = "linear" if row.statistic.startswith("linear") else "non-linear"
    measure = "R²" if row.statistic.endswith("r2") else "AUC"
    if row.p <= LEVEL:
        return f"A {kind} probe reads some of it: {measure} {row.value:.3f}, by chance {row.chance:.3f}."
    return f"A {kind} probe does no better than chance ({measure} {row.value:.3f}, by chance {row.chance:.3f})."
