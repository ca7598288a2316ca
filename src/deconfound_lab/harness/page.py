"""Tables, figures and one self-contained page of an experiment; the same sections fill a page of the docs."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deconfound.auditing import Markup, html_page, html_table, png_figure, safe, section
from deconfound.data import write_bytes, write_text
from deconfound.errors import OptionError

REPORT, TABLES = "report.html", "tables.md"


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
        return html_table([marked(cell) for cell in self.head], [[marked(cell) for cell in row] for row in self.rows])


@dataclass(frozen=True)
class Figure:
    """A PNG under a file name, with a sentence for those who cannot see it."""

    name: str
    png: bytes
    description: str

    def html(self) -> str:
        """For a page of a report."""
        return png_figure(self.png, self.description)


@dataclass(frozen=True)
class Section:
    """A heading, what to look for, a table or a figure, and sentences after it, an item each."""

    title: str
    lead: str
    content: Table | Figure
    notes: Sequence[str] = ()

    def markdown(self, folder: str = "", level: int = 2) -> str:
        """For a documentation page; figures are links into `folder`."""
        shown = self.content
        body = shown.markdown() if isinstance(shown, Table) else f"![{shown.description}]({folder}/{shown.name})"
        return "\n\n".join([f"{'#' * level} {self.title}", self.lead, body, *listed(self.notes)])

    def html(self) -> str:
        """For a page of a report."""
        return section(self.title, self.content.html(), _list(self.notes), lead=marked(self.lead))


@dataclass(frozen=True)
class Page:
    """What an experiment shows: the summary is the finding, from numbers alone; `made` says where they come from."""

    kicker: str
    title: str
    summary: str
    sections: Sequence[Section]
    made: Sequence[str]

    def html(self) -> str:
        """The whole page in one file."""
        shown = [*(each.html() for each in self.sections), section("How this page was made", _list(self.made))]
        return html_page(self.title, shown, kicker=self.kicker, summary=self.summary)


def filled(sections: Sequence[Section]) -> list[Section]:
    """The sections that have something to show: a figure, or a table with rows."""
    return [each for each in sections if isinstance(each.content, Figure) or each.content.rows]


def write_page(page: Page, folder: Path) -> None:
    """Write the page, its figures, and its tables as Markdown."""
    tables = [each.markdown() for each in page.sections if isinstance(each.content, Table)]
    for each in page.sections:
        if isinstance(each.content, Figure):
            write_bytes(folder / each.content.name, each.content.png)
    write_text(folder / TABLES, "\n\n".join(tables) + "\n")
    write_text(folder / REPORT, page.html())


def fill(text: str, page: Page, folder: str) -> str:
    """A page of the docs with new content between its marks; the results' folder is given as seen from the page.

    `<!-- begin TITLE -->` and `<!-- end TITLE -->` hold the table or figure of the section of that title;
    `<!-- begin results -->` and `<!-- end results -->` hold all sections and where they come from.
    """
    blocks = {each.title: each.markdown(folder).split("\n\n", 2)[2] for each in page.sections}
    made = ["### Where these numbers come from", f"[All numbers]({folder}/results.json).", *listed(page.made)]
    blocks["results"] = "\n\n".join([*(each.markdown(folder, 3) for each in page.sections), *made])
    names = re.findall(r"<!-- begin (.+?) -->", text)
    if not names:
        raise OptionError("the page must hold <!-- begin TITLE --> and <!-- end TITLE -->; got neither. Add the marks.")
    for name in names:
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        if name not in blocks or text.count(begin) != 1 or text.count(end) != 1:
            raise OptionError(
                f"the page must hold {begin} and {end} once each, with the title of a section or 'results'; got "
                f"{name!r} where there are {', '.join(blocks)}."
            )
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n\n{blocks[name]}\n\n{end}{rest.partition(end)[2]}"
    return text


def listed(lines: Sequence[str]) -> list[str]:
    """Sentences as one Markdown list, or nothing."""
    return ["\n".join(f"- {line}" for line in lines)] if lines else []


def marked(text: str) -> Markup:
    """Text as HTML, with what Markdown marks as code or as strong."""
    code = re.sub(r"`([^`]+)`", r"<code>\1</code>", safe(text))
    return Markup(re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", code))


def _list(lines: Sequence[str]) -> str:
    items = "".join(f"<li>{marked(line)}</li>" for line in lines)
    return f'<ul class="notes">{items}</ul>' if items else ""


def settings(plan: Mapping[str, Any], without: Sequence[str] = ()) -> str:
    """The values of a plan in words."""
    words = [f"{name.replace('_', ' ')} {_words(value)}" for name, value in plan.items() if name not in without]
    return f"Settings: {', '.join(words)}."


def _words(value: Any) -> str:
    return "-".join(map(str, value)) if isinstance(value, list) else str(value)


def png(figure: Any, dpi: int = 110) -> bytes:
    """A matplotlib figure as bytes that are the same each time."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=dpi, metadata={"Software": None})
    return content.getvalue()


def tidy(axis: Any, along: str = "y") -> None:
    """No frame, and pale lines along one axis."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis=along, color="#e5e5e5", linewidth=0.7)
    axis.set_axisbelow(True)
