"""`disagg-node plugin copy`: what the init container of an engine's pod runs."""

from __future__ import annotations

from pathlib import Path

import click

from disagg_cluster.discovery.pod_steps.copying import copy_plugin
from disagg_cluster.host.files.package_data import engine_side_folder


@click.command
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
def copy(folder: Path) -> None:
    """Copy the vLLM plugin into DIR.

    An engine that has DIR on its PYTHONPATH and a socket's path in DISAGG_STEPS_SOCKET tells its
    steps there. For the init container of an engine's pod: docs/kubernetes-engines.md.
    """
    for path in copy_plugin(engine_side_folder(), folder):
        click.echo(path)
