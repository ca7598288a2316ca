"""Sentences for an audit: the answer in three lines, and a paragraph for a methods section."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isnan

from deconfound.auditing.formats import format_estimate, format_trials
from deconfound.auditing.result import (
    LEAST_POWER,
    LEVEL,
    About,
    Performance,
    Sensitivity,
    Verdict,
    grade_of,
)
from deconfound.metrics import Estimate, HonestScore
from deconfound.table import Note

# Scores that differ by less are called nearly equal.
NEARLY = 0.02
# More labels or models are left to the table of scores.
MOST_IN_A_SUMMARY = 3
# The names that `audit` gives to arrays without a name.
UNNAMED = ("model", "features")

SCORE_NAMES = {"binary": "an AUC", "classes": "a mean AUC", "numeric": "an R²"}


def summarise(
    verdicts: Sequence[Verdict],
    performance: Sequence[Performance],
    notes: Sequence[Note],
    about: About,
) -> tuple[str, str, str]:
    """Return the answer in three lines.

    Returns:
        What is left of the confounds; what the models are worth where labels and confounds are
        independent; what cannot be known, and which data would help.
    """
    return (
        _describe_leaks(verdicts, about),
        _describe_performance(performance, about),
        _describe_unknowns(verdicts, performance, notes, about),
    )


def sentence_of_sensitivity(confound: str, sensitivity: Sensitivity) -> str:
    """Return how often a planted leak of a confound would have been found.

    Example:
        >>> sentence_of_sensitivity("site", Sensitivity("AD", 0.3, Estimate(0.84, n=100)))
        'A shift of 0.3 sd by site in the group AD would have been found in 84 of 100 trials.'
    """
    place = "" if sensitivity.group is None else f" in the group {sensitivity.group}"
    return (
        f"A shift of {sensitivity.shift:g} sd by {confound}{place} would have been found in "
        f"{format_trials(sensitivity.share)} trials."
    )


def methods_paragraph(
    verdicts: Sequence[Verdict], performance: Sequence[Performance], about: About
) -> str:
    """Return a paragraph for the methods section of a paper."""
    subjects = join_words(dict.fromkeys(map(_subject, verdicts)))
    folds = f" in {about.folds} test folds" if about.folds > 1 else ""
    given = f" with the same value of {join_words(about.labels)}" if about.labels else ""
    among = f" among people{given}" if given else ""
    alike = given + (" in the same test fold" if folds else "")
    sentences = [
        f"We tested {subjects} for {join_words(about.confounds)} with deconfound {about.version}, "
        f"on {about.rows:,} rows of {about.people:,} people{folds}.",
        f"The null hypothesis was independence of each confound{among}.",
    ]
    largest = max((verdict.rows for verdict in verdicts), default=0)
    if 0 < largest < about.rows:
        sentences.append(f"A random sample of {largest:,} rows was compared.")
    if about.has_weights:
        sentences.append("Each row entered with its weight.")
    if any(row.honest.label == "numeric" for row in performance):
        sentences.append(
            "Smooth curves of the numeric labels were subtracted from outputs and confounds, and "
            "people with neighbouring values count as people with the same label."
        )
    groups = any(verdict.by_group for verdict in verdicts)
    adjusted = "tests within label groups (Westfall and Young) and for " if groups else ""
    sentences += [
        f"The statistic is large if people{alike} who are alike in the confound have similar "
        "outputs.",
        f"Its p-value comes from {about.permutations} permutations, in which people{alike} "
        "exchanged the confound of all their rows.",
        f"P-values were adjusted for {adjusted}the number of confounds (Holm), and a leak was "
        f"reported at p ≤ {LEVEL:g}.",
        "The effect is 0 for independence and 1 for the largest possible leak, on the scale of a "
        "squared correlation.",
        *_planting_methods(verdicts),
        *_performance_methods(performance),
    ]
    if about.bootstraps:
        sentences.append(
            f"Intervals are 95 % bootstrap intervals from {about.bootstraps} samples of people."
        )
    return _join_sentences(sentences)


def _planting_methods(verdicts: Sequence[Verdict]) -> list[str]:
    planted = [one for one in map(_planted_everywhere, verdicts) if one is not None]
    if not planted:
        return []
    return [
        "To see what could have been found, we permuted the confound, shifted the outputs by "
        f"{planted[0].shift:g} sd between its two largest levels (or for each sd of a number) and "
        f"repeated the test, {planted[0].share.n} times.",
    ]


def _performance_methods(performance: Sequence[Performance]) -> list[str]:
    kinds = {row.honest.label for row in performance}
    sentences = []
    if kinds & {"binary", "classes"}:
        sentences.append(
            "Performance is the AUC within test folds: as sampled, within strata of each confound "
            "(levels, or thirds of a number), and under overlap weights, which balance the "
            "confounds: classes then have equal means of them."
        )
    if "classes" in kinds:
        sentences.append("AUCs of more than two classes are means of each class against the rest.")
    if "numeric" in kinds:
        sentences.append(
            "Performance for numeric labels is R² as sampled, the correlation after the means of "
            "strata are subtracted, and R² under entropy weights, under which label and "
            "confounds are uncorrelated."
        )
    if kinds:
        sentences.append(
            "For comparison, a regression on the confounds alone was scored on people whom it had "
            "not seen."
        )
    return sentences


def _describe_leaks(verdicts: Sequence[Verdict], about: About) -> str:
    if not verdicts:
        return "Leaks were not tested."
    leaks, negative, unanswered = _split(verdicts)
    sentences = _describe_findings(leaks, about)
    if leaks and negative:
        sentences.append("No other leak was found.")
    elif negative:
        confounds = join_words(dict.fromkeys(one.confound for one in negative), "or")
        subjects = join_words(dict.fromkeys(map(_subject, negative)), "or")
        sentences.append(f"No leak of {confounds} was found in {subjects}.")
    if not leaks:
        sentences += _least_sensitive(negative)
    if unanswered:
        confounds = join_words(dict.fromkeys(one.confound for one in unanswered), "or")
        where = dict.fromkeys(map(_subject, unanswered))
        is_everywhere = len(where) == len(set(map(_subject, verdicts)))
        place = "" if is_everywhere else f" in {join_words(where, 'or')}"
        sentences.append(f"There is no answer for {confounds}{place}.")
    return _join_sentences(sentences)


def _describe_findings(leaks: Sequence[Verdict], about: About) -> list[str]:
    subjects = list(dict.fromkeys(map(_subject, leaks)))
    clauses = []
    for subject in subjects[:MOST_IN_A_SUMMARY]:
        own = [one for one in leaks if _subject(one) == subject]
        listed = join_words(f"{one.confound} (a {one.grade} leak{_place(one)})" for one in own)
        clauses.append(f"{subject} depend on {listed}")
    if not clauses:
        return []
    given = ""
    if about.labels:
        given = f"Among people with the same value of {join_words(about.labels)}, "
    text = given + "; ".join(clauses)
    sentences = [f"{text[0].upper()}{text[1:]}."]
    if len(subjects) > MOST_IN_A_SUMMARY:
        others = join_words(subjects[MOST_IN_A_SUMMARY:])
        sentences.append(f"Leaks were found in {others} as well.")
    return sentences


def _split(verdicts: Sequence[Verdict]) -> tuple[list[Verdict], list[Verdict], list[Verdict]]:
    """Return the verdicts with a finding, without one, and without an answer."""
    leaks = [verdict for verdict in verdicts if verdict.answer == "found"]
    negative = [verdict for verdict in verdicts if verdict.answer == "not found"]
    return leaks, negative, [verdict for verdict in verdicts if verdict.answer == "no answer"]


def _least_sensitive(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the sentence on the planted leak that was found least often in all rows."""
    pairs = zip(verdicts, map(_planted_everywhere, verdicts), strict=True)
    planted = [(verdict.confound, one) for verdict, one in pairs if one is not None]
    if not planted:
        return []
    return [sentence_of_sensitivity(*min(planted, key=lambda pair: pair[1].share.value))]


