"""Draw a line chart as SVG without scripts or external content, readable in print and in dark mode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from stallwatch_rules.records import Series

WIDTH, HEIGHT = 640, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 28
_TICKS = 4
_COLOURS = 8  #: number of colors: the classes .s0 … .s7 in the page's style


def line_chart(series: Sequence[Series], title: str, x_name: str, mark: float | None = None) -> str:
    """Return a chart of the series, with steps on the x axis and a vertical line at the step `mark`.

    Screen readers read the title. NaN and infinite values leave a gap with a mark at the bottom.
    """
    xs = [step for line in series for step in line.steps]
    ys = [value for line in series for value in line.values if value is not None]
    if not xs or not ys:
        return ""
    # The margin must not be 0 if all values are equal.
    margin = (max(ys) - min(ys)) * 0.05 or abs(max(ys)) * 0.1 or 1.0
    across = _Scale(min(xs), max(xs), _LEFT, WIDTH - _RIGHT)
    upward = _Scale(min(ys) - margin, max(ys) + margin, HEIGHT - _BOTTOM, _TOP)
    parts = [_ticks(across, upward)]
    if mark is not None and across.low <= mark <= across.high:
        x = across(mark)
        parts.append(f'<line class="mark" x1="{x}" x2="{x}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>')
    for number, line in enumerate(series):
        parts.append(_line(line, number, across, upward))
    parts.append(
        f'<text class="axis" x="{WIDTH - _RIGHT}" y="{HEIGHT - 2}" text-anchor="end">{escape(x_name)}</text>'
    )
    label = escape(title, quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


class _Scale:
    """A linear mapping from values to coordinates in the chart."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high = low, high
        self._start, self._factor = start, (end - start) / ((high - low) or 1.0)

    def __call__(self, value: float) -> float:
        return round(self._start + (value - self.low) * self._factor, 1)


def _line(series: Series, number: int, across: _Scale, upward: _Scale) -> str:
    pieces: list[list[str]] = [[]]
    gaps = []
    for step, value in zip(series.steps, series.values, strict=True):
        if value is None:
            gaps.append(f'<circle class="gap" cx="{across(step)}" cy="{HEIGHT - _BOTTOM}" r="3"/>')
            pieces.append([])
        else:
            pieces[-1].append(f"{across(step)},{upward(value)}")
    colour = f"s{number % _COLOURS}"
    drawn = [f'<polyline class="{colour}" points="{" ".join(piece)}"/>' for piece in pieces if piece]
    return "".join(drawn + gaps)


def _ticks(across: _Scale, upward: _Scale) -> str:
    bottom = HEIGHT - _BOTTOM
    parts = []
    for value in steps_between(upward.low, upward.high, _TICKS):
        y = upward(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="axis" x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{value:.4g}</text>')
    for value in steps_between(across.low, across.high, _TICKS):
        x = across(value)
        parts.append(f'<text class="axis" x="{x}" y="{bottom + 16}" text-anchor="middle">{value:,.6g}</text>')
    return "".join(parts)


def steps_between(low: float, high: float, about: int) -> list[float]:
    """Return approximately `about` round numbers in a range: multiples of 1, 2, or 5 times a power of ten."""
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    width = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / width)
    return [round(number * width, 12) for number in range(first, math.floor(high / width) + 1)]
