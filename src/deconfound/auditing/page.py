"""One self-contained HTML page from the data of an audit.

Words and numbers are written here, escaped, so that the page reads without scripts; the figures are drawn from the
embedded data by `assets/page.js`. Nothing is fetched: the content security policy forbids it.
"""

import json
from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files
from typing import Any

from deconfound.auditing.words import RESAMPLES, STATISTICS

_SIGNS = {"left": "●", "trace": "◐", "clear": "○", "unanswerable": "?"}
_ANSWERS = {"left": "still there", "trace": "trace", "clear": "no sign", "unanswerable": "no answer"}
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def render(data: Mapping[str, Any]) -> str:
    """The page for `Audit.to_dict()` with the points of the figure under "points" (None leaves the figure out)."""
    about = data["about"]
    words = {name: {"name": item.name, "axis": item.axis} for name, item in STATISTICS.items()}
    title = f"Audit of {', '.join(about['models'])}"
    parts = {
        "title": escape(title),
        "policy": POLICY,
        "style": asset("page.css"),
        "script": asset("page.js"),
        "summary": _summary(about),
        "grid": _grid(data),
        "cards": "".join(_card(name, data) for name in _names(about["confounds"])),
        "figure": "" if data["points"] is None else _FIGURE,
        "notes": _notes(data["notes"]),
        "made": _made(data),
        "table": _table(data["rows"]),
        "data": _embedded({**data, "words": words}),
    }
    page = asset("page.html")
    for name, text in parts.items():
        page = page.replace("{{" + name + "}}", text, 1)
    return page


def asset(name: str) -> str:
    return files("deconfound.auditing").joinpath("assets", name).read_text(encoding="utf-8")


def _embedded(data: Mapping[str, Any]) -> str:
    """JSON that cannot end the script element or start a comment, whatever the table holds."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").replace("{{", "{\\u007b")


def _names(columns: Iterable[Mapping[str, Any]]) -> list[str]:
    return [column["name"] for column in columns]


def _summary(about: Mapping[str, Any]) -> str:
    people = f" of {about['people']:,} people" if about["people"] != about["rows"] else ""
    labels = ", ".join(_names(about["labels"])) or "none"
    models = ", ".join(about["models"])
    return safe(f"{models} · {about['rows']:,} rows{people} · label: {labels} · deconfound {about['version']}")


def _grid(data: Mapping[str, Any]) -> str:
    """Models against confounds, one sign each: the whole audit at a glance."""
    confounds = _names(data["about"]["confounds"])
    head = "".join(f'<th scope="col">{safe(name)}</th>' for name in confounds)
    lines = []
    spaces = list(dict.fromkeys((item["model"], item["space"]) for item in data["verdicts"]))
    several = len({space for _, space in spaces}) > 1
    for model, space in spaces:
        cells = ""
        for name in confounds:
            item = _verdict(data, model, space, name)
            cells += f"<td>{_badge(item['answer'])}<small>{_number(_main(data, item))}</small></td>"
        suffix = f" <small>{safe(space)}</small>" if several else ""
        lines.append(f'<tr><th scope="row">{safe(model)}{suffix}</th>{cells}</tr>')
    return f'<table class="grid"><thead><tr><td></td>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def _card(confound: str, data: Mapping[str, Any]) -> str:
    items = [item for item in data["verdicts"] if item["confound"] == confound]
    spaces = list(dict.fromkeys(item["space"] for item in items))
    body = ""
    for space in spaces:
        body += f"<h4>in the {safe(space)}</h4><ul>" if len(spaces) > 1 else "<ul>"
        for item in items:
            if item["space"] == space:
                sign = f'<span class="{item["answer"]}" aria-hidden="true">{_SIGNS[item["answer"]]}</span>'
                line = f"{sign} <span class='who'>{safe(item['model'])}:</span> {safe(item['headline'])}"
                is_open = " open" if len(items) == 1 else ""
                body += f"<li><details{is_open}><summary>{line}</summary><p>{safe(item['text'])}</p></details></li>"
        body += "</ul>"
    return f'<section class="card"><h3>{safe(confound)}</h3>{body}</section>'


def _badge(answer: str) -> str:
    return f'<span class="badge {answer}"><span aria-hidden="true">{_SIGNS[answer]}</span> {_ANSWERS[answer]}</span>'


def _verdict(data: Mapping[str, Any], model: str, space: str, confound: str) -> Mapping[str, Any]:
    key = (model, space, confound)
    return next(item for item in data["verdicts"] if (item["model"], item["space"], item["confound"]) == key)


def _main(data: Mapping[str, Any], item: Mapping[str, Any]) -> float | None:
    """The dcor² that a verdict rests on: the first row of its model, space and confound."""
    same = (row for row in data["rows"] if all(row[key] == item[key] for key in ("model", "space", "confound")))
    value: float | None = next(same)["value"]
    return value


def _notes(notes: Iterable[Mapping[str, Any]]) -> str:
    ordered = sorted(notes, key=lambda note: note["severity"] != "warning")
    items = "".join(
        f'<li class="{note["severity"]}"><strong>{note["severity"]}</strong> {safe(note["text"])}</li>'
        for note in ordered
    )
    return f"<ul class='notes'>{items}</ul>" if items else "<p>Nothing to remark.</p>"


def _made(data: Mapping[str, Any]) -> str:
    used = dict.fromkeys(row["statistic"] for row in data["rows"])
    items = "".join(f"<dt>{safe(STATISTICS[name].name)}</dt><dd>{safe(STATISTICS[name].made)}</dd>" for name in used)
    return f"<dl>{items}</dl><p>{safe(RESAMPLES.format(**data['about']))}</p>"


def _table(rows: Iterable[Mapping[str, Any]]) -> str:
    body = ""
    for row in rows:
        texts = [row["model"], row["space"], row["confound"], STATISTICS[row["statistic"]].name, row["level"]]
        cells = "".join(f"<td>{safe(text)}</td>" for text in texts)
        for key in ("value", "low", "high", "p", "chance", "independent"):
            exact = "" if row[key] is None else f' data-{key}="{row[key]!r}"'
            cells += f'<td class="number"{exact}>{_number(row[key])}</td>'
        body += f'<tr>{cells}<td class="number">{row["n"]:,}</td></tr>'
    return body


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}".replace("-", "−")


def safe(text: object) -> str:
    return escape(str(text)).replace("{{", "&#123;&#123;")


_FIGURE = """<section id="map" aria-labelledby="map-title">
<h2 id="map-title">Where the people lie</h2>
<p class="lead">Every point is a row of the table, at the same place for every colouring. Colours that lie apart can be
read from what the model passes on. The same points are shown for every model.</p>
<div class="controls"><label>Colour by <select id="map-colour"></select></label></div>
<div id="map-legend" class="legend" role="group" aria-label="Levels; press one to point it out"></div>
<div id="maps" class="panels"></div>
</section>"""
