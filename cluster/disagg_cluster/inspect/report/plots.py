"""Two plots as inline SVG: stacked areas and a line, over the buckets of a period.

Drawn by hand because a report is one file that loads nothing: a plotting library brings tens of
megabytes for two shapes. Nothing is drawn where there is no value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape

from disagg_cluster.inspect.report.past import Period

WIDTH, HEIGHT = 900, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 12, 10, 26
_INNER_WIDTH, _INNER_HEIGHT = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM

Values = Sequence[float | None]


def stacked(period: Period, series: Mapping[str, Values], unit: str, label: str) -> str:
    """Return stacked areas, the first at the bottom; each has the class of its name."""
    columns = list(zip(*series.values(), strict=True))
    sums = [sum(v for v in column if v is not None) for column in columns if None not in column]
    top = nice_top(max(sums, default=0.0))
    parts: list[str] = []
    seen = [None if None in column else 0.0 for column in columns]
    for first, last in runs(seen):
        below = [0.0] * (last - first)
        for name, values in series.items():
            present = [value or 0.0 for value in values[first:last]]
            above = [low + value for low, value in zip(below, present, strict=True)]
            upper = _steps(period, first, above, top)
            lower = _steps(period, first, below, top)[::-1]
            points = " ".join((*upper, *lower))
            parts.append(f'<polygon class="{escape(name)}" points="{points}"/>')
            below = above
    return _frame(period, [*parts, *_gaps(period, seen)], top, unit, label)


def line(period: Period, values: Values, label: str, kind: str) -> str:
    """Return a line of ratios between 0 and 1, broken where there is no value."""
    parts = []
    for first, last in runs(values):
        present = [value or 0.0 for value in values[first:last]]
        points = " ".join(_steps(period, first, present, 1.0))
        parts.append(f'<polyline class="{escape(kind)}" points="{points}"/>')
    return _frame(period, parts, 1.0, "%", label)


def runs(values: Values) -> list[tuple[int, int]]:
    """Return the runs of consecutive values: begin and end of each, the end not included."""
    found: list[tuple[int, int]] = []
    for place, value in enumerate(values):
        if value is None:
            continue
        if found and found[-1][1] == place:
            found[-1] = (found[-1][0], place + 1)
        else:
            found.append((place, place + 1))
    return found


def _gaps(period: Period, values: Values) -> list[str]:
    """Return the labels of gaps that are wide enough for them."""
    wide = _INNER_WIDTH / len(period.ends)
    holes = runs([0.0 if value is None else None for value in values])
    return [
        f'<text class="gap" x="{_LEFT + wide * (first + last) / 2:.1f}"'
        f' y="{_TOP + _INNER_HEIGHT / 2}" text-anchor="middle">no samples</text>'
        for first, last in holes
        if (last - first) * wide > 70
    ]


def nice_top(value: float) -> float:
    """Return the least of 1, 2, 4, 5, 6, 8 × 10ⁿ that is not below a value."""
    if value <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(value))
    return next(size * step for step in (1, 2, 4, 5, 6, 8, 10) if size * step >= value * 0.9999)


def _steps(period: Period, first: int, values: Sequence[float], top: float) -> list[str]:
    """Return both upper corners of each bucket from the `first` on: a mean holds for all of it."""
    wide = _INNER_WIDTH / len(period.ends)
    corners = []
    for place, value in enumerate(values, start=first):
        y = _TOP + _INNER_HEIGHT * (1 - min(value / top, 1.0))
        corners += [f"{_LEFT + wide * each:.1f},{y:.1f}" for each in (place, place + 1)]
    return corners


def _frame(period: Period, parts: Sequence[str], top: float, unit: str, label: str) -> str:
    rows = []
    for step in range(5):
        value, y = top * step / 4, _TOP + _INNER_HEIGHT * (1 - step / 4)
        text = f"{100 * value:.0f} %" if unit == "%" else f"{value:g}"
        rows.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        rows.append(f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{text}</text>')
    for seconds, text in _ticks(period):
        part = (seconds - period.start_seconds) / period.length_seconds
        x = _LEFT + _INNER_WIDTH * part
        rows.append(
            f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{HEIGHT - 22}"/>'
        )
        rows.append(f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{text}</text>')
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="{escape(label)}">{"".join(parts)}{"".join(rows)}</svg>'
    )


def _ticks(period: Period) -> list[tuple[int, str]]:
    """Return about eight round instants of the period, each with its text."""
    choices = (600, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800, 2592000)
    wanted = period.length_seconds / 8
    step = next((each for each in choices if each >= wanted), 7776000)
    first = -(-period.start_seconds // step) * step
    form = "%H:%M" if step < 86400 and period.length_seconds <= 86400 else "%b %d"
    if step < 86400 < period.length_seconds:
        form = "%b %d %Hh"
    found = []
    for instant in range(first, period.end_seconds + 1, step):
        # Next to an edge the text would be cut off.
        if 0.02 < (instant - period.start_seconds) / period.length_seconds < 0.98:
            found.append((instant, datetime.fromtimestamp(instant, UTC).strftime(form)))
    return found
