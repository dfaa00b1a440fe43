"""`disagg-node status`: the state of this node's daemon and its workers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from disagg_cluster.cli.control import DaemonClient, LocalDaemon, left_running, options
from disagg_cluster.host.columns import columns
from disagg_cluster.host.spans import duration_text
from disagg_cluster.host.state_colours import STATE_COLOURS
from disagg_exporter.errors import escaped

if TYPE_CHECKING:
    from disagg_cluster.control.views import DaemonView, MoveView, WorkerView

_PATIENCE_SECONDS = 10.0
_SILENT = "unresponsive"
_TITLES = ("WORKER", "ROLE", "STATE", "FOR", "UNTIL", "RESTARTS", "PID", "GPUS", "PORT")
_STATE = _TITLES.index("STATE")
_LINE_CHARACTERS = 200
_MOST_WAITING = 8

LastLine = Callable[[str], str]
"""Returns the last line in a worker's log, given its path; empty if there is none."""


@click.command
@click.option("-w", "--watch", is_flag=True, help="Keep printing changes, until Ctrl-C.")
@options
def status(daemon: DaemonClient, as_json: bool, watch: bool) -> None:
    """Show the daemon of this node and its workers: state, since when, until when and why.

    UNTIL is when the state ends without an event: a start or a drain times out, a waiting worker is
    started again. A ready worker whose last health probe failed is shown as unresponsive. For a
    worker that is not ready, the reason, the log and its last line are shown. With --watch each
    change of a worker and each step of a reassignment is printed as a line, also during a stop,
    until the daemon has ended; with --json each is an object.
    """
    if watch:
        from disagg_cluster.cli.workers.watch import watch_status

        watch_status(daemon, as_json=as_json)
        return
    from disagg_cluster.control.client import NoDaemonError

    try:
        workers, view, move = ask_status(daemon)
    except NoDaemonError as error:
        if not isinstance(daemon, LocalDaemon):
            raise
        raise NoDaemonError("\n    ".join((str(error), *leftovers(daemon.socket)))) from None
    if as_json:
        click.echo(json.dumps(status_value(view, workers, time.time(), move), indent=2))
    else:
        # The log of a worker on another host cannot be read here.
        here = isinstance(daemon, LocalDaemon)
        last_line = _last_line if here else lambda _log: ""
        click.echo(status_text(view, workers, last_line, move))


def ask_status(daemon: DaemonClient) -> tuple[list[WorkerView], DaemonView, MoveView | None]:
    """The workers, state and last move that a daemon reports.

    Raises:
        NoDaemonError: Nothing listens there.
        MayNotAskError: This user may not connect.
        BrokenOffError: It did not answer.
    """
    from disagg_cluster.control.client import BrokenOffError, MayNotAskError, new_request
    from disagg_cluster.control.messages import DaemonStatus, ReplyOutcome

    replies = list(daemon.ask(new_request(DaemonStatus()), _PATIENCE_SECONDS))
    workers = [reply.worker for reply in replies if reply.worker is not None]
    final = replies[-1]
    if final.outcome is ReplyOutcome.REFUSED:
        raise MayNotAskError(f"{final.text}; {final.way_out}")
    if final.daemon is None:
        raise BrokenOffError("; ".join((final.text, *final.problems)))
    return workers, final.daemon, final.move


def leftovers(socket: Path) -> Iterator[str]:
    """What an ended daemon has left behind: running workers, and an unfinished move."""
    from disagg_cluster.control.explanation import move_stage
    from disagg_cluster.host.run_dir.layout import RunFolder
    from disagg_cluster.host.run_dir.lock import holder
    from disagg_cluster.supervisor.journal.journal import here, load_whole
    from disagg_cluster.supervisor.journal.journal_text import JournalError

    folder = RunFolder(socket.parent)
    if holder(folder.lock) is not None:
        return
    left = left_running(socket)
    if not left:
        return
    yield f"still running without it: {', '.join(left)}"
    yield "the next `disagg-node start` of their node file adopts them, `stop --workers` ends them"
    try:
        move = load_whole(folder.journal, here())[1].move
    except JournalError:
        return
    if move is not None and not move.step.final:
        way = f"{move.from_role} to {move.to_role}"
        yield f"{move.worker} was being reassigned from {way}, and goes on then; {move_stage(move)}"


def status_value(
    daemon: DaemonView,
    workers: Sequence[WorkerView],
    now_seconds: float,
    move: MoveView | None = None,
) -> dict[str, object]:
    """The status for programs; times have a date and a zone."""

    def at(seconds: float | None) -> str | None:
        return None if seconds is None else timestamp(now_seconds + seconds)

    return {
        "made_at": timestamp(now_seconds),
        "daemon": asdict(daemon) | {"started_at": at(-daemon.uptime_seconds)},
        "workers": [
            asdict(worker) | {"since": at(-worker.state_seconds), "until": at(_until(worker))}
            for worker in workers
        ],
        "move": None if move is None else asdict(move),
    }


