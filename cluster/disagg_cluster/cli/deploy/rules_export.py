"""`disagg-node rules export`: the shipped rules and the Alertmanager example as files."""

from __future__ import annotations

from importlib.resources.abc import Traversable
from pathlib import Path

import click

from disagg_cluster.deploy.export import export as write
from disagg_cluster.host.files.package_data import asset_dir

RUNBOOKS = "docs/runbooks"


@click.command
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--runbooks",
    default=RUNBOOKS,
    show_default=True,
    metavar="URL",
    help="Where the runbooks are; the alerts link to URL/<alert>.md.",
)
@click.option(
    "--without-daemon",
    is_flag=True,
    help="Rules for a cluster that does not run disagg-node: from dcgm-exporter and pod labels.",
)
@click.option("--force", is_flag=True, help="Replace files that differ from ours.")
def export(folder: Path, runbooks: str, without_daemon: bool, force: bool) -> None:
    """Write rules and alerts into a folder.

    DIR is made if it is not there. It gets rules/*.yaml for the rule_files of Prometheus, and
    alertmanager.yaml, an example to start from. A file that is there and differs is kept and
    nothing is written, unless with --force.

    \b
      disagg-node rules export /etc/prometheus/disagg-node
      promtool check rules /etc/prometheus/disagg-node/rules/*.yaml
    """  # noqa: D301 # click looks for the character itself
    texts = shipped_without_daemon() if without_daemon else shipped(runbooks.rstrip("/"))
    write(folder, texts, force=force)
    for name in texts:
        click.echo(folder / name)


def shipped(runbooks: str) -> dict[str, str]:
    """The files by their path below the folder, with links to `runbooks`."""
    alerts = asset_dir("alerts")
    rules = {f"rules/{file.name}": _text(file) for file in alerts.joinpath("rules").iterdir()}
    linked = {
        name: text.replace(f"runbook_url: {RUNBOOKS}/", f"runbook_url: {runbooks}/")
        for name, text in sorted(rules.items())
        if name.endswith(".yaml")
    }
    return linked | {"alertmanager.yaml": _text(alerts.joinpath("alertmanager.yaml"))}


def shipped_without_daemon() -> dict[str, str]:
    """The rules that need no daemon of ours, by their path below the folder."""
    rules = asset_dir("alerts").joinpath("rules-only", "rules")
    return {f"rules/{file.name}": _text(file) for file in rules.iterdir()}


def _text(file: Traversable) -> str:
    return file.read_text(encoding="utf-8")
