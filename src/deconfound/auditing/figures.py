"""Figures as SVG without scripts: curves, spreads by stratum, and scatters, for light and dark pages and for files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from deconfound.auditing.html import Markup, safe

COLOURS = 12
SIDE, LEFT, BOTTOM, TOP, LEGEND = 300, 44, 40, 10, 18


def colour(place: int) -> str:
    """One of twelve colours that differ in light and in dark."""
    return f"var(--m{place % COLOURS})"


@dataclass(frozen=True)
class Figure:
    """A drawing of so many units, with a legend below where its colours have names.

    `svg` uses the colours and classes of the page; `wide` lets a narrow screen scroll instead of shrinking it.
    """

    title: str
    parts: Sequence[str]
    width: float
    height: float
    names: Sequence[str] = ()
    wide: bool = False

    @property
    def svg(self) -> str:
        """The drawing as an SVG element."""
        columns = 2 if max(map(len, self.names), default=0) <= 20 else 1
        rows = math.ceil(len(self.names) / columns)
        key = []
        for place, name in enumerate(self.names):
            x, y = 10 + self.width / columns * (place // rows), self.height + 12 + LEGEND * (place % rows)
            text = f'<text x="{x + 10:.0f}" y="{y + 4:.0f}">{_short(name, 50 // columns)}</text>'
            key.append(f'<g><circle cx="{x:.0f}" cy="{y:.0f}" r="5" fill="{colour(place)}"/>{text}</g>')
        size = f'viewBox="0 0 {self.width:.0f} {self.height + LEGEND * rows + 6 * bool(rows):.0f}"'
        wide = f' style="min-width:{0.8 * self.width:.0f}px"' if self.wide else ""
        return f'<svg {size}{wide} role="img" aria-label="{safe(self.title)}">{"".join([*self.parts, *key])}</svg>'

    @property
    def html(self) -> Markup:
        """The drawing with its title; the script of the page adds buttons that save it."""
        title = safe(self.title)
        return Markup(f'<figure class="panel" data-export="{title}"><h3>{title}</h3>{self.svg}</figure>')


@dataclass(frozen=True)
class Curve:
    """A named line through points, with dots at them on request."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    dots: bool = False


def curves(title: str, lines: Sequence[Curve], axes: tuple[str, str]) -> Figure:
    """Curves in the unit square (ROC, calibration) with a legend below, as a figure that can be exported."""
    frame = _Frame((0.0, 1.0), (0.0, 1.0))
    diagonal = _line([frame.at(0, 0), frame.at(1, 1)], "var(--soft)", dashed=True)
    return frame.figure(title, [frame.axes(axes), diagonal, *frame.curves(lines)], [line.name for line in lines])


def training_curves(title: str, lines: Sequence[Curve]) -> Figure:
    """Losses over epochs."""
    values = [value for line in lines for value in line.y if math.isfinite(value)]
    longest = max((len(line.y) for line in lines), default=2)
    low, high, _ = scale(min(values, default=0.0), max(values, default=1.0))
    frame = _Frame((0.0, max(1.0, longest - 1.0)), (low, high))
    axes = frame.axes(("epoch", "loss"))
    return frame.figure(title, [axes, *frame.curves(lines)], [line.name for line in lines])