def _planted_everywhere(verdict: Verdict) -> Sensitivity | None:
    """Return the planted leaks in all rows, which a label group does not limit."""
    return next((one for one in verdict.sensitivity if one.group is None), None)


def _describe_performance(performance: Sequence[Performance], about: About) -> str:
    rows = [row for row in performance if not isnan(row.honest.plain.value)]
    if not about.models:
        return "Features have no performance; pass the outputs of a model to measure it."
    if not about.labels:
        return "No label was given, so performance was not measured."
    if not rows:
        return f"Performance could not be measured for {join_words(about.labels)}."
    if len(rows) == 1:
        return _describe_one_score(rows[0])
    labels = list(dict.fromkeys(row.label for row in rows))
    sentences = [
        _describe_best([row for row in rows if row.label == label])
        for label in labels[:MOST_IN_A_SUMMARY]
    ]
    if len(labels) > MOST_IN_A_SUMMARY:
        others = join_words(labels[MOST_IN_A_SUMMARY:])
        sentences.append(f"Scores for {others} are in the table.")
    # The best model of a label is compared with the confounds.
    best = {row.label: row for row in sorted(rows, key=lambda row: row.honest.plain.value)}
    predictable = [label for label in labels if _confounds_suffice(best[label])]
    if predictable:
        sentences.append(
            f"As sampled, the confounds alone predict {join_words(predictable)} about as well as "
            "the best model does, or better."
        )
    return _join_sentences(sentences)