def status_text(
    daemon: DaemonView,
    workers: Sequence[WorkerView],
    last_line: LastLine,
    move: MoveView | None = None,
) -> str:
    """The daemon in one line, the workers as a table, then notes on some of them."""
    stopping = ", stopping" if daemon.stopping else ""
    head = (
        f"disagg-node {daemon.version} (pid {daemon.pid}) on {daemon.node}, up "
        f"{duration_text(daemon.uptime_seconds)}{stopping}, run folder {daemon.run_dir}"
    )
    notes = tuple(_daemon_notes(daemon))
    if not workers:
        none = "It launches no workers; `disagg-node phases` shows the engines it found."
        return "\n".join([head, none, *notes])
    lines = columns([_TITLES, *map(_row, workers)]).splitlines()
    # Coloured after alignment, as escape codes would distort the widths.
    table = [lines[0], *map(_coloured, lines[1:], workers)]
    said = [line for worker in workers for line in _notes(worker, last_line)]
    return "\n".join([head, *table, *_move_note(move), *said, *notes])


def _daemon_notes(daemon: DaemonView) -> Iterator[str]:
    """What the next daemon would not know, and what only that one will apply."""
    if daemon.unwritten:
        yield daemon.unwritten
    if daemon.node_file:
        yield f"node file: {daemon.node_file}"
    shown, more = daemon.waiting[:_MOST_WAITING], len(daemon.waiting) - _MOST_WAITING
    yield from (f"node file: {what} (waits for the next daemon)" for what in shown)
    if more > 0:
        yield f"node file: {more} more wait; disagg-node reload --dry-run shows all"


def timestamp(seconds: float) -> str:
    """A Unix time with date and zone, in this machine's zone."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def _row(worker: WorkerView) -> tuple[str, ...]:
    # A bare number would be read as an index.
    gpus = f"{len(worker.gpus)} GPUs" if len(worker.gpus) > 1 else "".join(worker.gpus)
    until = _until(worker)
    return (
        worker.worker,
        worker.role,
        state_text(worker),
        duration_text(worker.state_seconds),
        "-" if until is None else f"in {duration_text(until)}",
        str(worker.restarts),
        "-" if worker.pid is None else str(worker.pid),
        gpus or "-",
        str(worker.port),
    )


def state_text(worker: WorkerView) -> str:
    """The displayed state of a worker."""
    if worker.restarting:
        return "restarting"
    return _SILENT if worker.unanswered else worker.state.value


def _until(worker: WorkerView) -> float | None:
    """When its state ends without an event; a ready worker's does not."""
    return None if worker.state.value == "ready" else worker.deadline_seconds


def _coloured(line: str, worker: WorkerView) -> str:
    state = state_text(worker)
    colour = STATE_COLOURS.get(state)
    return line.replace(f" {state}", f" {click.style(state, fg=colour)}", 1) if colour else line


def _move_note(move: MoveView | None) -> Iterator[str]:
    if move is None or not move.under_way:
        return
    change = f"is being reassigned from {move.from_role} to {move.to_role}"
    if move.undone:
        change = f"goes back to {move.from_role}, as {move.why}"
    yield f"{move.worker}: {change} ({move.step}): disagg-node explain {move.worker}"


def _notes(worker: WorkerView, last_line: LastLine) -> Iterator[str]:
    """Notes on a worker that is not simply ready."""
    if worker.paused_seconds is not None:
        paused = duration_text(worker.paused_seconds)
        yield f"{worker.worker}: paused for {paused}: only observed, until `disagg-node resume`"
    if worker.drained:
        waits = "" if worker.has_drained else f"{worker.route_text or worker.left_text}, "
        until = f"until `disagg-node resume {worker.worker}`"
        yield f"{worker.worker}: drained by hand: {waits}no new requests {until}"
    if worker.unanswered:
        yield f"{worker.worker}: its last health probe: {worker.unanswered}"
    elif worker.state.value == "ready" and not worker.restarting:
        return
    elif worker.reason:
        yield f"{worker.worker}: {worker.reason}"
    if worker.log_path:
        yield f"{worker.worker}: log {worker.log_path}"
        # Progress bars, for instance, move the cursor.
        if last := escaped(last_line(worker.log_path))[:_LINE_CHARACTERS]:
            yield f"{worker.worker}: printed last: {last}"


def _last_line(log_path: str) -> str:
    from disagg_cluster.host.worker_logs import last_lines

    return "".join(last_lines(Path(log_path), 1))
