"""`disagg-node compare`: what changed between two time spans at equal load."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from disagg_cluster.cli.daemon_page import http_config_option
from disagg_cluster.cli.planning.load_source import past_loads, span
from disagg_cluster.cli.planning.plot_option import plot_option
from disagg_cluster.cli.planning.progress import Progress
from disagg_cluster.cli.prometheus_access import (
    access_of,
    header_option,
    named_prometheus,
    rules_server_option,
)

if TYPE_CHECKING:
    from disagg_cluster.planner.compare.comparison import Comparison
    from disagg_cluster.planner.compare.comparison_text import Times
    from disagg_cluster.planner.compare.matching import UndecidedComparison
    from disagg_cluster.planner.compare.minutes import SpanMinutes


def times(ctx: click.Context, param: click.Parameter, text: str) -> Times:
    """Start and end as Unix times, from 2026-11-01T10:00/2h; UTC without a time zone."""
    begin, slash, length = text.partition("/")
    if not slash or not re.match(r"\d{4}-\d\d-\d\dT", begin):
        message = f"{text!r} is no span: give its begin and length, such as 2026-11-01T10:00/2h"
        raise click.BadParameter(message, ctx, param)
    try:
        at = datetime.fromisoformat(begin)
    except ValueError as error:
        raise click.BadParameter(f"{begin!r} is no time: {error}", ctx, param) from None
    seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    if seconds < 0:
        raise click.BadParameter(f"{begin!r} is before 1970: no server has that", ctx, param)
    return seconds, seconds + (span(ctx, param, length) or 0.0)


@click.command("compare")
@click.option("--before", callback=times, required=True, metavar="BEGIN/LENGTH",
              help="One span, such as 2026-11-01T10:00/2h.")  # fmt: skip
@click.option("--after", callback=times, required=True, metavar="BEGIN/LENGTH",
              help="The other, such as 2026-11-08T10:00/2h.")  # fmt: skip
@rules_server_option
@click.option("--cluster", help="Only this cluster.  [default: all of them, added up]")
@click.option("--model", help="Only this model.  [default: all of them, added up]")
@header_option
@http_config_option
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@plot_option("the changes with their intervals")
def compare_spans(
    before: Times,
    after: Times,
    url: str,
    cluster: str | None,
    model: str | None,
    headers: Sequence[str],
    http_config: Path | None,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Compare two time spans at equal load: tokens per GPU-second, latencies, energy.

    Minutes are grouped by load and prompt length; those without a counterpart in the other span are
    left out, and their number is reported. Intervals hold 90 %, from resampling blocks of a quarter
    of an hour or more. Times without a zone are UTC.

    \b
      disagg-node compare --before 2026-11-01T10:00/2h --after 2026-11-08T10:00/2h
      disagg-node compare --before … --after … --plot change.svg
    """  # noqa: D301 # click looks for the character itself
    from disagg_cluster.host.linear_algebra import one_thread
    from disagg_cluster.planner.compare.comparison import compare
    from disagg_cluster.planner.compare.comparison_figure import draw_comparison
    from disagg_cluster.planner.compare.comparison_text import comparison_text
    from disagg_cluster.planner.compare.prometheus_minutes import PrometheusMinutes
    from disagg_cluster.planner.history.history_request import HistoryRequest
    from disagg_cluster.planner.history.prometheus_history import PrometheusHistory
    from disagg_cluster.prometheus.prometheus_api import Prometheus

    _check(before, after, time.time())
    one_thread()
    access = access_of(url, headers, http_config)
    progress = Progress()
    with closing(Prometheus(access.url, access.headers, access.tls)) as prometheus:
        reader = PrometheusMinutes(prometheus, model, progress.say)

        def minutes(asked: Times) -> SpanMinutes:
            return reader.read(HistoryRequest(*asked, cluster=cluster))

        progress.say("asking Prometheus")
        try:
            with named_prometheus():
                old, new = minutes(before), minutes(after)
                if old.is_empty and new.is_empty:
                    # Whatever is missing is not missing by chance: the server or a name is wrong.
                    past_loads(
                        PrometheusHistory(prometheus, progress.say),
                        HistoryRequest(*after, cluster=cluster),
                        model,
                        access.url,
                        "the time of --after",
                    )
        finally:
            progress.end()
    found = compare(old, new)
    if as_json:
        click.echo(json.dumps(_value(found, before, after), indent=2, allow_nan=False))
    else:
        click.echo(comparison_text(found, before, after))
    if plot is not None:
        draw_comparison(found, plot)
        click.echo(plot, err=True)


def _check(before: Times, after: Times, now_seconds: float) -> None:
    """Report everything wrong with two spans relative to each other."""
    wrong = [
        f"{option} is not over yet"
        for option, (_, end) in (("--before", before), ("--after", after))
        if end > now_seconds
    ]
    if after[0] < before[1]:
        wrong.append("--after begins before --before ends")
    if wrong:
        raise click.UsageError("; ".join(wrong))


def _value(found: Comparison | UndecidedComparison, *asked: Times) -> dict[str, object]:
    from disagg_cluster.host.spans import timestamp
    from disagg_cluster.planner.compare.comparison import UnknownMeasure
    from disagg_cluster.planner.compare.matching import UndecidedComparison

    spans = {
        name: {"begin": timestamp(begin), "end": timestamp(end)}
        for name, (begin, end) in zip(("before", "after"), asked, strict=True)
    }
    if isinstance(found, UndecidedComparison):
        return {**spans, "undecided": found.why}
    measures = [
        {"name": each.name, "unit": each.unit, "undecided": each.why}
        if isinstance(each, UnknownMeasure)
        else {**asdict(each), "verdict": each.verdict}
        for each in found.measures
    ]
    matched = dict(zip(("before", "after"), found.matched_ratio, strict=True))
    return {
        **spans,
        "matched_ratio": matched,
        "unmatched": list(found.unmatched),
        "measures": measures,
    }
