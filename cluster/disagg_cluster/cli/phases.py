"""`disagg-node phases`: who is on which GPU, in which role and why, and how busy it is now."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import click

from disagg_cluster.cli.daemon_page import door_of, options, read_page
from disagg_cluster.cli.start import chosen_devices
from disagg_cluster.config import Attach, NodeConfig
from disagg_cluster.inspect import one_look
from disagg_cluster.inspect.phase_table import Row, as_json, as_text, moved, rows_of
from disagg_cluster.inspect.views import NodePage
from disagg_cluster.nodefile import load
from disagg_cluster.prometheus.http_client import Door

# Books over GPUs are written on every five seconds.
LONGEST_WAIT_SECONDS = 6.5


@click.command
@options
@click.option("--watch", is_flag=True, help="Show it again every few seconds, until Ctrl-C.")
@click.option("--json", "as_json_", is_flag=True, help="Print the rows as JSON.")
def phases(
    url: str | None, file: Path | None, http_config: Path | None, watch: bool, as_json_: bool
) -> None:
    """Show each GPU's engine, its role and why, and how busy it is in which phase.

    Asks the daemon of this node; where none runs, looks itself for some seconds. The shares are of
    the last second that the daemon has booked (five with GPUs), which is some seconds ago.
    """
    try:
        for rows in _tables(partial(door_of, url, file, http_config), file):
            if watch and not as_json_:
                click.clear()
            if not rows:
                click.echo("no GPU and no engine is here", err=True)
            click.echo(as_json(rows, indent=None if watch else 2) if as_json_ else as_text(rows))
            if not watch:
                return
    except KeyboardInterrupt:
        if not watch:
            raise


def _tables(door_now: Callable[[], Door], file: Path | None) -> Iterator[tuple[Row, ...]]:
    before: NodePage | None = None
    told = False
    while True:
        # Anew each time: its address and its certificate may have changed.
        before = before or read_page(door_now())
        after = None if before is None else _next_page(lambda: read_page(door_now()), before)
        if after is not None:
            yield rows_of(after, before)
        else:
            if not told:
                click.echo(f"no daemon answers at {door_now().url}: looking myself", err=True)
            yield _look(file)
        before, told = after, after is None


def _next_page(read: Callable[[], NodePage | None], before: NodePage) -> NodePage | None:
    """The first page after another whose books were written on, or what there is after a while."""
    until = time.monotonic() + LONGEST_WAIT_SECONDS
    while True:
        time.sleep(1.0)
        after = read()
        if after is None or moved(before, after) or time.monotonic() > until:
            return after


def _look(file: Path | None) -> tuple[Row, ...]:
    config = NodeConfig() if file is None else load(file)
    choice = chosen_devices(config)
    try:
        return one_look.rows_of(one_look.look_once(choice.source, config.attach or Attach()))
    finally:
        choice.source.close()