def _describe_one_score(row: Performance) -> str:
    """Return the scores of one model, those first that the confounds cannot raise."""
    honest, (stratum, within) = row.honest, _lowest_within(row.honest)
    is_numeric = honest.label == "numeric"
    scores: list[tuple[str, str, str]] = []
    if not isnan(honest.balanced.value):
        doubt = "" if honest.has_enough_people else ", from too few effective people to be judged"
        text = _with_chance(honest.balanced, row) + doubt
        scores.append((f"Under weights that {_independence(row)}", "R²", text))
    if not isnan(within.value):
        scores.append((f"Within strata of {stratum}", "correlation", _with_chance(within, row)))
    clause = ", where the confounds help," if confounds_help(row) else ""
    scores.append((f"As sampled{clause}", "R²", format_estimate(honest.plain)))
    sentences: list[str] = []
    for place, measure, text in scores:
        subject = f"the {measure} is" if is_numeric else "it is"
        if not sentences:
            is_correlation = is_numeric and measure == "correlation"
            score = "a correlation" if is_correlation else SCORE_NAMES[honest.label]
            subject = f"{_model(row)} has {score} for {row.label} of"
        sentences.append(f"{place} {subject} {text}.")
    if _confounds_suffice(row):
        alone = format_estimate(row.confounds_alone)
        sentences.append(f"The confounds alone reach {alone}.")
    return _join_sentences(sentences)


def confounds_help(row: Performance) -> bool:
    """Return True if a model scores higher as sampled than where the confounds cannot help."""
    honest = row.honest
    # Weights also change the variance of a numeric label, and with it R².
    if honest.label == "numeric":
        return False
    least = honest.plain.value - NEARLY
    # A difference within the interval may be chance. Comparisons with NaN are false.
    limit = honest.plain.low if honest.plain.low < least else least
    return any(score.value < limit for score in (honest.balanced, _lowest_within(honest)[1]))


def _describe_best(rows: Sequence[Performance]) -> str:
    """Return a sentence on the best score for one label where the confounds cannot help."""
    scores = [_headline(row) for row in rows]
    best = max(range(len(rows)), key=lambda place: scores[place][1].value)
    place, estimate = scores[best]
    row = rows[best]
    verb = "does best, with" if len(rows) > 1 else "has"
    is_correlation = row.honest.label == "numeric" and place.startswith("within")
    score = "a correlation" if is_correlation else SCORE_NAMES[row.honest.label]
    return (
        f"For {row.label}, {_model(row)} {verb} {score} of {_with_chance(estimate, row)} {place}."
    )


def scores_by_measure(honest: HonestScore) -> dict[str, Estimate]:
    """Return the scores by name: "balanced", "within strata of <confound>" and "as sampled"."""
    within = honest.within_strata.items()
    strata = {f"within strata of {confound}": estimate for confound, estimate in within}
    return {"balanced": honest.balanced, **strata, "as sampled": honest.plain}


def headline(honest: HonestScore) -> str:
    """Return the name of the score by which models are compared, as in `scores_by_measure`.

    It is the balanced score if each class has 50 effective people, else the lowest score within
    strata of a confound. Where neither is known, it is the score as sampled.
    """
    if honest.has_enough_people and not isnan(honest.balanced.value):
        return "balanced"
    confound, within = _lowest_within(honest)
    return "as sampled" if isnan(within.value) else f"within strata of {confound}"


def _headline(row: Performance) -> tuple[str, Estimate]:
    """Return the words for the score by which models are compared, and this score."""
    measure = headline(row.honest)
    words = f"under weights that {_independence(row)}" if measure == "balanced" else measure
    return words, scores_by_measure(row.honest)[measure]


