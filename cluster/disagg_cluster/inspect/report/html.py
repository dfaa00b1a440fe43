"""A report as one HTML file that loads nothing: its style and its plots are inline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from disagg_cluster.inspect.report import plots, wording
from disagg_cluster.inspect.report.figures import PHASES, Report

_MOST_INCIDENTS = 200

_FRAME = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<h1>{title}</h1>
<p class="quiet">{period}. {coverage}</p>
{body}
<footer><p>From the recording rules of disagg-node, added up over time; ratios are taken last. GPU
time is held time (docs/accounting.md): busy is not full. How much is accounted for is recorded as
hourly means: at either end of the period up to an hour of it lies outside. Incidents are known to
{step}.</p>{notes}</footer>
</body>
</html>
"""


def html(report: Report, incident_step_seconds: float) -> str:
    """Return the whole file; `incident_step_seconds` is the accuracy of incidents."""
    notes = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    idle, energy = wording.idle_rows(report), wording.energy_rows(report)
    accounts, heads = wording.account_rows(report), wording.ACCOUNT_HEADS
    body = (
        _summary(report),
        _coverage(report),
        _split(report),
        _section("Idle time and what it cost", wording.IDLE_HEADS, idle, numbers=2),
        _section("Energy", wording.ENERGY_HEADS, energy, numbers=1),
        _section("Who used what, in GPU-hours", heads, accounts, numbers=8, kind="wide"),
        _incidents(report),
    )
    return _FRAME.format(
        title=escape(wording.title(report)),
        style=files("disagg_cluster.inspect.report")
        .joinpath("report.css")
        .read_text(encoding="utf-8"),
        period=wording.period(report),
        coverage=wording.coverage(report),
        body="\n".join(body),
        step=wording.span(incident_step_seconds),
        notes=f"<ul>{notes}</ul>" if notes else "",
    )


def _summary(report: Report) -> str:
    tiles = "".join(
        f"<div><dt>{name}</dt><dd><b>{escape(value)}</b> <span>{unit}</span></dd></div>"
        for name, value, unit in wording.summary(report)
    )
    return f'<section><h2>Summary</h2><dl class="tiles">{tiles}</dl></section>'


def _coverage(report: Report) -> str:
    rows = wording.coverage_rows(report)
    return _section("What is known", wording.COVERAGE_HEADS, rows, numbers=2) if rows else ""


def _split(report: Report) -> str:
    table = _table(wording.PHASE_HEADS, wording.phase_rows(report), numbers=2)
    areas = plots.stacked(
        report.period, report.gpus, "GPUs", "Mean GPUs by phase over time; the table has the sums"
    )
    share = plots.line(
        report.period, report.shares, "Prefill share of the busy GPU time over time", "share"
    )
    return (
        f"<section><h2>GPU time by phase</h2>{_legend()}"
        f"<h3>GPUs at work, means of {wording.span(report.period.bucket_seconds)}</h3>{areas}"
        f"<h3>Prefill share of the busy GPU time</h3>{share}{table}</section>"
    )


def _legend() -> str:
    items = "".join(
        f'<li><svg width="14" height="14" aria-hidden="true"><rect class="{phase}" width="14"'
        f' height="14"/></svg>{phase}</li>'
        for phase in PHASES
    )
    return f'<ul class="legend">{items}</ul>'


def _incidents(report: Report) -> str:
    rows = wording.incident_rows(report, _MOST_INCIDENTS)
    left = len(report.incidents) - _MOST_INCIDENTS
    more = f"<p>{left} more are not listed.</p>" if left > 0 else ""
    return _section("Incidents", wording.INCIDENT_HEADS, rows, numbers=1, after=more)


def _section(
    title: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: int,
    after: str = "",
    kind: str = "",
) -> str:
    table = _table(heads, rows, numbers=numbers, kind=kind) if rows else "<p>None.</p>"
    return f"<section><h2>{title}</h2>{table}{after}</section>"


def _table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int, kind: str = ""
) -> str:
    """Return a table whose last `numbers` columns are numbers, and whose first names the row."""
    plain = len(heads) - numbers
    kinds = [
        ' class="number"' if place >= plain else ' class="time"' if "(UTC)" in name else ""
        for place, name in enumerate(heads)
    ]
    head = "".join(
        f'<th scope="col"{kind}>{name}</th>' for kind, name in zip(kinds, heads, strict=True)
    )
    lines = []
    for first, *rest in rows:
        cells = "".join(
            f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds[1:], rest, strict=True)
        )
        lines.append(f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>')
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{heads[0]}">'
        f'<table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )
