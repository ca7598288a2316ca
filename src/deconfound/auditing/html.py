"""Pieces of self-contained HTML pages: one file, nothing fetched, text escaped, readable without scripts."""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


class Markup(str):
    """Text that is HTML already and is not escaped again."""

    __slots__ = ()


def html_page(
    title: str,
    sections: Iterable[str],
    *,
    kicker: str = "",
    heading: str | None = None,
    summary: str = "",
    skip_to: str = "",
    data: Mapping[str, Any] | None = None,
    script: str = "",
) -> str:
    """One self-contained HTML page.

    Args:
        title: of the window; text, like the next three.
        sections: HTML, such as `section` makes.
        kicker: a word or two above the heading.
        heading: the title by default.
        summary: one or two sentences below it.
        skip_to: id of the section that a keyboard reader can jump to.
        data: JSON-safe data for the script, embedded so that no text in it can become markup.
        script: JavaScript that is part of the page.

    Example:
        >>> page = html_page("Results", [section("Accuracy", html_table(["method", "AUC"], [["plain", ".71"]]))])
        >>> "<h2>Accuracy</h2>" in page and "Content-Security-Policy" in page
        True
    """
    skip = f'<a class="skip" href="#{skip_to}">Skip to the results</a>\n' if skip_to else ""
    above = f'<p class="kicker">{safe(kicker)}</p>\n' if kicker else ""
    below = f"\n<p>{safe(summary)}</p>" if summary else ""
    tail = ""
    if data is not None:
        tail += f'<script type="application/json" id="data">{_embedded(data)}</script>\n'
    if script:
        tail += f'<div id="tip" role="status" hidden></div>\n<script>\n{script}\n</script>\n'
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="color-scheme" content="light dark">
<title>{safe(title)}</title>
<style>
{asset("page.css")}
</style>
</head>
<body>
{skip}<header>
{above}<h1>{safe(title if heading is None else heading)}</h1>{below}
</header>
<main>
{"".join(sections)}</main>
{tail}</body>
</html>
"""


def section(title: str, *content: str, lead: str = "", id: str = "") -> str:
    """One section of a page: its title and a lead sentence (text), then HTML."""
    name = f' id="{safe(id)}" aria-labelledby="{safe(id)}-title"' if id else ""
    mark = f' id="{safe(id)}-title"' if id else ""
    text = f'<p class="lead">{safe(lead)}</p>\n' if lead else ""
    return f"<section{name}>\n<h2{mark}>{safe(title)}</h2>\n{text}{''.join(content)}\n</section>\n"


def html_table(head: Sequence[str], rows: Iterable[Sequence[object]], *, label: str = "") -> str:
    """A table that scrolls on a narrow screen; the first cell of a row is its name. `Markup` cells stay HTML."""
    names = "".join(f'<th scope="col">{safe(name)}</th>' for name in head)
    body = ""
    for first, *rest in rows:
        cells = "".join(f"<td>{safe(cell)}</td>" for cell in rest)
        body += f'<tr><th scope="row">{safe(first)}</th>{cells}</tr>'
    table = f'<table class="grid"><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>'
    return scrolling(table, label or head[0])


def scrolling(inner: str, label: str) -> str:
    """HTML in a region of its own that scrolls sideways on a narrow screen."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{safe(label)}">{inner}</div>'


def png_figure(png: bytes, description: str) -> str:
    """A PNG inside the page, with a sentence for those who cannot see it."""
    data = base64.b64encode(png).decode("ascii")
    return f'<img class="figure" src="data:image/png;base64,{data}" alt="{safe(description)}">'


def bullets(items: Iterable[str], kind: str = "") -> str:
    """A list of sentences."""
    name = f' class="{safe(kind)}"' if kind else ""
    return f"<ul{name}>{''.join(f'<li>{safe(item)}</li>' for item in items)}</ul>"


def safe(text: object) -> str:
    """Text that no HTML can hide in; `Markup` passes as it is."""
    return str(text) if isinstance(text, Markup) else escape(str(text))


def asset(name: str) -> str:
    """A file that is part of every page."""
    return files("deconfound.auditing").joinpath("assets", name).read_text(encoding="utf-8")


def _embedded(data: Mapping[str, Any]) -> str:
    """JSON that cannot end the script element or start a comment, whatever the table holds."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
