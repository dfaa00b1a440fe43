"""`disagg-node top`: a live view of how one node or several use their GPU time."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from disagg_cluster.cli import daemon_page
from disagg_cluster.cli.number_range import NumberRange
from disagg_cluster.cli.prometheus_access import access_of, header_option, named_prometheus

if TYPE_CHECKING:
    from disagg_cluster.top.sources.reading_source import ReadingSource

T = TypeVar("T")
NODE_INTERVAL_SECONDS = 2.0
PROMETHEUS_INTERVAL_SECONDS = 5.0
_PIPED_WIDTH = 120
_EXIT_INTERRUPTED = 128


@click.command
@daemon_page.options
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    help="The daemon's run folder, for more details on its workers than its page has.",
)
@click.option(
    "--prometheus",
    metavar="URL",
    help="Show all nodes that this Prometheus scrapes, with its alerts and a planner's output.",
)
@header_option
@click.option("--cluster", help="With --prometheus: only this cluster.")
@click.option("--node", help="With --prometheus: only this node.")
@click.option("--once", is_flag=True, help="Print once and end; the default in a pipe.")
@click.option("--json", "as_json", is_flag=True, help="With --once: print all values as JSON.")
@click.option(
    "--interval",
    "interval_seconds",
    type=NumberRange(0.5, 60),
    metavar="SECONDS",
    help="Time between updates.  [default: 2; with --prometheus 5]",
)
@click.option("--ascii", "only_ascii", is_flag=True, help="Draw with ASCII characters only.")
@click.option("--note", hidden=True, default="", help="Shown in the header.")
@click.option("--beside", is_flag=True, hidden=True, help="End when the parent process ends.")
def top(
    *,
    prometheus: str | None,
    headers: tuple[str, ...],
    cluster: str | None,
    node: str | None,
    once: bool,
    as_json: bool,
    interval_seconds: float | None,
    only_ascii: bool,
    beside: bool,
    **asked: Any,
) -> None:
    """Show live how GPU time is split: phases, pools, engines, workers, and what is wrong.

    Asks the daemon of this node, or that of --url; with --prometheus all nodes that it scrapes.
    Shares are those of the last minute. Rates and latencies of a node begin with the view: with
    --once they are those of a moment. Press `?` for the keys and `q` to leave.
    """
    if prometheus is None and (cluster or node or headers):
        raise click.UsageError("--cluster, --node and --header belong to --prometheus")
    if prometheus is not None and (asked["url"] or asked["file"] or asked["run_dir"]):
        raise click.UsageError("--prometheus shows all nodes: --url, --config, --run-dir show one")
    if as_json and not once and sys.stdout.isatty():
        raise click.UsageError("--json prints once: say --once, too")
    if prometheus is None:
        source, usual_seconds = _of_node(**asked), NODE_INTERVAL_SECONDS
    else:
        source = _of_prometheus(prometheus, headers, asked["http_config"], cluster, node)
        usual_seconds = PROMETHEUS_INTERVAL_SECONDS
    parent = os.getppid() if beside else None
    _show(source, once, as_json, interval_seconds or usual_seconds, only_ascii, parent)


def _of_node(
    url: str | None,
    file: Path | None,
    http_config: Path | None,
    run_dir: Path | None,
    note: str,
) -> ReadingSource:
    from disagg_cluster.host.run_dir.layout import RunFolder
    from disagg_cluster.top.sources.node_source import NodeSource

    target_now = partial(daemon_page.target_of, url, file, http_config, run_dir)
    target_now()
    folder = run_dir or (None if url else daemon_page.run_folder_of(file))
    socket = None if folder is None else RunFolder(folder).control
    return NodeSource(target_now, socket, note)


def _of_prometheus(
    url: str,
    headers: tuple[str, ...],
    http_config: Path | None,
    cluster: str | None,
    node: str | None,
) -> ReadingSource:
    from disagg_cluster.prometheus.prometheus_api import Prometheus
    from disagg_cluster.top.sources.prometheus_source import PrometheusSource

    access = access_of(url, headers, http_config)
    prometheus = Prometheus(access.url, access.headers, access.tls)
    return PrometheusSource(prometheus, access.url, cluster or "", node or "")


def _show(
    source: ReadingSource,
    once: bool,
    as_json: bool,
    interval_seconds: float,
    only_ascii: bool,
    parent: int | None,
) -> None:
    import shutil

    from disagg_cluster.top.screen.controls import Controls
    from disagg_cluster.top.screen.lines import ASCII
    from disagg_cluster.top.screen.screen import screen
    from disagg_cluster.top.terminal.once import as_json as view_json
    from disagg_cluster.top.terminal.once import read_once
    from disagg_cluster.top.terminal.painter import Painter, console_for, glyphs_for

    if as_json:
        click.echo(view_json(_first_result(partial(read_once, source))))
        return
    output = sys.stdout
    glyphs = ASCII if only_ascii else glyphs_for(output.encoding, os.environ)
    console = console_for(output, os.environ)
    painter = Painter(console)
    if once or not output.isatty() or console.is_dumb_terminal:
        width = shutil.get_terminal_size((_PIPED_WIDTH, 24)).columns
        view = _first_result(partial(read_once, source))
        for line in screen(view, Controls(), width, None, glyphs):
            click.echo(painter.text(line).rstrip())
        return
    from disagg_cluster.top.terminal.live import LiveView

    live = LiveView(source, output, painter, glyphs, interval_seconds, parent)
    _first_result(live.begin)
    ended_by = live.run(sys.stdin.fileno())
    # The process that opened the view also gets a Ctrl-C, but not a key that leaves the view.
    if ended_by is not None and ended_by != signal.SIGHUP:
        raise click.exceptions.Exit(_EXIT_INTERRUPTED + ended_by)


def _first_result(look: Callable[[], T]) -> T:
    """The first result of a source; raises `NoDaemonError` with hints, or `UnusablePageError`."""
    from disagg_cluster.control.client import NoDaemonError
    from disagg_cluster.prometheus.http_client import RefusedError, UnansweredError

    try:
        with named_prometheus():
            return look()
    except RefusedError as error:
        raise daemon_page.UnusablePageError(f"cannot look: {error}") from None
    except UnansweredError as error:
        raise NoDaemonError(
            f"no daemon answers: {error}\n    start one with `disagg-node start`, see a simulated "
            "one with `disagg-node demo`, or say where yours is with --url"
        ) from None
