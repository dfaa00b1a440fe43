"""`disagg-node install`: a service, a Prometheus and a Grafana for a node without Kubernetes."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from disagg_cluster.cli.installing.place import (
    diff_lines,
    paths_of,
    root_option,
    service_of,
    step_line,
    summary_line,
    titled_lines,
)
from disagg_cluster.cli.installing.shipped import prometheus_option, runbook_options
from disagg_cluster.cli.installing.shipped import shipped as shipped_rules

if TYPE_CHECKING:
    from disagg_cluster.deploy.install.choices import InstallChoices
    from disagg_cluster.deploy.install.files import InstallPaths, NodeToInstall, Shipped
    from disagg_cluster.deploy.install.plan import FileChange
    from disagg_cluster.deploy.runbook_links import RunbookLinks

_LONGEST_DIFF_LINES = 60
PARTS = ("service", "prometheus", "grafana")
"""The values of `InstallPart`, which is too slow to import for a help text."""


@click.command
@click.option("--into", type=click.Path(path_type=Path, file_okay=False), help="Write below DIR.")
@click.option("--system", is_flag=True, help="Write where systemd, Prometheus and Grafana look.")
@root_option
@click.option("--apply", is_flag=True, help="Write; without it only the plan is printed.")
@click.option(
    "--upgrade",
    is_flag=True,
    help="Update an installation to this version, with its original options; on the system "
    "unless --into is given.",
)
@click.option("--force", is_flag=True, help="Replace changed files; never the node file.")
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(PARTS),
    help="Only this part; repeatable.  [default: all; with --system the service, and what is "
    "installed here]",
)
@click.option(
    "-c", "--config", "file", type=click.Path(path_type=Path), help="The node file to begin with."
)
@click.option("--node", help="Name of the node in a new node file.  [default: the host's]")
@click.option("--cluster", default="", help="Name of the cluster in a new node file.")
@click.option("--user", default="root", show_default=True, help="The user of the service.")
@click.option("--datasource", metavar="NAME", help="Grafana data source to open on.")
@prometheus_option
@runbook_options
@click.option("--full", is_flag=True, help="Show long diffs too.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def install(
    into: Path | None,
    system: bool,
    root: Path,
    apply: bool,
    upgrade: bool,
    force: bool,
    parts: Sequence[str],
    file: Path | None,
    node: str | None,
    cluster: str,
    user: str,
    datasource: str | None,
    prometheus: str,
    runbooks: RunbookLinks,
    full: bool,
    as_json: bool,
) -> None:
    """Install on a machine without Kubernetes.

    Writes a systemd unit whose engines outlive the daemon, a node file to fill in, a scrape
    config and rules for Prometheus, and dashboards for Grafana. Prints the plan with a diff of
    each file and changes nothing, unless with --apply. A changed file is kept, unless with --force;
    the node file is yours from the start. Nothing is started, except that an upgrade restarts a
    running daemon if its node file leaves the engines serving meanwhile.

    \b
      disagg-node install --into ./disagg            # look at it
      disagg-node install --into ./disagg --apply
      sudo disagg-node install --system --apply
      sudo disagg-node install --upgrade --apply     # after the program itself was upgraded
    """  # noqa: D301 # click looks for the character itself
    from disagg_cluster.deploy.install.choices import InstallChoices, recalled
    from disagg_cluster.deploy.install.files import (
        InstallPart,
        desired_files,
        leftovers,
        next_steps,
        upgrade_steps,
    )
    from disagg_cluster.deploy.install.plan import (
        InstallError,
        carry_out,
        plan,
        read_manifest,
        read_texts,
    )
    from disagg_cluster.deploy.install.service import spares_engines
    from disagg_cluster.deploy.install.texts import starter_text

    paths = paths_of(into, root, system=system or (upgrade and into is None))
    before = read_manifest(paths.manifest, paths.root)
    written = paths.of_ours(before.files)
    choices = InstallChoices(
        tuple(map(InstallPart, parts)) or paths.usual_parts(),
        user,
        datasource,
        prometheus,
        runbooks.base,
        runbooks.ending,
    )
    if upgrade:
        if not written:
            raise InstallError(f"nothing is installed there: {paths.manifest} is not there")
        choices = recalled(_not_given_now(before.choices), choices)
    target = _node(paths, file, starter_text(node or os.uname().nodename, cluster), choices.user)
    files = desired_files(paths, choices.parts, target, _shipped(paths, choices))
    there = read_texts({*(each.path for each in files), *map(Path, written)})
    steps = plan(files, there, written, force=force, tidy=upgrade)
    done: tuple[str, ...] = ()
    spares = spares_engines(target.config)
    if apply:
        carry_out(steps, paths.manifest, choices.remembered(), paths.root)
        if upgrade and InstallPart.SERVICE in choices.parts:
            done = service_of(paths).reload(restart=spares)
    if upgrade:
        after = upgrade_steps(paths, steps, restarted=bool(done) and spares, spares_engines=spares)
    else:
        after = next_steps(paths, choices.parts, target.scheme, target.config.cluster)
    after = (*leftovers(steps), *after)
    undo = f"disagg-node uninstall {paths.option} --apply"
    if as_json:
        click.echo(_as_json(steps, done, after, undo, applied=apply))
    else:
        click.echo(_as_text(steps, done, after, undo, applied=apply, full=full))


def _not_given_now(remembered: Mapping[str, object]) -> dict[str, object]:
    """The remembered options that the command line does not override."""
    context = click.get_current_context()
    return {
        name: value
        for name, value in remembered.items()
        if context.get_parameter_source(name) is not click.core.ParameterSource.COMMANDLINE
    }


def _shipped(paths: InstallPaths, choices: InstallChoices) -> Shipped:
    from disagg_cluster.deploy.export import grafana_files
    from disagg_cluster.deploy.install.files import Shipped
    from disagg_cluster.deploy.runbook_links import RunbookLinks
    from disagg_cluster.host.files.package_data import asset_dir

    runbooks = RunbookLinks(choices.runbooks, choices.runbook_ending)
    folder = asset_dir("grafana")
    return Shipped(
        shipped_rules(runbooks),
        grafana_files(
            folder,
            paths.seen(paths.grafana),
            choices.datasource,
            choices.prometheus,
            runbooks,
        ),
    )


def _node(paths: InstallPaths, file: Path | None, starter: str, user: str) -> NodeToInstall:
    """The node to install, from the installed node file if it exists, or else the given one."""
    from disagg_cluster.daemon.metrics_service import scheme_of
    from disagg_cluster.deploy.install.files import NodeToInstall
    from disagg_cluster.deploy.install.plan import InstallError, read_texts
    from disagg_cluster.nodefile import parse

    texts = read_texts([paths.node_file, *([] if file is None else [file])])
    source = paths.node_file
    if file is not None and file not in texts:
        raise InstallError(f"{file} does not exist")
    if source in texts:
        if file is not None and texts.get(file) != texts[source]:
            raise InstallError(f"{source} is there and says something else than {file}")
        text = texts[source]
    elif file is not None:
        source, text = file, texts[file]
    else:
        text = starter
    config = parse(text, str(source), folder=source.absolute().parent)
    return NodeToInstall(config, text, scheme_of(config.listen), _program(), user)


def _program() -> Path:
    """The path of our own command for use in a service."""
    beside = Path(sys.executable).with_name("disagg-node")
    found = shutil.which("disagg-node")
    return Path(found) if found and not beside.exists() else beside


def _as_text(
    steps: Sequence[FileChange],
    done: Sequence[str],
    after: Sequence[str],
    undo: str,
    *,
    applied: bool,
    full: bool,
) -> str:
    lines = []
    for step in steps:
        lines.append(step_line(step))
        diff = diff_lines(step)
        if applied or not diff:
            continue
        if full or len(diff) <= _LONGEST_DIFF_LINES:
            lines += diff
        else:
            lines.append(f"    {len(diff)} lines differ; --full shows them")
    writes = sum(step.action.writes for step in steps)
    lines += ["", summary_line(writes, steps, "written" if applied else "would be written")]
    if not applied and writes:
        lines.append("Nothing was changed: --apply writes them.")
    lines += titled_lines("Done:", done) + titled_lines("Next:", after)
    if applied:
        lines += titled_lines("To undo all of it:", [undo])
    return "\n".join(lines)


def _as_json(
    steps: Sequence[FileChange],
    done: Sequence[str],
    after: Sequence[str],
    undo: str,
    *,
    applied: bool,
) -> str:
    files = [
        {"path": str(step.path), "action": step.action.value, "why": step.why, "diff": step.diff}
        for step in steps
    ]
    value = {
        "applied": applied,
        "files": files,
        "done": list(done),
        "next": list(after),
        "undo": [undo],
    }
    return json.dumps(value, indent=2)
