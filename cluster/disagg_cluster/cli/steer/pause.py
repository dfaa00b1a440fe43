"""`disagg-node pause` and `resume`: workers that are observed and nothing else."""

from __future__ import annotations

from pathlib import Path

import click

from disagg_cluster.cli.steer.control import carry_out, options, socket_of, worker_names
from disagg_cluster.control.client import new_request
from disagg_cluster.control.requests import Pause, Resume


@click.command
@click.argument("worker", required=False, shell_complete=worker_names)
@options
def pause(worker: str | None, file: Path | None, run_dir: Path | None, as_json: bool) -> None:
    """Only observe a worker, or all workers: kill nothing, start nothing.

    A hang is not ended, a crash is not restarted and what waits for its restart goes on waiting,
    until `disagg-node resume`; also under the next daemon. States and metrics are shown as ever,
    and stopping the daemon still ends its workers.
    """
    carry_out(socket_of(file, run_dir), new_request(Pause(worker)), as_json=as_json)


@click.command
@click.argument("worker", required=False, shell_complete=worker_names)
@options
def resume(worker: str | None, file: Path | None, run_dir: Path | None, as_json: bool) -> None:
    """Supervise a paused worker, or all paused workers, again.

    One that died meanwhile is started at once; one that hangs is given its whole patience anew.
    """
    carry_out(socket_of(file, run_dir), new_request(Resume(worker)), as_json=as_json)