def _lowest_within(honest: HonestScore) -> tuple[str, Estimate]:
    """Return the confound with the lowest score within its strata, and this score."""
    known = [item for item in honest.within_strata.items() if not isnan(item[1].value)]
    return min(known, key=lambda item: item[1].value, default=("", Estimate(float("nan"))))


def _confounds_suffice(row: Performance) -> bool:
    """Return True if the confounds alone do nearly as well as the model, as sampled."""
    return row.confounds_alone.value >= row.honest.plain.value - NEARLY


def _with_chance(estimate: Estimate, row: Performance) -> str:
    chance = 0.0 if row.honest.label == "numeric" else 0.5
    low, high = estimate.low, estimate.high
    if high < chance and row.positive:
        doubt = f", below chance (check that high scores stand for {row.positive})"
    elif (estimate.value if isnan(low) else low) <= chance:
        doubt = ", not above chance"
    else:
        doubt = ""
    return format_estimate(estimate) + doubt


def _independence(row: Performance) -> str:
    return f"balance the confounds over {row.label}"


def _describe_unknowns(
    verdicts: Sequence[Verdict],
    performance: Sequence[Performance],
    notes: Sequence[Note],
    about: About,
) -> str:
    _, negative, unanswered = _split(verdicts)
    # One text, because a cause and its remedy belong together.
    sentences = [f"{verdict.reason} {verdict.collect}" for verdict in unanswered]
    hidden = [verdict for verdict in negative if _is_insensitive(verdict)]
    if hidden:
        confounds = join_words(dict.fromkeys(verdict.confound for verdict in hidden))
        shift = f"{hidden[0].sensitivity[0].shift:g}"
        sentences.append(
            f"A leak of {shift} sd by {confounds} could have been missed; collect more people."
        )
    elif negative and not any(verdict.sensitivity for verdict in negative):
        sentences.append("How large a leak could have been missed was not measured.")
    for row in performance:
        if row.balance:
            sentences.append(f"There are no balancing weights for {row.label}. {row.balance}")
        elif row.honest.effective and not row.honest.has_enough_people:
            sentences.append(
                "To judge the score under weights, collect more people, best those in whom "
                f"{row.label} and the confounds do not go together."
            )
    gaps = dict.fromkeys(note.column for note in notes if note.kind == "stratum")
    if gaps and performance:
        sentences.append(
            f"Strata of {join_words(gaps)} that lack a class show nothing about performance."
        )
    if not about.has_people:
        sentences.append("Rows were treated as different people.")
    if not about.labels:
        sentences.append("Without labels, outputs that follow a label count as a leak.")
    sentences += [note.text for note in notes if note.kind == "length"]
    if len(about.confounds) > 1:
        sentences.append("Confounds were tested one at a time; combinations of them were not.")
    sentences.append("Confounds that are not in the table were not tested.")
    return _join_sentences(sentences)


def _is_insensitive(verdict: Verdict) -> bool:
    planted = _planted_everywhere(verdict)
    return planted is not None and planted.share.value < LEAST_POWER


def _place(verdict: Verdict) -> str:
    """Return " in the group …" for a leak whose grade is that of a label group."""
    if grade_of(verdict.effect.value) == verdict.grade:
        return ""
    groups = [
        group.group
        for group in verdict.by_group
        if group.effect.p <= LEVEL and group.effect.value > verdict.effect.value
    ]
    if not groups:
        return ""
    # Over all rows there may be none at all.
    words = " in" if verdict.effect.value <= verdict.independent else ", largest in"
    return f"{words} the group{'s' * (len(groups) > 1)} {join_words(groups)}"


def _subject(verdict: Verdict) -> str:
    if verdict.is_features:
        return "the features" + ("" if verdict.model in UNNAMED else f" {verdict.model}")
    return "the outputs" + ("" if verdict.model in UNNAMED else f" of {verdict.model}")


def _model(row: Performance) -> str:
    return "the model" if row.model in UNNAMED else row.model


def join_words(words: Iterable[str], conjunction: str = "and") -> str:
    """Return "a", "a and b", or "a, b and c"."""
    *first, last = [*words] or [""]
    return f"{', '.join(first)} {conjunction} {last}" if first else last


def _join_sentences(sentences: Iterable[str]) -> str:
    """Return sentences as one text, each of them once."""
    return " ".join(dict.fromkeys(filter(None, sentences)))
