"""One page for a comparison: what each method costs and what it leaves, before the audit of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from deconfound.auditing.forest import Dot, Panel, forest
from deconfound.auditing.page import render, safe

MEASURES = {
    "auc": "AUC",
    "balanced_accuracy": "balanced accuracy",
    "accuracy": "accuracy",
    "r2": "R²",
    "mean_absolute_error": "mean absolute error",
}
_HEADER = '<p class="kicker">Confound audit</p>\n<h1>What is left</h1>'
_FIRST = '<section id="verdicts" aria-labelledby="verdicts-title">\n<h2 id="verdicts-title">Verdicts</h2>'
_SKIP = '<a class="skip" href="#verdicts">Skip to the verdicts</a>'


def comparison_page(content: Mapping[str, Any]) -> str:
    """The page of a comparison's `results.json`: its own sections, then those of the audit."""
    page = render({**content["audit"], "points": None})
    changes = (
        ("<title>Audit of ", "<title>Comparison of "),
        (_SKIP, '<a class="skip" href="#costs">Skip to the comparison</a>'),
        (_HEADER, '<p class="kicker">Comparison of methods</p>\n<h1>What each method costs, and what it leaves</h1>'),
        (_FIRST, _sections(content) + _FIRST.replace(">Verdicts<", ">The audit of each method<")),
    )
    for old, new in changes:
        assert old in page, f"the audit's page has no {old!r}"
        page = page.replace(old, new, 1)
    return page


def headline(content: Mapping[str, Any]) -> str:
    """The task's first measure."""
    first: str = next(iter(content["lines"][0]["measures"]))
    return first


def sentences(content: Mapping[str, Any]) -> list[str]:
    """The comparison in a few plain sentences, from its numbers alone."""
    measure, base = headline(content), content["base"]
    lines = content["lines"]
    reference = _of(lines[0], measure)
    said = [f"{base} reaches {MEASURES[measure]} {_interval(reference)}."]
    worse = [line["name"] for line in lines[1:] if _clear(_of(line, measure)["difference"]) < 0]
    better = [line["name"] for line in lines[1:] if _clear(_of(line, measure)["difference"]) > 0]
    if measure == "mean_absolute_error":
        worse, better = better, worse
    for names, word in ((worse, "worse"), (better, "better")):
        if names:
            said.append(f"{_listing(names)} {'does' if len(names) == 1 else 'do'} measurably {word} than {base}.")
    if not worse and not better and len(lines) > 1:
        said.append(f"In {MEASURES[measure]} no method differs measurably from {base}: every interval holds zero.")
    for confound in content["confounds"]:
        key = f"left/outputs/{confound}"
        values = [(line["name"], _of(line, key)) for line in lines if _of(line, key)["mean"] is not None]
        if not values:
            said.append(f"What is left of {confound} cannot be measured within these test sets.")
            continue
        least = min(values, key=lambda item: item[1]["mean"])
        less = [line["name"] for line in lines[1:] if _clear(_of(line, key)["difference"]) < 0]
        started = f"Of {confound}, {base} leaves dcor² {_number(_of(lines[0], key)['mean'])} in its outputs"
        if least[0] == base:
            said.append(f"{started}, the least of all.")
        else:
            measurable = f"; measurably less: {', '.join(less)}" if less else "; no difference is measurable"
            said.append(f"{started}, {least[0]} the least with {_number(least[1]['mean'])}{measurable}.")
    for confound in content["confounds"]:
        key = f"left/features/{confound}"
        less = [line["name"] for line in lines[1:] if _clear(_of(line, key)["difference"]) < 0]
        if less:
            held = _number(_of(lines[0], key)["mean"])
            said.append(
                f"The hidden features of {base} hold dcor² {held} of {confound}; measurably less: {', '.join(less)}."
            )
    return said


def _sections(content: Mapping[str, Any]) -> str:
    points = "".join(f"<li>{safe(text)}</li>" for text in sentences(content))
    measured = {key for line in content["lines"] for key in line["measures"]}
    spaces = [space for space in ("outputs", "features") if any(key.startswith(f"left/{space}/") for key in measured)]
    return f"""<section id="costs" aria-labelledby="costs-title">
<h2 id="costs-title">In short</h2>
<ul>{points}</ul>
</section>
<section aria-labelledby="figure-title">
<h2 id="figure-title">Cost and what is left</h2>
<p class="lead">Dot: the mean over test sets. Line: its 95 % interval. The first panel is the paired difference to
{safe(content["base"])}; the others are dcor² of the outputs with a confound within label groups (0: independent).</p>
{_scroll("Figure", _figure(content))}
</section>
<section aria-labelledby="table-title">
<h2 id="table-title">Performance</h2>
<p class="lead">The mean over test sets with its 95 % interval; below it the paired difference to
{safe(content["base"])}, bold where its interval does not hold zero.</p>
{_scroll("Performance", _performance(content))}
</section>
<section aria-labelledby="left-table-title">
<h2 id="left-table-title">What is left, test set by test set</h2>
{"".join(_scroll(f"What is left in the {space}", _left(content, space)) for space in spaces)}
</section>
<section aria-labelledby="how-title">
<h2 id="how-title">How it was made</h2>
{_how(content)}
</section>
"""


