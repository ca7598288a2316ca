"""Numbers with intervals, tables in Markdown, figures, and pages that are filled from results."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import stats

from deconfound.errors import OptionError
from deconfound_lab.harness import Page, Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What a table shows where there is no result.
GAP = "–"
# Two results have an interval of Student's t that is wider than any finding.
FEWEST_FOR_INTERVAL = 3
LEVEL = 0.95
WIDTH = 100
MARK = re.compile(r"<!-- begin (.+?) -->.*?<!-- end \1 -->", re.DOTALL)


@dataclass(frozen=True)
class MeanInterval:
    """A mean with its 95 % confidence interval.

    Attributes:
        mean: The mean.
        half_width: Half the width of the interval; None with fewer than three values.
        count: The number of values.
    """

    mean: float
    half_width: float | None
    count: int


def mean_interval(values: Iterable[float | None]) -> MeanInterval | None:
    """Return the mean of independent results with Student's interval; None if there is none.

    Example:
        >>> mean_interval([1.0, 2.0, 3.0])
        MeanInterval(mean=2.0, half_width=2.4841377117503303, count=3)
    """
    known = np.array([value for value in values if value is not None], dtype=np.float64)
    if not len(known):
        return None
    half_width = None
    if len(known) >= FEWEST_FOR_INTERVAL:
        quantile = stats.t.ppf((1 + LEVEL) / 2, len(known) - 1)
        half_width = float(quantile * known.std(ddof=1) / np.sqrt(len(known)))
    return MeanInterval(float(known.mean()), half_width, len(known))


def format_mean(values: Iterable[float | None], digits: int = 1, scale: float = 1.0) -> str:
    """Return a mean with half the width of its interval as text.

    Example:
        >>> format_mean([0.831, 0.833, 0.835], scale=100), format_mean([0.83], scale=100)
        ('83.3 ± 0.5', '83.0')
        >>> format_mean([])
        '–'
    """
    estimate = mean_interval(values)
    if estimate is None:
        return GAP
    text = f"{scale * estimate.mean:.{digits}f}"
    if estimate.half_width is None:
        return text
    return f"{text} ± {scale * estimate.half_width:.{digits}f}"


def to_markdown(table: pd.DataFrame) -> str:
    """Return a table of text in Markdown, without its index; missing cells are gaps.

    Example:
        >>> print(to_markdown(pd.DataFrame({"": ["PMDN"], "batch 20": ["83.3"]})))
        |  | batch 20 |
        |---|---|
        | PMDN | 83.3 |
    """
    rows = [table.columns.astype(str), *table.astype(object).fillna(GAP).to_numpy()]
    lines = ["| " + " | ".join(escape(str(cell)) for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * table.shape[1], *lines[1:]])


def escape(text: str) -> str:
    """Return text that Markdown does not take for the end of a cell, or for HTML."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def describe_makers(results: Results) -> str:
    """Return one line for each release, commit and machine that made cells of these results."""
    counts: dict[tuple[str, ...], int] = {}
    for cell in results.cells:
        maker = results.provenance[cell["provenance"]]
        versions = ", ".join(f"{name} {number}" for name, number in maker["versions"].items())
        commit = maker["commit"][:10] + (" with later changes" if maker["dirty"] else "")
        key = (maker["release"], commit, maker["device"], versions)
        counts[key] = counts.get(key, 0) + ("result" in cell)
    lines = [
        f"- Made with release {release} at commit {commit}: {count} cells, on {device}, {versions}."
        for (release, commit, device, versions), count in counts.items()
    ]
    failed = [cell for cell in results.cells if "error" in cell]
    lines += [f"- Failed: {cell['config']}: {escape(cell['error'])}" for cell in failed]
    return "\n".join(wrap(line, indent="  ") for line in lines)


def wrap(text: str, indent: str = "") -> str:
    """Return text in lines as wide as those of the documentation."""
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def write_page(name: str, page: Page, results: Results, folder: str | Path) -> None:
    """Save the figures of a page and fill the marked blocks of its Markdown file.

    `folder/<name>.md` may hold the blocks `<!-- begin NAME --> … <!-- end NAME -->`, where NAME is
    a paragraph, table or figure of the page, or "made with". What stands outside is left as it is.
    Figures are saved in `folder/<name>/`. Without such a file, one with all blocks is written.

    Args:
        name: The name of the experiment.
        page: The page.
        results: Where its numbers come from.
        folder: The folder of the pages, such as `docs/results`.
    """
    folder = Path(folder)
    path = folder / f"{name}.md"
    blocks = make_blocks(name, page, results)
    for title, figure in page.figures.items():
        save_figure(figure, folder / name / f"{file_name(title)}.png")
    if not path.exists():
        sections = [
            f"## {title}\n\n<!-- begin {title} -->\n<!-- end {title} -->" for title in blocks
        ]
        path.write_text("\n\n".join([f"# {page.title}", *sections]) + "\n", encoding="utf-8")
    text = fill_blocks(path.read_text(encoding="utf-8"), blocks)
    path.write_text(text, encoding="utf-8")


def make_blocks(name: str, page: Page, results: Results) -> dict[str, str]:
    """Return what stands in each marked block of a page."""
    blocks = {title: wrap(paragraph) for title, paragraph in page.text.items()}
    blocks |= {title: to_markdown(table) for title, table in page.tables.items()}
    links = {title: f"{name}/{file_name(title)}.png" for title in page.figures}
    blocks |= {title: f"![{escape(title)}]({link})" for title, link in links.items()}
    return {**blocks, "made with": describe_makers(results)}


def fill_blocks(text: str, blocks: Mapping[str, str]) -> str:
    """Return a page of Markdown with new content between its marks.

    Example:
        >>> page = "Before. <!-- begin answer --> old <!-- end answer --> After."
        >>> print(fill_blocks(page, {"answer": "new"}))
        Before. <!-- begin answer -->
        <BLANKLINE>
        new
        <BLANKLINE>
        <!-- end answer --> After.
    """

    def fill(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in blocks:
            known = ", ".join(map(repr, blocks))
            raise OptionError(f"The page has a block {name!r}; these results have {known}.")
        return f"<!-- begin {name} -->\n\n{blocks[name]}\n\n<!-- end {name} -->"

    return MARK.sub(fill, text)


def file_name(name: str) -> str:
    """Return a name of lower-case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def make_panels(count: int, size: tuple[float, float] = (4.5, 4.2)) -> tuple[Figure, Sequence[Any]]:
    """Return a figure with panels side by side, in the style of all figures of the lab."""
    # Not pyplot, which opens windows and keeps every figure.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(count * size[0], size[1]), layout="constrained")
    panels = [figure.add_subplot(1, count, place + 1) for place in range(count)]
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color="#e5e5e5", linewidth=0.7)
        panel.set_axisbelow(True)
    return figure, panels


def save_figure(figure: Figure, path: Path) -> None:
    """Save a figure as PNG, with equal bytes for equal figures."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, metadata={"Software": None})