@dataclass(frozen=True)
class Value:
    """A number with its interval; NaN ends draw the dot alone, a NaN number nothing."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @classmethod
    def of(cls, item: Mapping[str, Any] | None, key: str = "value") -> Self:
        """The number under a key, and its interval, of a row as JSON holds it; None is no number."""
        numbers = [None] * 3 if item is None else [item[key], item["low"], item["high"]]
        return cls(*(math.nan if number is None else float(number) for number in numbers))

    @property
    def finite(self) -> list[float]:
        """Of number and ends those that exist."""
        return [number for number in (self.value, self.low, self.high) if math.isfinite(number)]


@dataclass(frozen=True)
class Dot:
    """A named point, with error bars where its values have intervals."""

    name: str
    x: Value
    y: Value


def scatter(title: str, dots: Sequence[Dot], axes: tuple[str, str], *, named: bool = True) -> Figure:
    """Points with error bars; with names, a legend tells them apart."""
    dots = [dot for dot in dots if math.isfinite(dot.x.value) and math.isfinite(dot.y.value)]
    xs = [number for dot in dots for number in dot.x.finite]
    ys = [number for dot in dots for number in dot.y.finite]
    ranges = [scale(min(values, default=0.0), max(values, default=1.0))[:2] for values in (xs, ys)]
    frame = _Frame(ranges[0], ranges[1])
    parts = [frame.axes(axes)]
    for place, dot in enumerate(dots):
        paint = colour(place) if named else colour(0)
        x, y = frame.at(dot.x.value, dot.y.value)
        bars = ""
        if len(dot.x.finite) == 3:
            bars += _line([frame.at(end, dot.y.value) for end in (dot.x.low, dot.x.high)], paint, thin=True)
        if len(dot.y.finite) == 3:
            bars += _line([frame.at(dot.x.value, end) for end in (dot.y.low, dot.y.high)], paint, thin=True)
        inner = f'<g opacity=".35">{bars}</g>'
        inner += f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{5 if named else 2.2}" fill="{paint}"/>'
        parts.append(f"<g>{inner}<title>{safe(dot.name)}: {dot.x.value:.3f}, {dot.y.value:.3f}</title></g>")
    return frame.figure(title, parts, [dot.name for dot in dots] if named else [])


def spreads(title: str, rows: Sequence[Mapping[str, Any]], axis: str) -> Figure:
    """Boxes (5, 25, 50, 75, 95 %) by stratum and label group, one below the other."""
    groups = list(dict.fromkeys(row["group"] for row in rows))
    low, high, step = scale(min(row["at"][0] for row in rows), max(row["at"][4] for row in rows))
    margin, width, height = 120, 300, 15

    def x(value: float) -> float:
        return margin + width * (value - low) / (high - low)

    parts, y, last = [], 8.0, None
    for row in rows:
        if row["level"] != last:
            y += 5
            parts.append(f'<text x="{margin - 8}" y="{y + 11}" text-anchor="end">{_short(row["level"], 16)}</text>')
            last = row["level"]
        a, b, c, d, e = (x(value) for value in row["at"])
        paint, mid = colour(groups.index(row["group"])), y + height / 2
        text = f"{row['level']} {row['group']}: median {row['at'][2]:.3g}, n = {row['n']}"
        parts.append(
            f'<g>{_line([(a, mid), (e, mid)], paint, thin=True)}<rect x="{b:.1f}" y="{y + 2}" '
            f'width="{max(d - b, 1):.1f}" height="{height - 4}" fill="{paint}" opacity=".75"/>'
            f'<line x1="{c:.1f}" x2="{c:.1f}" y1="{y + 1}" y2="{y + height - 1}" stroke="var(--paper)" '
            f'stroke-width="2"/><title>{safe(text)}</title></g>'
        )
        y += height
    for at, _ in ticks(low, high, step):
        parts.append(f'<text class="soft" x="{x(at):.1f}" y="{y + 18}" text-anchor="middle">{at:g}</text>')
    parts.append(f'<text class="soft" x="{margin + width}" y="{y + 34}" text-anchor="end">{safe(axis)}</text>')
    return Figure(title, parts, margin + width + 12, y + 40, groups if len(groups) > 1 else ())


def _short(text: str, most: int) -> str:
    """Text of at most so many characters, the whole of it for whoever points at it."""
    return safe(text) if len(text) <= most else f"{safe(text[: most - 1])}…<title>{safe(text)}</title>"


@dataclass(frozen=True)
class _Frame:
    """A square with axes: from values to places on the page."""

    x: tuple[float, float]
    y: tuple[float, float]

    def at(self, x: float, y: float) -> tuple[float, float]:
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        return LEFT + SIDE * across, TOP + SIDE * (1 - up)

    def axes(self, names: tuple[str, str]) -> str:
        floor, parts = TOP + SIDE, []
        for low, high, horizontal in ((*self.x, True), (*self.y, False)):
            for value, text in ticks(*scale(low, high)):
                if not low - 1e-9 <= value <= high + 1e-9:
                    continue
                if horizontal:
                    at = self.at(value, self.y[0])[0]
                    parts.append(f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{floor}"/>')
                    parts.append(f'<text class="soft" x="{at:.1f}" y="{floor + 16}" text-anchor="middle">{text}</text>')
                else:
                    at = self.at(self.x[0], value)[1]
                    parts.append(f'<line class="axis" x1="{LEFT}" x2="{LEFT + SIDE}" y1="{at:.1f}" y2="{at:.1f}"/>')
                    parts.append(f'<text class="soft" x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{text}</text>')
        parts.append(f'<text class="soft" x="{LEFT + SIDE}" y="{floor + 33}" text-anchor="end">{safe(names[0])}</text>')
        parts.append(f'<text class="soft" x="{LEFT + 6}" y="{TOP + 12}">{safe(names[1])}</text>')
        return "".join(parts)

    def curves(self, lines: Sequence[Curve]) -> Iterator[str]:
        for place, line in enumerate(lines):
            points = [self.at(x, y) for x, y in zip(line.x, line.y, strict=True) if math.isfinite(y)]
            dots = (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour(place)}"/>' for x, y in points)
            inner = _line(points, colour(place)) + ("".join(dots) if line.dots else "")
            yield f"<g>{inner}<title>{safe(line.name)}</title></g>"

    def figure(self, title: str, parts: Sequence[str], names: Sequence[str]) -> Figure:
        return Figure(title, parts, LEFT + SIDE + 14, TOP + SIDE + BOTTOM, names)


def _line(points: Sequence[tuple[float, float]], paint: str, *, dashed: bool = False, thin: bool = False) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    more = ' stroke-dasharray="4 3"' if dashed else ""
    return (
        f'<polyline points="{path}" fill="none" stroke="{paint}" stroke-width="{1.5 if thin or dashed else 2}"{more}/>'
    )


def scale(low: float, high: float) -> tuple[float, float, float]:
    """Round ends and a round step that hold these numbers in four steps or so."""
    if high - low < 1e-9:
        low, high = low - 0.01, high + 0.01
    power = 10 ** math.floor(math.log10((high - low) / 3))
    step = next(power * k for k in (1, 2, 5, 10) if (high - low) / (power * k) <= 3)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, step


def ticks(low: float, high: float, step: float) -> list[tuple[float, str]]:
    """Every step from end to end, and how it is written."""
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    values = [low + k * step for k in range(round((high - low) / step) + 1)]
    return [(value, f"{value + 0.0:.{digits}f}".replace("-", "−")) for value in values]
