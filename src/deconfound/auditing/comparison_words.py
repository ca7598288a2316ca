"""A comparison in a few plain sentences, from its numbers alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deconfound.auditing.words import STATISTICS, network_name, shown

_LOWER_IS_BETTER = frozenset({"mean_absolute_error", "brier_score", "calibration_error"})


def headline(content: Mapping[str, Any]) -> str:
    """The task's first measure."""
    first: str = next(iter(content["lines"][0]["measures"]))
    return first


def comparison_sentences(content: Mapping[str, Any]) -> list[str]:
    """The comparison in a few plain sentences, from its numbers alone."""
    found = [*_problem_sentences(content), _performance_sentence(content)]
    for space in ("outputs", "features"):
        found += [_left_sentence(content, space, confound) for confound in content["confounds"]]
    return [sentence for sentence in found if sentence]


def _problem_sentences(content: Mapping[str, Any]) -> list[str]:
    """Trainings that failed are named before any number."""
    out = []
    for line in content["lines"]:
        problems = line.get("problems") or []
        if problems:
            kinds = ", ".join(dict.fromkeys(problem["kind"] for problem in problems))
            trainings = len({(problem["fold"], problem["seed"]) for problem in problems})
            what = "training" if trainings == 1 else "trainings"
            out.append(f"{trainings} {what} of {network_name(line['name'])} should not be read as results: {kinds}.")
    return out


def _performance_sentence(content: Mapping[str, Any]) -> str:
    measure, lines = headline(content), content["lines"]
    base, word = network_name(content["base"]), STATISTICS[measure].name
    said = f"{_capital(base)} reaches {word} {with_interval(of_line(lines[0], measure))}."
    if len(lines) == 1:
        return said
    signs = {line["name"]: sign_of(of_line(line, measure)["difference"]) for line in lines[1:]}
    if measure in _LOWER_IS_BETTER:
        signs = {name: -sign for name, sign in signs.items()}
    for sign, verb in ((-1, "worse"), (1, "better")):
        names = [network_name(name) for name, found in signs.items() if found == sign]
        if names:
            said += f" Over trainings, {_listing(names)} {'does' if len(names) == 1 else 'do'} measurably {verb}."
    if not any(signs.values()):
        said += " Over trainings, no method differs measurably from it: every confidence interval includes 0."
    more = (_people_sentence(content, measure), _detectable_sentence(content, measure))
    return " ".join([said, *(sentence for sentence in more if sentence)])


def _people_sentence(content: Mapping[str, Any], measure: str) -> str:
    """The same differences over people, given these trainings."""
    rows = [
        row
        for row in content["audit"]["rows"]
        if row["statistic"] == f"{measure}_difference" and row["low"] is not None
    ]
    clear = [f"{network_name(row['model'])} ({with_interval(row, sign=True, key='value')})"
             for row in rows if row["low"] > 0 or row["high"] < 0]  # fmt: skip
    if not rows:
        return ""
    if not clear:
        return "Over people, given these trainings, none does either."
    return f"Over people, given these trainings, these differ from it: {_listing(clear)}."


def _detectable_sentence(content: Mapping[str, Any], measure: str) -> str:
    """The smallest difference that these test sets can show: the typical half-width of the intervals, and half more."""
    found = [of_line(line, measure)["difference"] for line in content["lines"][1:]]
    widths = sorted(item["high"] - item["low"] for item in found if item["low"] is not None)
    if not widths:
        return ""
    sets = of_line(content["lines"][0], measure)["sets"]
    # An interval reaches t errors either way; t + .84 errors are found four times in five.
    smallest = widths[len(widths) // 2] / 2 * 1.4
    return f"With {sets} test sets, differences of about {shown(smallest)} and more can be shown."


def _left_sentence(content: Mapping[str, Any], space: str, confound: str) -> str:
    key, lines = f"left/{space}/{confound}", content["lines"]
    values = [(line["name"], of_line(line, key)) for line in lines if of_line(line, key)["mean"] is not None]
    if not values:
        no = f"What is left of {confound} cannot be measured within these test sets."
        return no if space == "outputs" else ""
    signs = {network_name(line["name"]): sign_of(of_line(line, key)["difference"]) for line in lines[1:]}
    less, more = ([name for name, sign in signs.items() if sign == wanted] for wanted in (-1, 1))
    base = network_name(content["base"])
    start = f"Of {confound}, {base} leaves dcor² {shown(of_line(lines[0], key)['mean'])} in its {space}"
    if space == "features":
        return f"{start}; measurably less: {_listing(less)}." if less else ""
    least = min(values, key=lambda item: float(item[1]["mean"]))
    if least[0] == content["base"]:
        if len(lines) == 1:
            return f"{start}."
        measurable = f"measurably more: {_listing(more)}" if more else "no difference is measurable"
        return f"{start}, the least of all; {measurable}."
    measurable = f"measurably less: {_listing(less)}" if less else "no difference is measurable"
    return f"{start}, {network_name(least[0])} the least with {shown(least[1]['mean'])}; {measurable}."


def of_line(line: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The measure of a line; empty where it has none."""
    empty = dict.fromkeys(("mean", "low", "high", "p"))
    found: Mapping[str, Any] = line["measures"].get(key, {**empty, "sets": 0, "difference": empty})
    return found


def sign_of(item: Mapping[str, Any]) -> int:
    """The sign of a difference whose interval does not include 0, else 0."""
    if item["low"] is None:
        return 0
    return 1 if item["low"] > 0 else -1 if item["high"] < 0 else 0


def with_interval(item: Mapping[str, Any], sign: bool = False, key: str = "mean") -> str:
    """A value and its interval as text."""
    mean = shown(item[key], sign)
    none = item[key] is None or item["low"] is None
    return mean if none else f"{mean} ({shown(item['low'], sign)} to {shown(item['high'], sign)})"


def _listing(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _capital(text: str) -> str:
    return text if " " not in text else text[0].upper() + text[1:]
