"""`disagg-node restart`: one worker, drained, ended and started anew."""

from __future__ import annotations

from pathlib import Path

import click

from disagg_cluster.cli.steer.control import carry_out, options, socket_of, worker_names
from disagg_cluster.control.client import new_request
from disagg_cluster.control.requests import Restart


@click.command
@click.argument("worker", shell_complete=worker_names)
@click.option("--now", is_flag=True, help="Do not wait for its running requests.")
@click.option("--no-wait", is_flag=True, help="Do not wait until it is ready again.")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(min=0, min_open=True, max=86_400),
    metavar="SECONDS",
    help="Wait no longer; the restart goes on.  [default: what its deadlines allow]",
)
@options
def restart(
    worker: str,
    now: bool,
    no_wait: bool,
    timeout_seconds: float | None,
    file: Path | None,
    run_dir: Path | None,
    as_json: bool,
) -> None:
    """Drain a worker, end it and start it anew; also one that was given up.

    Its crashes are forgiven. A paused worker is refused. Exits with 0 when it is ready, 1 if it
    failed, 3 if the restart was refused, 4 if no daemon answers, 5 if it was not ready in time.
    """
    verb = Restart(worker, drain=not now)
    request = new_request(verb, wait=not no_wait, deadline_seconds=timeout_seconds)
    carry_out(socket_of(file, run_dir), request, as_json=as_json)
