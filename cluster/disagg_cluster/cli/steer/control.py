"""What `pause`, `resume`, `restart` and `status` have in common: whom they ask, how they end."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from disagg_cluster.control.client import EXIT_REFUSED, EXIT_TIMEOUT, ask
from disagg_cluster.control.replies import Outcome, Reply
from disagg_cluster.control.requests import Request, Status
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.nodefile import load
from disagg_cluster.supervisor.usual_run_dir import possible_run_dirs
from disagg_exporter.errors import DisaggError

EXIT_CODES = {
    Outcome.DONE: 0,
    Outcome.ACCEPTED: 0,
    Outcome.REFUSED: EXIT_REFUSED,
    Outcome.TIMEOUT: EXIT_TIMEOUT,
}
"""With which code a command ends after which outcome; with 1 after any other."""

_COMPLETION_SECONDS = 1.0


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options `--run-dir`, `--config` and `--json`."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print each answer as JSON."),
        click.option(
            "-c",
            "--config",
            "file",
            type=click.Path(path_type=Path),
            help="The node file of the daemon: it says the run folder.",
        ),
        click.option(
            "--run-dir", type=click.Path(path_type=Path), help="The run folder of the daemon."
        ),
    ):
        command = option(command)
    return command


def socket_of(file: Path | None, run_dir: Path | None) -> Path:
    """The socket of the daemon that is meant."""
    if file is not None and run_dir is not None:
        raise click.UsageError("say either --config or --run-dir")
    configured = load(file).run_folder if file is not None else run_dir
    if configured is not None:
        return RunFolder(configured).control
    # Ours and that of a service: a person who is root may have a session with a folder.
    folders = list(possible_run_dirs(os.environ, os.getuid()))
    sockets = [RunFolder(folder).control for folder in folders]
    return next((socket for socket in sockets if socket.is_socket()), sockets[0])


def carry_out(socket: Path, request: Request, *, as_json: bool) -> None:
    """Ask for a change, say each step of it, and exit as its outcome asks."""
    final = None
    for reply in ask(socket, request):
        final = reply
        if as_json:
            click.echo(json.dumps(shown(reply)))
        elif reply.outcome in (Outcome.DONE, Outcome.ACCEPTED):
            click.echo(reply.text)
        elif reply.outcome is Outcome.PROGRESS:
            click.echo(reply.text, err=True)
        else:
            click.echo(_complaint(reply), err=True)
    assert final is not None, "a stream of replies has an end"
    if code := EXIT_CODES.get(final.outcome, 1):
        raise click.exceptions.Exit(code)


def shown(reply: Reply) -> dict[str, object]:
    """A reply for programs: what it does not have is left out."""
    return {key: value for key, value in asdict(reply).items() if value not in ("", (), None)}


def worker_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What the shell offers for a worker's name: those of the daemon that would be asked."""
    try:
        socket = socket_of(ctx.params.get("file"), ctx.params.get("run_dir"))
        replies = list(ask(socket, Request("completion", Status()), _COMPLETION_SECONDS))
    except (DisaggError, click.UsageError, OSError):
        return []
    workers = (reply.worker for reply in replies if reply.worker is not None)
    return [
        CompletionItem(worker.worker, help=worker.state)
        for worker in workers
        if worker.worker.startswith(incomplete)
    ]


def _complaint(reply: Reply) -> str:
    what = "; ".join(filter(None, (reply.text, *reply.problems)))
    way_out = f"\n    {reply.way_out}" if reply.way_out else ""
    return f"disagg-node: {reply.outcome}: {what}{way_out}"
