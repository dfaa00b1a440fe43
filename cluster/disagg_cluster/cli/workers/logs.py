"""`disagg-node logs`: the output of a worker."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from disagg_cluster.cli.control import (
    node_file_option,
    run_dir_option,
    socket_of,
    worker_names,
)
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_exporter.errors import DisaggError

if TYPE_CHECKING:
    from disagg_cluster.host.log_reading import LogParts

_LINES = 50
_EVERY_SECONDS = 0.25
_CHUNK_BYTES = 1 << 16
_MOST_LINE_BYTES = 1 << 20


class NoSuchLogError(DisaggError):
    """There is no log of that name; the message lists those there are."""


@click.command
@click.argument("worker", shell_complete=worker_names)
@click.option("-f", "--follow", is_flag=True, help="Follow its output, until Ctrl-C.")
@click.option(
    "--since",
    metavar="SPAN",
    help="Start this long ago, such as 90s, 5m, 6h or 1d, by the times in the engine's lines.",
)
@click.option(
    "-n",
    "--lines",
    "count",
    type=click.IntRange(0, 1_000_000_000),
    help=f"Number of last lines.  [default: {_LINES}; with --since all]",
)
@click.option("--probes", is_flag=True, help="Include the lines about our own probes.")
@click.option("--json", "as_json", is_flag=True, help="Print each line as a JSON object.")
@node_file_option
@run_dir_option
def logs(
    worker: str,
    follow: bool,
    since: str | None,
    count: int | None,
    probes: bool,
    as_json: bool,
    file: Path | None,
    run_dir: Path | None,
) -> None:
    """Show what a worker prints; also a failed one, and without a daemon.

    \b
      disagg-node logs decode-0 -f
      disagg-node logs decode-0 --since 5m
    """  # noqa: D301 # click looks for the character itself
    from disagg_cluster.control.client import check_access
    from disagg_cluster.host.worker_logs import is_of_probe

    folder = RunFolder(socket_of(file, run_dir).parent)
    check_access(folder.path)
    log = _log_of(worker, folder)

    def wanted(line: str) -> bool:
        return probes or not is_of_probe(line)

    def shown(line: str) -> str:
        return _as_json(worker, line) if as_json else line

    at_bytes = log.stat().st_size
    try:
        for line in _past(log, at_bytes, since, count, wanted):
            click.echo(shown(line))
        if follow:
            for line in followed(log, at_bytes, time.sleep):
                if wanted(line):
                    click.echo(shown(line))
    except KeyboardInterrupt:
        if not follow:
            raise
    except BrokenPipeError:
        # The reader has closed the pipe; avoids a flush error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _as_json(worker: str, line: str) -> str:
    """A line as a JSON object; `written_at` is null if the line has no time."""
    from disagg_cluster.host.log_times import written_at

    at = written_at(line, datetime.now().astimezone())
    timestamp = None if at is None else at.isoformat(timespec="seconds")
    return json.dumps({"worker": worker, "written_at": timestamp, "line": line})


def followed(log: Path, at_bytes: int, wait: Callable[[float], None]) -> Iterator[str]:
    """Complete lines appended to a log from an offset on, forever; restarts if it is truncated."""
    begun = b""
    while True:
        try:
            with log.open("rb") as opened:
                if opened.seek(0, os.SEEK_END) < at_bytes:
                    at_bytes, begun = 0, b""
                opened.seek(at_bytes)
                added = opened.read(_CHUNK_BYTES)
        except OSError:
            added = b""
        at_bytes += len(added)
        *whole, begun = (begun + added).split(b"\n")
        if len(begun) > _MOST_LINE_BYTES:
            whole, begun = [*whole, begun], b""
        for line in whole:
            yield line.decode(errors="replace")
        if not added:
            wait(_EVERY_SECONDS)


def _past(
    log: Path, until_bytes: int, since: str | None, count: int | None, wanted: Callable[[str], bool]
) -> Iterator[str]:
    from disagg_cluster.host.log_reading import LogParts
    from disagg_cluster.host.worker_logs import KEPT

    # A log rotated recently holds few lines, so older files are read as well.
    older = (log.with_name(f"{log.name}.{number}") for number in range(KEPT, 0, -1))
    parts = LogParts((*older, log), until_bytes)
    try:
        if since is None:
            yield from parts.last(_LINES if count is None else count, wanted)
            return
        yield from _since(parts, log.stem, since, count, wanted)
    except OSError as error:
        raise NoSuchLogError(f"cannot read {error.filename or log}: {error.strerror}") from error


def _since(
    parts: LogParts, worker: str, asked: str, count: int | None, wanted: Callable[[str], bool]
) -> Iterator[str]:
    from disagg_cluster.cli.planning.load_source import span

    seconds = span(click.get_current_context(), click.Option(["--since"]), asked) or 0.0
    now = datetime.now().astimezone()
    first = parts.first_since(now - timedelta(seconds=seconds), now)
    if first is None:
        message = f"{worker}: no line says that it was written in the last {asked}"
        click.echo(f"{message}; without --since the last lines are shown", err=True)
        return
    found = filter(wanted, parts.forwards(first))
    yield from found if count is None else parts.last(count, wanted, first)


def _log_of(worker: str, folder: RunFolder) -> Path:
    log = folder.log(worker)
    # Not the method, which raises where a name is too long for a file.
    if "/" not in worker and os.path.isfile(log):  # noqa: PTH113
        return log
    try:
        names = sorted(path.stem for path in folder.logs.glob("*.log"))
    except OSError:
        names = []
    if not names:
        why = f"no log is in {folder.logs}; only workers that a daemon launched have one"
        raise NoSuchLogError(f"{why}. --run-dir or --config says where that daemon runs")
    from difflib import get_close_matches

    close = get_close_matches(worker, names, 1)
    meant = f"did you mean {close[0]}? " if close else ""
    raise NoSuchLogError(f"no log of {worker!r}: {meant}there are {', '.join(names)}")