def _scroll(label: str, inner: str) -> str:
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">{inner}</div>'


def _figure(content: Mapping[str, Any]) -> str:
    measure = headline(content)
    panels = [
        Panel(
            f"{MEASURES[measure]}, difference",
            f"to {content['base']}",
            tuple(_dot(_of(line, measure)["difference"]) for line in content["lines"]),
        )
    ]
    for name in content["confounds"]:
        dots = tuple(_dot(_of(line, f"left/outputs/{name}")) for line in content["lines"])
        panels.append(Panel(f"{name} left", "dcor² in the outputs", dots))
    return forest([line["name"] for line in content["lines"]], panels, "Cost and what is left, by method")


def _performance(content: Mapping[str, Any]) -> str:
    measures = {key: MEASURES[key] for key in content["lines"][0]["measures"] if not key.startswith("left/")}
    seconds = {line["name"]: f"{line['seconds']:.1f}" for line in content["lines"]}
    return _table(content, "method", measures, {"seconds a fold": seconds})


def _left(content: Mapping[str, Any], space: str) -> str:
    names = {f"left/{space}/{name}": name for name in content["confounds"]}
    return _table(content, f"dcor² in the {space}", names, {})


def _table(content: Mapping[str, Any], corner: str, keys: Mapping[str, str], more: Mapping[str, Any]) -> str:
    """Methods against measures: the value, its interval, and the difference to the first method."""
    head = "".join(f'<th scope="col">{safe(name)}</th>' for name in (corner, *keys.values(), *more))
    body = ""
    for line in content["lines"]:
        cells = ""
        for key in keys:
            item = _of(line, key)
            change = item["difference"]
            mark = "<strong>{}</strong>" if _clear(change) else "{}"
            told = "" if line["name"] == content["base"] else mark.format(_interval(change, sign=True))
            cells += f"<td>{_interval(item)}<small>{told}</small></td>"
        cells += "".join(f"<td>{values[line['name']]}</td>" for values in more.values())
        body += f'<tr><th scope="row">{safe(line["name"])}</th>{cells}</tr>'
    return f'<table class="grid"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _how(content: Mapping[str, Any]) -> str:
    seeds = len(content["lines"][0]["runs"])
    sets = _of(content["lines"][0], headline(content))["sets"]
    origin, config = content["provenance"], content["config"]
    packages = ", ".join(f"{name} {version}" for name, version in origin["packages"].items())
    facts = {
        "command": origin["command"],
        "data": f"{config['data']['source']} · SHA-256 {origin['data'][:16]}…",
        "folds": f"{len(content['folds'])} × {seeds} seeds, {config['splits']['kind']}, {sets} distinct test sets",
        "network": f"{config['network']['name']} {config['network']['options'] or ''}",
        "deconfound": f"{origin['deconfound']} {origin['commit'] or ''}",
        "machine": f"{origin['platform']}, {origin['device']}, Python {origin['python']}, {packages}",
    }
    listed = "".join(f"<dt>{safe(key)}</dt><dd>{safe(value)}</dd>" for key, value in facts.items())
    return (
        "<p>Every method is trained on the same folds and seeds, from the same first weights; the epoch is chosen on "
        "validation rows. Values are taken on each test set and averaged. The training sets of cross-validation "
        "overlap, so intervals are corrected resampled t intervals (Nadeau and Bengio 2003), with the variance "
        f"(1/J + n_test/n_train) s² over J = {sets} test sets; runs of several seeds on one test set are averaged "
        "first. "
        "Comparing many methods, one interval in twenty misses by chance. What is left is the bias-corrected dcor² of "
        "a test set's outputs, or hidden features, with a confound within label groups.</p>"
        f"<details><summary>Provenance</summary><dl>{listed}</dl></details>"
    )


def _of(line: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    empty = dict.fromkeys(("mean", "low", "high", "p"))
    found: Mapping[str, Any] = line["measures"].get(key, {**empty, "sets": 0, "difference": empty})
    return found


def _clear(item: Mapping[str, Any]) -> int:
    """The sign of a difference whose interval does not hold zero, else 0."""
    if item["low"] is None:
        return 0
    return 1 if item["low"] > 0 else -1 if item["high"] < 0 else 0


def _dot(item: Mapping[str, Any]) -> Dot:
    value, low, high = (math.nan if item[key] is None else float(item[key]) for key in ("mean", "low", "high"))
    return Dot(value, low, high)


def _interval(item: Mapping[str, Any], sign: bool = False) -> str:
    if item["mean"] is None:
        return "–"
    mean = _number(item["mean"], sign)
    return mean if item["low"] is None else f"{mean} ({_number(item['low'], sign)} to {_number(item['high'], sign)})"


def _number(value: float, sign: bool = False) -> str:
    return f"{value:{'+' if sign else ''}.3f}".replace("-", "−")


def _listing(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
