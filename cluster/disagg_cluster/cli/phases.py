"""`disagg-node phases`: who is on which GPU, in which role and why, and how busy it is now."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import click

from disagg_cluster import onelook
from disagg_cluster.cli.start import chosen_devices
from disagg_cluster.config import Attach, NodeConfig
from disagg_cluster.discovery.listed import is_own_address
from disagg_cluster.nodefile import load
from disagg_cluster.pageview import NotOurPageError, read_node_page
from disagg_cluster.phasetable import Row, as_json, as_text, moved, rows_of
from disagg_cluster.views import NodePage
from disagg_exporter.errors import DisaggError
from disagg_exporter.scrape import EngineRefused, EngineUnreachable, fetch

DEFAULT_URL = "http://127.0.0.1:9847"
# Books over GPUs are written on every five seconds.
LONGEST_WAIT_SECONDS = 6.5
_DEADLINE_SECONDS = 5.0


class CannotLookError(DisaggError):
    """What answers where the daemon should be is something else, or wants a password."""

    exit_code = 2


@click.command
@click.option("--url", default=DEFAULT_URL, show_default=True, help="Where the daemon answers.")
@click.option(
    "-c",
    "--config",
    "file",
    type=click.Path(path_type=Path),
    help="Without a daemon: the node file whose `attach` says where to look.",
)
@click.option("--watch", is_flag=True, help="Show it again every few seconds, until Ctrl-C.")
@click.option("--json", "as_json_", is_flag=True, help="Print the rows as JSON.")
def phases(url: str, file: Path | None, watch: bool, as_json_: bool) -> None:
    """Show each GPU's engine, its role and why, and how busy it is in which phase.

    Asks the daemon of this node; where none runs, looks itself for some seconds. The shares are of
    the last second that the daemon has booked (five with GPUs), which is some seconds ago.
    """
    try:
        for rows in _tables(daemon_url(url), file):
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


def _tables(url: str, file: Path | None) -> Iterator[tuple[Row, ...]]:
    before: NodePage | None = None
    told = False
    while True:
        before = before or read_page(url)
        after = None if before is None else _next_page(lambda: read_page(url), before)
        if after is not None:
            yield rows_of(after, before)
        else:
            if not told:
                click.echo(f"no daemon answers at {url}: looking myself", err=True)
            yield _look(file)
        before, told = after, after is None


def daemon_url(text: str) -> str:
    """The root of a daemon's server, as a person wrote it."""
    parts = urlsplit(text)
    if parts.scheme != "http" or not parts.hostname:
        raise click.UsageError(
            f"{text!r} is no address of a daemon: give one such as {DEFAULT_URL}"
        )
    return text.rstrip("/")


def read_page(url: str) -> NodePage | None:
    """The page of the daemon at an address; None if it is on this node and nobody answers.

    Raises:
        CannotLookError: Somebody answers there, and not with a page of ours; or nobody answers on
            another node, at which nobody but its daemon can look.
    """
    try:
        return read_node_page(fetch(f"{url}/metrics", _DEADLINE_SECONDS))
    except (EngineRefused, NotOurPageError) as error:
        hint = "another program, or a daemon behind TLS or a password; --url says where yours is"
        raise CannotLookError(f"cannot look: {error} ({hint})") from None
    except EngineUnreachable as error:
        if not is_own_address(urlsplit(url).hostname or ""):
            raise CannotLookError(f"cannot look: {error}") from None
        return None


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
        return onelook.rows_of(onelook.look_once(choice.source, config.attach or Attach()))
    finally:
        choice.source.close()
