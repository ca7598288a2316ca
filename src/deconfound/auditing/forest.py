"""Dots with intervals, one row for each model and one panel for each measure, a forest plot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from deconfound.auditing.figures import Figure, digits, scale
from deconfound.auditing.html import safe

ROW, TOP, BOTTOM, LABELS, PANEL, GAP = 28, 46, 34, 150, 190, 54


@dataclass(frozen=True)
class Dot:
    """A value with its interval; NaN ends draw the dot alone, a NaN value nothing."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, item: Mapping[str, Any] | None, key: str = "value") -> Self:
        """The value under a key, and its interval, of a row as JSON holds it; None is no number."""
        numbers = [None] * 3 if item is None else [item[key], item["low"], item["high"]]
        return cls(*(math.nan if number is None else float(number) for number in numbers))


@dataclass(frozen=True)
class Panel:
    """One measure of every model: a dot for each, a note on what is good, and where a vertical line stands."""

    title: str
    note: str
    dots: tuple[Dot, ...]
    line: float | None = 0.0


def forest(models: Sequence[str], panels: Sequence[Panel], title: str) -> Figure:
    """The figure, which a reader of the page can zoom and print."""
    width = LABELS + len(panels) * (PANEL + GAP)
    height = TOP + ROW * len(models) + BOTTOM
    parts = [
        f'<text x="4" y="{_y(row) + 4}">{safe(name if len(name) <= 20 else name[:19] + "…")}</text>'
        f'<line class="axis" x1="0" x2="{width - GAP}" y1="{_y(row) + ROW / 2}" y2="{_y(row) + ROW / 2}" opacity=".5"/>'
        for row, name in enumerate(models)
    ]
    for number, panel in enumerate(panels):
        parts.append(_panel(panel, models, LABELS + number * (PANEL + GAP), height))
    return Figure(title, parts, width, height, wide=True)


def _y(row: int) -> float:
    return TOP + ROW * (row + 0.5)


def _panel(panel: Panel, models: Sequence[str], left: float, height: int) -> str:
    numbers = [n for dot in panel.dots for n in (dot.value, dot.low, dot.high) if math.isfinite(n)]
    if panel.line is not None:
        numbers.append(panel.line)
    low, high, step = scale(min(numbers, default=0.0), max(numbers, default=1.0))

    def x(value: float) -> float:
        return left + PANEL * (value - low) / (high - low)

    floor = height - BOTTOM
    parts = [
        f'<text x="{left}" y="16" font-weight="600">{safe(panel.title)}</text>',
        f'<text class="soft" x="{left}" y="33">{safe(panel.note)}</text>',
        f'<line class="axis" x1="{left}" x2="{left + PANEL}" y1="{floor}" y2="{floor}"/>',
    ]
    count = round((high - low) / step)
    for tick in (low + step * k for k in range(count + 1)):
        parts.append(f'<line class="axis" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{floor}" y2="{floor + 4}"/>')
        text = f"{tick + 0.0:.{digits(step)}f}".replace("-", "−")
        parts.append(f'<text class="soft" x="{x(tick):.1f}" y="{floor + 18}" text-anchor="middle">{text}</text>')
    if panel.line is not None:
        at = x(panel.line)
        parts.append(f'<line class="axis whole" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{floor}"/>')
    for row, (name, dot) in enumerate(zip(models, panel.dots, strict=True)):
        parts.append(_dot(dot, f"{name}: {panel.title}", x, _y(row)))
    return "".join(parts)


def _dot(dot: Dot, name: str, x: object, y: float) -> str:
    assert callable(x)
    if not math.isfinite(dot.value):
        return ""
    text = f"{name} {dot.value:.3f}"
    line = ""
    if math.isfinite(dot.low) and math.isfinite(dot.high):
        text += f" ({dot.low:.3f} to {dot.high:.3f})"
        line = (
            f'<line x1="{x(dot.low):.1f}" x2="{x(dot.high):.1f}" y1="{y:.1f}" y2="{y:.1f}" '
            'stroke="var(--m0)" stroke-width="2" opacity=".6"/>'
        )
    centre = f'<circle cx="{x(dot.value):.1f}" cy="{y:.1f}" r="4.5" fill="var(--m0)"/>'
    return f"<g>{line}{centre}<title>{safe(text.replace('-', '−'))}</title></g>"
