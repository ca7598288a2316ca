"""The page of an audit: words and numbers as HTML, figures as SVG, and a script that only redraws and recolours."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from deconfound.auditing.html import Markup, asset, html_page, html_table, safe, scrolling, section
from deconfound.auditing.performance_page import figures_section, performance_section
from deconfound.auditing.words import RESAMPLES, STATISTICS, shown

_SIGNS = {"strong": "●", "clear": "●", "weak": "◐", "faint": "◔", "none found": "○", "no answer": "–"}


def audit_page(data: Mapping[str, Any]) -> str:
    """The page for `Audit.to_dict()` with "points" (None leaves the map out) and "shapes" (curves and quantiles)."""
    about = data["about"]
    return html_page(
        f"Audit of {', '.join(about['models'])}",
        audit_sections(data),
        kicker="Confound audit",
        heading="What is left",
        summary=_summary(about),
        skip_to="verdicts",
        data=page_data(data),
        script=asset("page.js"),
    )


def page_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """What the script of the page reads."""
    words = {name: {"name": item.name, "axis": item.axis} for name, item in STATISTICS.items()}
    wanted = ("about", "rows", "points")
    return {**{key: data[key] for key in wanted}, "words": words}


def audit_sections(data: Mapping[str, Any], title: str = "Verdicts") -> list[str]:
    """Every section of an audit, in the order of reading."""
    shapes = data.get("shapes") or {}
    cards = "".join(_card(name, data) for name in _names(data["about"]["confounds"]))
    found = [
        section("Before you read the numbers", notes_list(data), id="notes"),
        section(title, _grid(data), _KEY, f'<div class="cards">{cards}</div>', id="verdicts"),
        section("How much is left", _LEFT, lead=_LEFT_LEAD, id="left"),
        performance_section(data),
        figures_section(shapes),
    ]
    if data["points"] is not None:
        found.append(section("Where the people lie", _MAP, lead=_MAP_LEAD, id="map"))
    return [*found, _made(data), _numbers(data["rows"]), _NOSCRIPT]


def _summary(about: Mapping[str, Any]) -> str:
    people = f" of {about['people']:,} people" if about["people"] != about["rows"] else ""
    labels = ", ".join(_names(about["labels"])) or "none"
    folds = f" · {about['folds']} test folds" if about["fold"] else ""
    models = ", ".join(about["models"])
    return f"{models} · {about['rows']:,} rows{people}{folds} · label: {labels} · deconfound {about['version']}"


def _names(columns: Iterable[Mapping[str, Any]]) -> list[str]:
    return [column["name"] for column in columns]


def notes_list(data: Mapping[str, Any]) -> str:
    """How outputs were read first, then warnings, then notes."""
    items = ""
    for note in sorted(data["notes"], key=lambda note: (note["kind"] != "reading", note["severity"] != "warning")):
        word = "read as" if note["kind"] == "reading" else note["severity"]
        items += f'<li class="{note["severity"]}"><strong>{word}</strong> {safe(note["text"])}</li>'
    return f"<ul class='notes'>{items}</ul>" if items else "<p>Nothing to remark.</p>"


def _grid(data: Mapping[str, Any]) -> str:
    """Models against confounds, one grade each: the whole audit at a glance."""
    confounds = _names(data["about"]["confounds"])
    by_key = {(item["model"], item["space"], item["confound"]): item for item in data["verdicts"]}
    spaces = list(dict.fromkeys((item["model"], item["space"]) for item in data["verdicts"]))
    several = len({space for _, space in spaces}) > 1
    rows = []
    for model, space in spaces:
        name = Markup(f"{safe(model)} <small>{safe(space)}</small>") if several else model
        rows.append([name, *(_cell(by_key[model, space, confound]) for confound in confounds)])
    return html_table(["", *confounds], rows, label="Models against confounds")


def _cell(item: Mapping[str, Any]) -> Markup:
    number = "" if item["effect"] is None or item["grade"] == "no answer" else shown(item["effect"])
    holm = " · stands after correction" if item["p_holm"] is not None and item["p_holm"] <= 0.05 else ""
    kind, sign = item["grade"].replace(" ", "-"), _SIGNS[item["grade"]]
    badge = f'<span class="badge {kind}"><span aria-hidden="true">{sign}</span> {safe(item["grade"])}</span>'
    return Markup(f"{badge}<small>{number}{holm}</small>")


def _card(confound: str, data: Mapping[str, Any]) -> str:
    items = [item for item in data["verdicts"] if item["confound"] == confound]
    spaces = list(dict.fromkeys(item["space"] for item in items))
    body = ""
    for space in spaces:
        body += f"<h4>in the {safe(space)}</h4><ul>" if len(spaces) > 1 else "<ul>"
        for item in items:
            if item["space"] == space:
                kind = item["grade"].replace(" ", "-")
                sign = f'<span class="{kind}" aria-hidden="true">{_SIGNS[item["grade"]]}</span>'
                line = f"{sign} <span class='who'>{safe(item['model'])}:</span> {safe(item['headline'])}"
                is_open = " open" if len(items) == 1 else ""
                body += f"<li><details{is_open}><summary>{line}</summary><p>{safe(item['text'])}</p></details></li>"
        body += "</ul>"
    return f'<section class="card"><h3>{safe(confound)}</h3>{body}</section>'


def _made(data: Mapping[str, Any]) -> str:
    used = dict.fromkeys(row["statistic"] for row in data["rows"])
    items = "".join(f"<dt>{safe(STATISTICS[name].name)}</dt><dd>{safe(STATISTICS[name].made)}</dd>" for name in used)
    text = f"<dl>{items}</dl><p>{safe(RESAMPLES.format(**data['about']))}</p>"
    return section(
        "How each number was made", f"<details><summary>Show the definitions</summary>{text}</details>", id="made"
    )


def _numbers(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ("model", "of the", "confound", "statistic", "level", "value", "low", "high", "p",
            "what the label alone gives", "independent", "n")  # fmt: skip
    body = []
    for row in rows:
        texts = [row["model"], row["space"], row["confound"], STATISTICS[row["statistic"]].name, row["level"]]
        cells = "".join(f"<td>{safe(text)}</td>" for text in texts)
        for key in ("value", "low", "high", "p", "chance", "independent"):
            exact = "" if row[key] is None else f' data-{key}="{row[key]!r}"'
            cells += f'<td class="number"{exact}>{shown(row[key])}</td>'
        body.append(f'<tr>{cells}<td class="number">{row["n"]:,}</td></tr>')
    names = "".join(f"<th>{name}</th>" for name in head)
    table = f'<table class="numbers"><thead><tr>{names}</tr></thead><tbody>{"".join(body)}</tbody></table>'
    inner = f"{_FILTER}{scrolling(table, 'All numbers')}"
    return section("All numbers", f"<details><summary>Show the table</summary>{inner}</details>", id="numbers")


_KEY = (
    '<p class="key">The number is dcor² given the label (0: independent, 1: fully determined). Grades where its test '
    "rejects at 5 %: faint below .01, weak below .05, clear below .2, strong above. Where it does not, but a probe "
    "finds the confound at 1 %, the grade is faint whatever the number. Grey: no answer, with the reason below.</p>"
)
_LEFT_LEAD = "Dot: the value. Line: its 95 % interval. Shaded: where independent data fall 95 times in 100."
_LEFT = """<div class="controls">
<label>Measure <select id="left-measure"></select></label>
<label id="left-space-label">Of the <select id="left-space"></select></label>
</div>
<div id="left-charts" class="panels"></div>"""
_FILTER = '<label>Filter <input id="filter" type="search" placeholder="model, confound, statistic…"></label>'
_MAP_LEAD = (
    "Every point is a row of the table, at the same place for every colouring. Colours that lie apart can be read from "
    "what the model passes on. The same points are shown for every model."
)
_MAP = """<div class="controls"><label>Colour by <select id="map-colour"></select></label></div>
<div id="map-legend" class="legend" role="group" aria-label="Levels; press one to point it out"></div>
<div id="maps" class="panels"></div>"""
_NOSCRIPT = (
    "<noscript><p>Some figures are drawn by a script that is part of this file; verdicts and numbers are here without "
    "it.</p></noscript>"
)
