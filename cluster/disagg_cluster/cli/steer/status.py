"""`disagg-node status`: how a daemon and its workers stand, by its own word."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from disagg_cluster.cli.steer.control import options, socket_of
from disagg_cluster.control.client import BrokenOffError, MayNotAskError, ask, new_request
from disagg_cluster.control.replies import Outcome
from disagg_cluster.control.requests import Status
from disagg_cluster.control.views import DaemonView, WorkerView

_PATIENCE_SECONDS = 10.0


@click.command
@options
def status(file: Path | None, run_dir: Path | None, as_json: bool) -> None:
    """Show the daemon of this node and its workers: state, since when and why, pid, GPUs, port."""
    socket = socket_of(file, run_dir)
    workers, daemon = _asked(socket)
    if as_json:
        told = {"daemon": asdict(daemon), "workers": [asdict(worker) for worker in workers]}
        click.echo(json.dumps(told, indent=2))
    else:
        click.echo(status_text(daemon, workers))


def status_text(daemon: DaemonView, workers: Sequence[WorkerView]) -> str:
    """The daemon in a line and the workers as a table."""
    stopping = ", stopping" if daemon.stopping else ""
    head = (
        f"disagg-node {daemon.version} (pid {daemon.pid}) on {daemon.node}, up "
        f"{duration_text(daemon.uptime_seconds)}{stopping}, run folder {daemon.run_dir}"
    )
    if not workers:
        return f"{head}\nIt launches no workers; `disagg-node phases` shows the engines it found."
    rows: list[tuple[str, ...]] = [
        ("WORKER", "ROLE", "STATE", "SINCE", "RESTARTS", "PID", "GPUS", "PORT", "REASON")
    ]
    rows += [_row(worker) for worker in workers]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = ["  ".join([*map(str.ljust, row, widths), row[-1]]).rstrip() for row in rows]
    return "\n".join([head, *lines])


def duration_text(seconds: float) -> str:
    """A duration in its two largest units."""
    whole = int(seconds)
    days, hours, minutes = whole // 86_400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d {hours}h"
    if hours:
        return f"{hours}h {minutes}m"
    return f"{minutes}m {whole % 60}s" if minutes else f"{whole}s"


def _row(worker: WorkerView) -> tuple[str, ...]:
    state = "restarting" if worker.restarting else worker.state.value
    paused = "" if worker.paused_seconds is None else f" (paused {_paused(worker)})"
    gpus = str(len(worker.gpus)) if len(worker.gpus) > 1 else "".join(worker.gpus)
    return (
        worker.worker,
        worker.role,
        state + paused,
        duration_text(worker.state_seconds),
        str(worker.restarts),
        "-" if worker.pid is None else str(worker.pid),
        gpus or "-",
        str(worker.port),
        worker.reason,
    )


def _paused(worker: WorkerView) -> str:
    return duration_text(worker.paused_seconds or 0.0)


def _asked(socket: Path) -> tuple[list[WorkerView], DaemonView]:
    replies = list(ask(socket, new_request(Status()), _PATIENCE_SECONDS))
    workers = [reply.worker for reply in replies if reply.worker is not None]
    final = replies[-1]
    if final.outcome is Outcome.REFUSED:
        raise MayNotAskError(f"{final.text}; {final.way_out}")
    if final.daemon is None:
        raise BrokenOffError("; ".join((final.text, *final.problems)))
    return workers, final.daemon
