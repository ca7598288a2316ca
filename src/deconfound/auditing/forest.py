"""Dots with intervals, one row for each model and one panel for each measure, a forest plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from deconfound.auditing.figures import Figure, Value, scale, ticks
from deconfound.auditing.html import safe

ROW, TOP, BOTTOM, LABELS, PANEL, GAP = 28, 46, 34, 150, 190, 54


@dataclass(frozen=True)
class Panel:
    """One measure of every model: a value for each, a note on what is good, and where a vertical line stands."""

    title: str
    note: str
    values: tuple[Value, ...]
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
    numbers = [number for item in panel.values for number in item.finite]
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
    for tick, text in ticks(low, high, step):
        parts.append(f'<line class="axis" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{floor}" y2="{floor + 4}"/>')
        parts.append(f'<text class="soft" x="{x(tick):.1f}" y="{floor + 18}" text-anchor="middle">{text}</text>')
    if panel.line is not None:
        at = x(panel.line)
        parts.append(f'<line class="axis whole" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{floor}"/>')
    for row, (name, item) in enumerate(zip(models, panel.values, strict=True)):
        if not math.isfinite(item.value):
            continue
        y, line, text = _y(row), "", f"{name}: {panel.title} {item.value:.3f}"
        if len(item.finite) == 3:
            text += f" ({item.low:.3f} to {item.high:.3f})"
            line = (
                f'<line x1="{x(item.low):.1f}" x2="{x(item.high):.1f}" y1="{y:.1f}" y2="{y:.1f}" '
                'stroke="var(--m0)" stroke-width="2" opacity=".6"/>'
            )
        centre = f'<circle cx="{x(item.value):.1f}" cy="{y:.1f}" r="4.5" fill="var(--m0)"/>'
        parts.append(f"<g>{line}{centre}<title>{safe(text.replace('-', '−'))}</title></g>")
    return "".join(parts)
