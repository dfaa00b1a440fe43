"""A report as Markdown: tables, and a sparkline where HTML has plots."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from disagg_cluster.inspect.report import wording
from disagg_cluster.inspect.report.figures import Report
from disagg_cluster.inspect.report.past import utc
from disagg_exporter.errors import escaped

_MOST_INCIDENTS = 100
_BLOCKS = "▁▂▃▄▅▆▇█"
_SPARK_COLUMNS = 72


def markdown(report: Report) -> str:
    """Return the whole text."""
    parts = [
        f"# {_text(wording.title(report))}",
        f"{wording.period(report)}. {wording.coverage(report)}",
        *_section("Summary", ("Figure", "Value", ""), wording.summary(report)),
        *_coverage(report),
        *_section("GPU time by phase", wording.PHASE_HEADS, wording.phase_rows(report)),
        f"Prefill share of the busy GPU time, {_range(report.shares)}; a space is a gap:",
        f"```\n{sparkline(report.shares)}\n{_axis(report)}\n```",
        *_section("Idle time", wording.IDLE_HEADS, wording.idle_rows(report)),
        *_section("Energy", wording.ENERGY_HEADS, wording.energy_rows(report)),
        *_section(
            "Who used what, in GPU-hours", wording.ACCOUNT_HEADS, wording.account_rows(report)
        ),
        *_section(
            "Incidents", wording.INCIDENT_HEADS, wording.incident_rows(report, _MOST_INCIDENTS)
        ),
    ]
    left = len(report.incidents) - _MOST_INCIDENTS
    if left > 0:
        parts.append(f"{left} more are not listed.")
    if report.notes:
        parts.append("\n".join(f"* {_text(note)}" for note in report.notes))
    return "\n\n".join(parts) + "\n"


def sparkline(values: Sequence[float | None]) -> str:
    """Return values as blocks of eight heights, from the least to the greatest of them.

    Where there are more values than columns, a column is their mean; one without any is a space.
    """
    per_column = max(1, -(-len(values) // _SPARK_COLUMNS))
    means: list[float | None] = []
    for place in range(0, len(values), per_column):
        present = [value for value in values[place : place + per_column] if value is not None]
        means.append(sum(present) / len(present) if present else None)
    known = [mean for mean in means if mean is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    scale = 7.999 / (high - low) if high > low else 0.0
    return "".join(" " if mean is None else _BLOCKS[int((mean - low) * scale)] for mean in means)


def _coverage(report: Report) -> Iterable[str]:
    rows = wording.coverage_rows(report)
    return _section("What is known", wording.COVERAGE_HEADS, rows) if rows else ()


def _range(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "which has no value in it"
    return f"from {wording.percent(min(known))} to {wording.percent(max(known))}"


def _axis(report: Report) -> str:
    start, end = utc(report.period.start_seconds), utc(report.period.end_seconds)
    columns = len(sparkline(report.shares))
    return f"{start}{' ' * max(2, columns - len(start) - len(end))}{end}"


def _section(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    yield f"## {title}"
    lines = [_row(row) for row in rows]
    if lines:
        yield "\n".join((_row(heads), _row(["---"] * len(heads)), *lines))
    else:
        yield "None."


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(_text, cells))} |"


def _text(text: str) -> str:
    """Return external text escaped: no markup, no HTML, no second cell or line, no controls."""
    flat = escaped(re.sub(r"\s+", " ", text))
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", flat)
