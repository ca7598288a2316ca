"""The figures of an audit as files of their own: SVG, and PNG drawn from the same SVG by matplotlib."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from deconfound.auditing.figures import Figure, Value
from deconfound.auditing.forest import Panel, forest
from deconfound.auditing.html import asset
from deconfound.auditing.performance_page import part_figures
from deconfound.auditing.records import by_stratum
from deconfound.auditing.words import STATISTICS
from deconfound.data.files import write_bytes
from deconfound.errors import OptionError, need

KINDS = ("svg", "png")
# Dots of a PNG for one unit of the drawing.
_SCALE = 3
# What the classes of the page mean in a file that has no style sheet.
_CLASSES = {
    "axis whole": 'stroke="var(--line)" stroke-dasharray="4 3"',
    "axis": 'stroke="var(--line)"',
    "soft": 'fill="var(--soft)" font-size="12"',
}


def save_figures(data: Mapping[str, Any], shapes: Mapping[str, Any], folder: Path, kinds: Sequence[str]) -> list[Path]:
    """Write every figure of an audit in each of these kinds, named by its title."""
    if not kinds or any(kind not in KINDS for kind in kinds):
        raise OptionError(f"kinds must be of {', '.join(KINDS)}; got {', '.join(map(str, kinds)) or 'none'}.")
    if "png" in kinds:
        need("matplotlib", "train")
    written = []
    for item in audit_figures(data, shapes):
        text = standalone(item)
        name = re.sub(r"[^\w-]+", "-", item.title).strip("-")
        for kind in kinds:
            written.append(folder / f"{name}.{kind}")
            write_bytes(written[-1], png(text) if kind == "png" else text.encode())
    return written


def audit_figures(data: Mapping[str, Any], shapes: Mapping[str, Any]) -> Iterator[Figure]:
    """What is left of every confound, performance by stratum, then the curves and spreads of each model."""
    main = [row for row in data["rows"] if row["statistic"] == data["about"]["main"]]
    for space in dict.fromkeys(row["space"] for row in main):
        part = [row for row in main if row["space"] == space]
        yield _forest(part, "model", "confound", f"What is left in the {space}")
    strata = by_stratum(data["rows"])
    for confound in dict.fromkeys(row["confound"] for row in strata):
        part = [row for row in strata if row["confound"] == confound]
        yield _forest(part, "level", "model", f"Performance by {confound}")
    for model, parts in shapes.items():
        for part in parts:
            yield from part_figures(" · ".join(filter(None, [model, part["name"]])), part)


def _forest(rows: Sequence[Mapping[str, Any]], down: str, across: str, title: str) -> Figure:
    """A line for each value of one field, a panel for each of the other."""
    lines, panels = (list(dict.fromkeys(row[field] for row in rows)) for field in (down, across))
    cells = {(row[down], row[across]): row for row in rows}
    note = STATISTICS[rows[0]["statistic"]].name
    line = None if across == "model" else 0.0
    drawn = [Panel(name, note, tuple(Value.of(cells.get((each, name))) for each in lines), line) for name in panels]
    return forest(lines, drawn, title)


def standalone(figure: Figure) -> str:
    """An SVG file: the page's light colours written into it, on white."""
    text = figure.svg.replace(' style="', ' data-style="')
    for name, meaning in _CLASSES.items():
        text = text.replace(f'class="{name}"', meaning)
    text = re.sub(r"<text (?![^>]*fill=)", '<text fill="var(--ink)" font-size="13" ', text)
    colours = dict(re.findall(r"(--\w+): (#\w+)", asset("page.css").partition("@media")[0]))
    text = re.sub(r"var\((--\w+)\)", lambda found: colours[found[1]], text)
    width, height = re.findall(r'viewBox="0 0 (\d+) (\d+)"', text)[0]
    size = f'xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif"'
    start, end = text.split(">", 1)
    return f'{start.replace("<svg", f"<svg {size}", 1)}><rect width="{width}" height="{height}" fill="#ffffff"/>{end}'


def png(svg: str) -> bytes:
    """The lines, circles, boxes and texts of `standalone`, drawn by matplotlib."""
    from matplotlib.figure import Figure as Drawing

    root = ElementTree.fromstring(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    drawing = Drawing(figsize=(width / 96, height / 96), dpi=96 * _SCALE)
    axes = drawing.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    _draw(root, axes, 1.0)
    out = io.BytesIO()
    drawing.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def _draw(parent: ElementTree.Element, axes: Any, opacity: float) -> None:
    from matplotlib.patches import Circle, Rectangle

    for node in parent:
        kind, given = node.tag.rpartition("}")[2], node.attrib
        at = {key: float(value) for key, value in given.items() if re.fullmatch(r"-?[\d.]+", value)}
        alpha = opacity * at.get("opacity", 1.0)
        line = {"color": given.get("stroke"), "linewidth": 0.75 * at.get("stroke-width", 1.0), "alpha": alpha}
        line["linestyle"] = "--" if "stroke-dasharray" in given else "-"
        if kind == "g":
            _draw(node, axes, alpha)
        elif kind == "line":
            axes.plot([at["x1"], at["x2"]], [at["y1"], at["y2"]], **line)
        elif kind == "polyline":
            points = [tuple(map(float, pair.split(","))) for pair in given["points"].split()]
            axes.plot(*zip(*points, strict=True), **line) if points else None
        elif kind == "circle":
            axes.add_patch(Circle((at["cx"], at["cy"]), at["r"], color=given["fill"], alpha=alpha, linewidth=0))
        elif kind == "rect":
            corner = at.get("x", 0.0), at.get("y", 0.0)
            axes.add_patch(Rectangle(corner, at["width"], at["height"], color=given["fill"], alpha=alpha, linewidth=0))
        elif kind == "text":
            side = {"end": "right", "middle": "center"}.get(given.get("text-anchor", ""), "left")
            weight = "bold" if "font-weight" in given else "normal"
            style = {"fontsize": 0.75 * at["font-size"], "ha": side, "va": "baseline", "weight": weight}
            axes.text(at["x"], at["y"], node.text or "", color=given["fill"], parse_math=False, **style)
