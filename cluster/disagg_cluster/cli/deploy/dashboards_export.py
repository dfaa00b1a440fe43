"""`disagg-node dashboards export`: a folder that a Grafana can be pointed at."""

from __future__ import annotations

from pathlib import Path

import click

from disagg_cluster.cli.deploy.rules_export import RUNBOOKS
from disagg_cluster.deploy.dashboards import grafana_files
from disagg_cluster.deploy.export import export as write
from disagg_cluster.host.files.package_data import asset_dir


@click.command
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--datasource",
    metavar="NAME",
    help="Grafana's Prometheus data source that the dashboards open on.  [default: Grafana's]",
)
@click.option(
    "--runbooks",
    default=RUNBOOKS,
    show_default=True,
    metavar="URL",
    help="Where the runbooks are; panels link to URL/<alert>.md.",
)
@click.option("--force", is_flag=True, help="Replace files that differ from ours.")
def export(folder: Path, datasource: str | None, runbooks: str, force: bool) -> None:
    r"""Write the dashboards and Grafana's provisioning files into DIR.

    DIR/dashboards holds the dashboards; any of them can also be imported by hand.
    DIR/provisioning tells Grafana to load them from there: copy it over Grafana's own, or start
    Grafana with GF_PATHS_PROVISIONING=DIR/provisioning. Without --datasource it also defines a
    data source named disagg-node for a Prometheus on 127.0.0.1:9090.

    A file that is there and differs is kept and nothing is written, unless with --force.
    """
    where = folder.absolute()
    files = grafana_files(asset_dir("grafana"), where, datasource, runbooks.rstrip("/"))
    write(where, files, force=force)
    for name in files:
        click.echo(folder / name)
