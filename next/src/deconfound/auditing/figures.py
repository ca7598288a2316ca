"""The figure of an audit: effects with their intervals, beside what independence would give."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Row = Mapping[str, Any]

# Inches. At this width the text is readable on a phone, and the page enlarges it elsewhere.
WIDTH, ROW_HEIGHT, MARGIN = 4.0, 0.4, 0.42
# The height of a bar as a share of its row.
BAR = 0.36
# Effects on the axis below; they are the limits of the grades, beside correlations on the axis
# above. Positions are correlations, so that small effects are not crowded at 0.
EFFECTS = (0.0, 0.01, 0.06, 0.25, 0.5, 1.0)
CORRELATIONS = (0.0, 0.1, 0.25, 0.5, 0.7, 1.0)
LONGEST_NAME = 44
# Each colour stands for a variable of the page's style sheet, which has light and dark values.
COLOURS = {
    "text": "#010101",
    "muted": "#020202",
    "band": "#030303",
    "found": "#040404",
    "not-found": "#050505",
}


def draw_effects(verdicts: Sequence[Row]) -> str:
    """Draw the effects of all models, confound by confound, and return an SVG element.

    Colours are the variables --text, --muted, --band, --found and --not-found of the page.

    Args:
        verdicts: The rows under "verdicts" of `Audit.to_dict()`.
    """
    order = list(dict.fromkeys(verdict["confound"] for verdict in verdicts))
    verdicts = sorted(verdicts, key=lambda verdict: order.index(verdict["confound"]))
    height = 2 * MARGIN + ROW_HEIGHT * len(verdicts)
    style: dict[Any, Any] = {
        "svg.fonttype": "none",  # Text stays text, which takes the font of the page.
        "svg.hashsalt": "deconfound",  # Equal audits have equal figures.
        "text.parse_math": False,  # A name with dollar signs is no formula.
        "hatch.color": COLOURS["band"],
        "font.size": 8.5,
    }
    # Names in scripts that the measuring font lacks are drawn by the browser.
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        mpl.rcdefaults()  # A style of the user's own would change the page.
        mpl.rcParams.update(style)
        figure = Figure(figsize=(WIDTH, height))
        box = (0.03, MARGIN / height, 0.94, 1 - 2 * MARGIN / height)
        axes = figure.add_axes(box)
        _draw_scales(axes, len(verdicts))
        for place, (name, verdict) in enumerate(zip(_names(verdicts), verdicts, strict=True)):
            _draw_row(axes, place, name, verdict)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _style_svg(buffer.getvalue())


def _draw_scales(axes: Axes, rows: int) -> None:
    axes.set(xlim=(-0.01, 1.01), ylim=(rows, 0), yticks=[])
    axes.set_xticks([effect**0.5 for effect in EFFECTS], [f"{effect:g}" for effect in EFFECTS])
    axes.set_xlabel("effect", color=COLOURS["muted"], labelpad=1)
    above = axes.secondary_xaxis("top")
    above.set_xticks(CORRELATIONS, [f"{value:g}" for value in CORRELATIONS])
    above.set_xlabel("as a correlation", color=COLOURS["muted"], labelpad=3)
    for side in (axes, above):
        side.tick_params(colors=COLOURS["muted"], length=2)
        side.spines[:].set_visible(False)


def _draw_row(axes: Axes, place: int, name: str, verdict: Row) -> None:
    """Draw one verdict below its name: the band of independence, the interval and the effect."""
    middle = place + 0.68
    effect = verdict["effect"]
    # Lines through the whole figure would cross the names.
    top, bottom = middle - BAR / 2, middle + BAR / 2
    axes.vlines(np.sqrt(EFFECTS), top, bottom, color=COLOURS["band"], linewidth=0.6)
    is_unknown = effect["value"] is None
    text = f"{name}: {verdict['answer']}" if is_unknown else name
    axes.text(0.01, place + 0.3, text, va="center", color=COLOURS["text"])
    if is_unknown:
        axes.barh(middle, 1, height=BAR, fill=False, hatch="////", edgecolor=COLOURS["band"])
        return
    colour = COLOURS["found" if verdict["answer"] == "found" else "not-found"]
    if verdict["independent"] is not None:
        width = _position(verdict["independent"])
        axes.barh(middle, width, height=BAR, color=COLOURS["band"], linewidth=0)
    if effect["low"] is not None:
        ends = [_position(effect["low"]), _position(effect["high"])]
        axes.plot(ends, [middle, middle], color=colour, linewidth=1.8, solid_capstyle="butt")
    # The shape of the marker repeats the colour for people who do not tell the colours apart.
    marker = "D" if verdict["answer"] == "found" else "o"
    axes.plot(_position(effect["value"]), middle, marker, color=colour, markersize=5)


def _position(effect: float) -> float:
    """Return the place of an effect on the axis: as a correlation, and 0 if it is negative."""
    return float(np.sqrt(max(effect, 0.0)))


def name_source(verdict: Row) -> str:
    """Return the model of a verdict, or the name of the features, marked as such."""
    has_mark = verdict["is_features"] and verdict["model"] != "features"
    return str(verdict["model"]) + (" (features)" if has_mark else "")


def _names(verdicts: Sequence[Row]) -> Iterator[str]:
    """Yield the name of each row: the confound, and the model if there are several."""
    has_models = len(set(map(name_source, verdicts))) > 1
    for verdict in verdicts:
        name = verdict["confound"] + (f", {name_source(verdict)}" if has_models else "")
        yield name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def _style_svg(svg: str) -> str:
    """Return the SVG element alone, in the colours and the font of the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", "inherit", svg)
    for name, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--{name})")
    return svg
