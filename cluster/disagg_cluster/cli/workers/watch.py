"""`disagg-node status --watch`: the workers of a daemon, then their changes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from disagg_cluster.cli.control import DaemonClient, error_text, exit_code, reply_value

if TYPE_CHECKING:
    from disagg_cluster.control.messages import ControlReply
    from disagg_cluster.control.views import WorkerView

_PATIENCE_SECONDS = 35.0
"""How long a daemon may be silent; it sends something every ten seconds."""


def watch_status(daemon: DaemonClient, *, as_json: bool) -> None:
    """Print what a daemon reports until it ends or Ctrl-C; raises as `client.ask`."""
    from disagg_cluster.cli.workers.status import timestamp
    from disagg_cluster.control.client import new_request
    from disagg_cluster.control.messages import WatchStatus

    replies = daemon.ask(new_request(WatchStatus()), _PATIENCE_SECONDS)
    try:
        for reply in replies if as_json else _table_first(replies):
            if as_json:
                click.echo(json.dumps({"made_at": timestamp(time.time())} | reply_value(reply)))
            elif line := change_text(reply):
                click.echo(f"{time.strftime('%H:%M:%S')} {line}")
            if code := reply.outcome.final and exit_code(reply.outcome):
                if not as_json:
                    click.echo(error_text(reply), err=True)
                raise click.exceptions.Exit(code)
    except KeyboardInterrupt:
        return
    except BrokenPipeError:
        # The reader has closed the pipe; avoids a flush error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def change_text(reply: ControlReply) -> str:
    """One watch reply as a line; empty if it has nothing to show."""
    from disagg_cluster.control.messages import ReplyOutcome

    if reply.worker is not None:
        if reply.outcome is ReplyOutcome.GONE:
            return f"{reply.worker.worker}: is no longer launched here"
        return worker_text(reply.worker)
    if reply.daemon is not None:
        return "the daemon is stopping" if reply.daemon.stopping else ""
    return "" if reply.outcome.final and exit_code(reply.outcome) else reply.text


def worker_text(worker: WorkerView) -> str:
    """The state of a worker as a line."""
    from disagg_cluster.cli.workers.status import state_text

    drain = "drained" if worker.has_drained else worker.route_text or "gets no new requests"
    marks = [mark for mark, holds in (("paused", worker.paused), (drain, worker.drained)) if holds]
    role = f" ({worker.role})" if worker.role else ""
    reason = f": {worker.reason}" if worker.reason else ""
    return f"{worker.worker}{role}: {', '.join([state_text(worker), *marks])}{reason}"


def _table_first(replies: Iterator[ControlReply]) -> Iterator[ControlReply]:
    """Print the first replies as a status table, and pass on the rest."""
    from disagg_cluster.cli.workers.status import status_text
    from disagg_cluster.control.messages import ReplyOutcome

    workers: list[WorkerView] = []
    for reply in replies:
        if reply.outcome is ReplyOutcome.WORKER and reply.worker is not None:
            workers.append(reply.worker)
        elif reply.daemon is not None:
            click.echo(status_text(reply.daemon, workers, lambda _log: ""))
            break
        else:
            yield reply
    yield from replies
