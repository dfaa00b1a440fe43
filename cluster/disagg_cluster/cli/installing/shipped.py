"""Commands that export what we ship: rules, dashboards and the engine plugin."""

from __future__ import annotations

import functools
import json
import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from disagg_cluster.cli.prometheus_access import DEFAULT_URL
from disagg_cluster.deploy.runbook_links import SHIPPED, RunbookLinks
from disagg_cluster.host.run_dir.layout import RunFolder

Command = Callable[..., Any]


_json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print what was written as JSON."
)


def runbook_options(command: Command) -> Command:
    """Adds the options for the location of runbooks, passed as `runbooks`."""

    @functools.wraps(command)
    def gathered(runbooks: str, runbook_ending: str, **others: Any) -> Any:
        return command(runbooks=RunbookLinks(runbooks, runbook_ending), **others)

    ending = click.option(
        "--runbook-ending",
        default=RunbookLinks().ending,
        show_default=True,
        metavar="TEXT",
        help="Suffix of their file names there: .html on the site that docs-check builds.",
    )
    base = click.option(
        "--runbooks",
        default=SHIPPED,
        show_default=True,
        metavar="URL",
        help="Where people read the runbooks; alerts and panels link to URL/<alert>.md.",
    )
    return base(ending(gathered))


def prometheus_option(command: Command) -> Command:
    """Adds the option `--prometheus`, the address for Grafana's data source."""
    return click.option(
        "--prometheus",
        callback=_prometheus_url,
        default=DEFAULT_URL,
        show_default=True,
        metavar="URL",
        help="Address for Grafana's data source, as seen from Grafana.",
    )(command)


def _prometheus_url(ctx: click.Context, param: click.Parameter, url: str) -> str:
    from disagg_cluster.prometheus.http_client import is_address

    if not is_address(url) or "@" in urlsplit(url).netloc:
        reason = "is no address such as http://prometheus:9090"
        raise click.BadParameter(f"{url!r} {reason}", ctx, param)
    return url


@click.command("export")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@runbook_options
@click.option(
    "--without-daemon",
    is_flag=True,
    help="Rules for a cluster that does not run disagg-node: from dcgm-exporter and pod labels.",
)
@click.option(
    "--optional",
    is_flag=True,
    help="Also write informational alerts, which seldom need action.",
)
@click.option("--force", is_flag=True, help="Replace files that differ from ours.")
@_json_option
def rules_export(
    folder: Path,
    runbooks: RunbookLinks,
    without_daemon: bool,
    optional: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Write rules and alerts into a folder.

    DIR is created if missing. It gets rules/*.yaml for the rule_files of Prometheus, and
    alertmanager.yaml, an example to start from. If an existing file differs, nothing is written,
    unless with --force.

    \b
      disagg-node rules export /etc/prometheus/disagg-node
      promtool check rules /etc/prometheus/disagg-node/rules/*.yaml
    """  # noqa: D301 # click looks for the character itself
    from disagg_cluster.deploy.export import export as write

    kinds = ("rules", "optional") if optional else ("rules",)
    texts = shipped_without_daemon() if without_daemon else shipped(runbooks, kinds)
    write(folder, texts, force=force)
    _print_paths([folder / name for name in texts], as_json=as_json)


def shipped(runbooks: RunbookLinks, kinds: Sequence[str] = ("rules",)) -> dict[str, str]:
    """The rules of these kinds, linked to `runbooks`, by path below the folder."""
    from disagg_cluster.host.files.package_data import asset_dir

    alerts = asset_dir("alerts")
    rules = {
        f"rules/{file.name}": _text(file)
        for kind in kinds
        for file in alerts.joinpath(kind).iterdir()
    }
    linked = {
        name: runbooks.in_rules(text)
        for name, text in sorted(rules.items())
        if name.endswith(".yaml")
    }
    return linked | {"alertmanager.yaml": _text(alerts.joinpath("alertmanager.yaml"))}


def shipped_without_daemon() -> dict[str, str]:
    """The rules that work without our daemon, by path below the folder."""
    from disagg_cluster.host.files.package_data import asset_dir

    rules = asset_dir("alerts").joinpath("without-daemon", "rules")
    return {f"rules/{file.name}": _text(file) for file in rules.iterdir()}


def _text(file: Traversable) -> str:
    return file.read_text(encoding="utf-8")


@click.command("export")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--datasource",
    metavar="NAME",
    help="Grafana's Prometheus data source that the dashboards open on.  [default: Grafana's]",
)
@prometheus_option
@runbook_options
@click.option("--force", is_flag=True, help="Replace files that differ from ours.")
@_json_option
def dashboards_export(
    folder: Path,
    datasource: str | None,
    prometheus: str,
    runbooks: RunbookLinks,
    force: bool,
    as_json: bool,
) -> None:
    r"""Write the dashboards and Grafana's provisioning files into DIR.

    DIR/dashboards holds the dashboards; any of them can also be imported by hand.
    DIR/provisioning tells Grafana to load them from there: copy it over Grafana's own, or start
    Grafana with GF_PATHS_PROVISIONING=DIR/provisioning. Without --datasource it also defines a
    data source named disagg-node for the Prometheus of --prometheus.

    If an existing file differs, nothing is written, unless with --force.
    """
    from disagg_cluster.deploy.export import export as write
    from disagg_cluster.deploy.export import grafana_files
    from disagg_cluster.host.files.package_data import asset_dir

    where = folder.absolute()
    files = grafana_files(asset_dir("grafana"), where, datasource, prometheus, runbooks)
    write(where, files, force=force)
    _print_paths([folder / name for name in files], as_json=as_json)


@click.command("copy")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@_json_option
def plugin_copy(folder: Path, as_json: bool) -> None:
    """Copy the vLLM plugin into DIR.

    An engine that has DIR on its PYTHONPATH and a socket's path in DISAGG_STEPS_SOCKET reports its
    steps there. For the init container of an engine's pod: docs/kubernetes-engines.md.
    """
    from disagg_cluster.discovery.pod_steps.folders import copy_plugin
    from disagg_cluster.host.files.package_data import engine_side_folder

    _print_paths(copy_plugin(engine_side_folder(), folder), as_json=as_json)


def _print_paths(paths: Iterable[Path], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"files": [str(path) for path in paths]}, indent=2))
    else:
        for path in paths:
            click.echo(path)


@click.command("env")
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="The daemon's `run_dir`, if its node file sets one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON, for a launcher.")
def plugin_env(run_dir: Path | None, as_json: bool) -> None:
    """Print the variables with which vLLM reports its steps to the daemon of this host.

    For a shell: eval "$(disagg-node plugin env)", then start the engine with
    --enable-logging-iteration-details. The daemon finds it (`disagg-node start` without a file,
    or `attach:` in its node file) and measures it from its steps. It must run as the daemon's user,
    or as root.
    """
    from disagg_cluster.host.files.package_data import engine_side_folder
    from disagg_cluster.supervisor.ownership.run_folders import usual_run_dir
    from disagg_exporter.inside_engine.disagg_steps import wire

    folder = RunFolder(run_dir or usual_run_dir(os.environ, os.getuid()))
    inherited = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(filter(None, (str(engine_side_folder()), inherited)))
    variables = {"PYTHONPATH": path, wire.SOCKET_ENVIRONMENT: str(folder.attached_socket)}
    if as_json:
        click.echo(json.dumps(variables, indent=2))
        return
    for name, value in variables.items():
        click.echo(f"export {name}={shlex.quote(value)}")
