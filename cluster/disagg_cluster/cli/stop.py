"""`disagg-node stop`: stops a daemon, or workers left behind by one."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from disagg_cluster.cli.control import node_file_option, run_dir_option
from disagg_cluster.host.run_dir.layout import RunFolder

if TYPE_CHECKING:
    from disagg_cluster.daemon.stop import EndedProcess


@click.command
@node_file_option
@run_dir_option
@click.option("--workers", is_flag=True, help="Also end workers that outlived their daemon.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def stop(file: Path | None, run_dir: Path | None, workers: bool, as_json: bool) -> None:
    """Drain and stop a running daemon with its workers.

    With --workers, also those that run without one, for example after a crash of their daemon: they
    are drained, told to end, and killed at their deadline. Exits with 0 if nothing is left running.
    """
    from disagg_cluster.control.client import check_access
    from disagg_cluster.daemon.stop import end_daemon, end_workers, left_behind, unnamed
    from disagg_cluster.nodefile import load
    from disagg_cluster.supervisor.ownership.run_folders import usual_run_dir

    if file is not None and run_dir is not None:
        raise click.UsageError("say either --config or --run-dir")
    config = None if file is None else load(file)
    configured = run_dir if config is None else config.run_folder
    ports = {} if config is None else {worker.name: worker.port for worker in config.workers}
    folder = RunFolder(configured or usual_run_dir(os.environ, os.getuid()))

    check_access(folder.path)
    daemon = end_daemon(folder, _say)
    ended: tuple[EndedProcess, ...] = ()
    if workers and (daemon is None or daemon.ended):
        ended = end_workers(folder, _say, ports)
    left = [(entry.worker, entry.pid) for entry in left_behind(folder)]
    others = unnamed(folder, [pid for _, pid in left])
    if as_json:
        outcome = {
            "run_dir": str(folder.path),
            "daemon": None if daemon is None else _without_name(daemon),
            "workers": [{"worker": each.name, **_without_name(each)} for each in ended],
            "left": [{"worker": worker, "pid": pid} for worker, pid in left],
            "unnamed": [{"worker": worker, "pid": pid} for worker, pid in others],
        }
        click.echo(json.dumps(outcome, indent=2))
    elif not (daemon or ended or left or others):
        click.echo(f"nothing runs in {folder.path}")
    for worker, pid in left:
        hint = "" if workers else "; --workers ends it"
        _say(f"{worker} (pid {pid}): still runs{hint}")
    for worker, pid in others:
        hint = "it is left alone" if workers else "--workers ends it if it is ours"
        _say(f"pid {pid} writes the log of {worker}, but no journal names it: {hint}")
    if left or others or not (daemon is None or daemon.ended):
        raise click.exceptions.Exit(1)


def _without_name(ended: EndedProcess) -> dict[str, object]:
    return {key: value for key, value in asdict(ended).items() if key != "name"}


def _say(text: str) -> None:
    click.echo(text, err=True)
