"""One self-contained page of an experiment: sentences, figures and tables, nothing to click."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from deconfound.auditing.page import POLICY, asset


@dataclass(frozen=True)
class Table:
    """A table of text, with `code` and **weight** as in Markdown; the first column names the rows."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """For a documentation page."""
        lines = ["| " + " | ".join(self.head) + " |", "|" + "---|" * len(self.head)]
        return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in self.rows)])

    def html(self) -> str:
        """For a page of a report."""
        head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in self.head)
        rows = "".join(
            f'<tr><th scope="row">{marked(first)}</th>' + "".join(f"<td>{marked(cell)}</td>" for cell in rest) + "</tr>"
            for first, *rest in self.rows
        )
        table = f'<table class="grid"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
        return f'<div class="scroll" tabindex="0">{table}</div>'


@dataclass(frozen=True)
class Figure:
    """A PNG with a sentence for those who cannot see it."""

    png: bytes
    description: str

    def html(self) -> str:
        """For a page of a report."""
        data = base64.b64encode(self.png).decode("ascii")
        style = "width:100%;height:auto;background:#fff;border-radius:8px"
        return f'<img style="{style}" src="data:image/png;base64,{data}" alt="{escape(self.description)}">'


@dataclass(frozen=True)
class Section:
    """A heading, what to look for, and what is there."""

    title: str
    lead: str
    content: Table | Figure


def sheet(kicker: str, title: str, summary: str, sections: Sequence[Section], made: Sequence[str]) -> str:
    """The page.

    Args:
        kicker: A word or two above the title.
        title: The page's title.
        summary: One or two sentences.
        sections: What it shows, in order.
        made: Where the numbers come from, a line each.
    """
    body = "".join(
        f'<section><h2>{escape(each.title)}</h2><p class="lead">{marked(each.lead)}</p>{each.content.html()}</section>'
        for each in sections
    )
    sources = "".join(f"<li>{escape(line)}</li>" for line in made)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title>'
        f"<style>{asset('page.css')}</style></head><body>"
        f'<header><p class="kicker">{escape(kicker)}</p><h1>{escape(title)}</h1><p>{escape(summary)}</p></header>'
        f"<main>{body}<section><h2>How this page was made</h2>"
        f'<ul class="notes">{sources}</ul></section></main></body></html>\n'
    )


def marked(text: str) -> str:
    """Text as HTML, with what Markdown marks as code or as strong."""
    code = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", code)
