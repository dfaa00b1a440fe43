"""`disagg-node plugin env`: what an engine that somebody starts by hand needs to tell its steps."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from disagg_cluster.host.files.package_data import engine_side_folder
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.supervisor.usual_run_dir import usual_run_dir
from disagg_exporter.inside_engine.disagg_steps import wire


@click.command
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="The daemon's `run_dir`, where its node file says one.",
)
def env(run_dir: Path | None) -> None:
    """Print the variables with which vLLM tells its steps to the daemon of this host.

    For a shell: eval "$(disagg-node plugin env)", then start the engine with
    --enable-logging-iteration-details. The daemon finds it (`disagg-node start` without a file,
    or `attach:` in its node file) and measures it by its steps. It must run as the daemon's user,
    or as root.
    """
    folder = RunFolder(run_dir or usual_run_dir(os.environ, os.getuid()))
    inherited = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(filter(None, (str(engine_side_folder()), inherited)))
    click.echo(f"export PYTHONPATH={shlex.quote(path)}")
    click.echo(f"export {wire.SOCKET_ENVIRONMENT}={shlex.quote(str(folder.attached_socket))}")
