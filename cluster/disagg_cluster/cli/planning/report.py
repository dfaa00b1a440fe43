"""`disagg-node report`: how a cluster used its GPU time, from Prometheus' history."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import click

from disagg_cluster.cli.daemon_page import http_config_option
from disagg_cluster.cli.number_range import NumberRange
from disagg_cluster.cli.planning.progress import Progress
from disagg_cluster.cli.prometheus_access import (
    access_of,
    header_option,
    named_prometheus,
    rules_server_option,
)


@click.command
@click.option(
    "--since", default="7d", show_default=True, metavar="SPAN", help="Length: 7d, 36h, 90m or 2w."
)
@rules_server_option
@click.option("--cluster", help="Only this cluster.  [default: all of them, added up]")
@click.option("--gpu-hour-price", type=NumberRange(min=0), help="Price of a GPU hour.")
@click.option("--currency", default="USD", show_default=True, help="Currency of that price.")
@header_option
@http_config_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A .html or .md file.  [default: Markdown to standard output]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def report(
    since: str,
    url: str,
    cluster: str | None,
    gpu_hour_price: float | None,
    currency: str,
    headers: Sequence[str],
    http_config: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Report how GPU time was used: by phase over time, idle by reason, energy, cost, incidents.

    Reads the recorded rules of a Prometheus. HTML is a single file that includes its plots. Times
    are in UTC; gaps in Prometheus' samples stay gaps.

    \b
      disagg-node report --since 7d -o report.html
      disagg-node report --since 36h --prometheus http://prometheus:9090 --gpu-hour-price 2.5
    """  # noqa: D301 # click looks for the character itself
    from disagg_cluster.host.files.writable import check_writable, writing
    from disagg_cluster.inspect.report.figures import GpuHourPrice, report_of
    from disagg_cluster.inspect.report.history import Reader
    from disagg_cluster.inspect.report.html import html
    from disagg_cluster.inspect.report.markdown import markdown
    from disagg_cluster.inspect.report.past import parse_since, period_until

    if output is not None and output.suffix not in (".html", ".md"):
        raise click.UsageError("the report is a .html or a .md file")
    if output is not None and as_json:
        raise click.UsageError("--json prints the figures: give it or --output")
    if output is not None and not output.parent.is_dir():
        raise click.UsageError(f"{output.parent} is no folder")
    period = period_until(time.time(), parse_since(since))
    if output is not None:
        check_writable(output)
    access = access_of(url, headers, http_config)
    progress = Progress()
    reader = Reader(access.url, cluster, access.headers, progress.say, access.tls)
    try:
        with named_prometheus():
            history = reader.read(period)
    finally:
        progress.end()
    price = None if gpu_hour_price is None else GpuHourPrice(gpu_hour_price, currency)
    figures = report_of(history, cluster, price)
    if as_json:
        from disagg_cluster.inspect.report.values import report_value

        click.echo(json.dumps(report_value(figures), indent=2, allow_nan=False))
        return
    if output is None:
        click.echo(markdown(figures), nl=False)
        return
    step = history.firing_step_seconds
    text = html(figures, step) if output.suffix == ".html" else markdown(figures)
    with writing(output):
        output.write_text(text, encoding="utf-8")
    click.echo(output)
