"""Curves as SVG text, styled by the page they stand in: axes, a line, a band, the last value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 360, 200
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 14, 26
SMOOTH_FROM = 40
"""Points from which on a moving mean is drawn over the pale raw line."""


@dataclass(frozen=True, slots=True)
class Point:
    """A measured value, with the ends of its interval where it has one."""

    step: float
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class _Scale:
    """From data to the picture's coordinates."""

    x: tuple[float, float]
    y: tuple[float, float]

    def at(self, step: float, value: float) -> tuple[float, float]:
        """Coordinates of a value, rounded to what can be seen."""
        across = (step - self.x[0]) / (self.x[1] - self.x[0])
        up = (value - self.y[0]) / (self.y[1] - self.y[0])
        return (
            round(LEFT + across * (WIDTH - LEFT - RIGHT), 1),
            round(HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM), 1),
        )

    def path(self, places: Sequence[tuple[float, float]]) -> str:
        """Points of a polyline."""
        return " ".join(f"{a:g},{b:g}" for a, b in (self.at(x, y) for x, y in places))


def curve(points: Sequence[Point], *, label: str) -> str:
    """An SVG of one curve; empty text if there is no finite point.

    Args:
        points: In order of steps.
        label: What is drawn, for those who cannot see it.
    """
    points = [p for p in points if math.isfinite(p.value)]
    if not points:
        return ""
    scale = _scale(points)
    drawn = [*_axes(scale), *_band(points, scale), *_line(points, scale)]
    told = f"{label}, from {number(points[0].value)} to {number(points[-1].value)}"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(told)}">'
        f"{''.join(drawn)}</svg>"
    )


def number(value: float) -> str:
    """A number as short as it can be read: 0.123, 12.3, 1,234, 1.2e-05."""
    if value and abs(value) < 1e-3:
        return f"{value:.1e}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def ticks(low: float, high: float, *, most: int) -> list[float]:
    """Round numbers in [low, high], at most ``most`` of them, evenly apart."""
    rough = (high - low) / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10, 20) if power * m >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def _scale(points: Sequence[Point]) -> _Scale:
    values = [v for p in points for v in (p.value, p.low, p.high) if v is not None]
    low, high = min(values), max(values)
    room = (high - low) * 0.08 or abs(high) * 0.1 or 0.1
    bottom = max(0.0, low - room) if low >= 0 else low - room
    first, last = points[0].step, points[-1].step
    if first == last:
        first, last = first - 1, last + 1
    return _Scale((first, last), (bottom, high + room))


def _axes(scale: _Scale) -> list[str]:
    drawn = []
    for value in ticks(*scale.y, most=5):
        x, y = scale.at(scale.x[0], value)
        drawn.append(f'<line class="grid" x1="{x}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        drawn.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 3.5}" text-anchor="end">'
                     f"{number(value)}</text>")  # fmt: skip
    for step in ticks(*scale.x, most=5):
        if step != int(step):
            continue
        x, y = scale.at(step, scale.y[0])
        drawn.append(f'<text class="tick" x="{x}" y="{y + 16}" text-anchor="middle">'
                     f"{int(step):,}</text>")  # fmt: skip
    return drawn


def _band(points: Sequence[Point], scale: _Scale) -> list[str]:
    ends = [(p.step, p.low, p.high) for p in points if p.low is not None and p.high is not None]
    if not ends:
        return []
    there = [(step, high) for step, _, high in ends]
    back = [(step, low) for step, low, _ in reversed(ends)]
    bars = []
    for step, low, high in ends:
        (x, bottom), (_, top) = scale.at(step, low), scale.at(step, high)
        bars.append(f'<line class="bar" x1="{x}" x2="{x}" y1="{bottom}" y2="{top}"/>')
    return [f'<polygon class="band" points="{scale.path(there + back)}"/>', *bars]


def _line(points: Sequence[Point], scale: _Scale) -> list[str]:
    places = [(p.step, p.value) for p in points]
    drawn = []
    if len(places) >= SMOOTH_FROM:
        drawn.append(f'<polyline class="raw" points="{scale.path(places)}"/>')
        places = _smoothed(places)
    drawn.append(f'<polyline class="line" points="{scale.path(places)}"/>')
    if len(points) <= 12:
        for point in points:
            x, y = scale.at(point.step, point.value)
            told = f"step {point.step:g}: {number(point.value)}"
            drawn.append(f'<circle class="dot" cx="{x}" cy="{y}" r="3"><title>{told}</title>'
                         "</circle>")  # fmt: skip
    return drawn


def _smoothed(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """A centred moving mean over a twentieth of the curve, narrower at its ends."""
    half = max(1, len(places) // 40)
    found = []
    for i, (step, _) in enumerate(places):
        near = min(half, i, len(places) - 1 - i)
        window = [value for _, value in places[i - near : i + near + 1]]
        found.append((step, sum(window) / len(window)))
    return found
