"""The files of an installation, their places and texts, and a person's next steps."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import yaml

from disagg_cluster.config import NodeConfig
from disagg_cluster.deploy.install.plan import Action, DesiredFile, FileChange
from disagg_cluster.deploy.install.texts import unit_text
from disagg_cluster.prometheus.local_server import ScrapeTarget, alerting, scrape_config
from disagg_exporter.http.listen import ListenAddress

NAME = "disagg-node"
ALERTMANAGER = "127.0.0.1:9093"
"""An Alertmanager's default address; without one, Prometheus' alerts are not delivered."""


class InstallPart(StrEnum):
    """A piece of an installation; a machine may have any of them."""

    SERVICE = "service"
    PROMETHEUS = "prometheus"
    GRAFANA = "grafana"


@dataclass(frozen=True, slots=True)
class InstallPaths:
    """The paths of an installation.

    `unit` is the systemd unit, `node_file` the daemon's configuration, `environment` a file of
    variables that the unit reads if it exists. `manifest` records what was written. `root` is
    the folder of the image that it is for, / for this machine.
    """

    unit: Path
    node_file: Path
    environment: Path
    prometheus: Path
    grafana: Path
    provisioning: Path
    manifest: Path
    system: bool
    root: Path = Path("/")

    @property
    def is_here(self) -> bool:
        """Whether it is for this machine, not for an image."""
        return self.root == Path("/")

    def seen(self, path: Path) -> Path:
        """Return a path as the files within the image have to name it."""
        return Path("/") / path.relative_to(self.root)

    @property
    def own_folders(self) -> tuple[Path, ...]:
        """The folders that hold nothing but our files, and the reader's own beside them."""
        if self.system:
            return (self.prometheus, self.grafana, self.node_file.parent)
        return (self.node_file.parent,)

    def holds(self, path: Path) -> bool:
        """Return whether an installation may have written there, recorded or not."""
        real = path.parent.resolve() / path.name
        places = (self.unit, self.provisioning, *self.own_folders)
        return any(real.is_relative_to(each.resolve()) for each in places)

    def of_ours(self, written: Mapping[str, str]) -> dict[str, str]:
        """Return the files in a record that may be ours: a record can be forged."""
        return {name: digest for name, digest in written.items() if self.holds(Path(name))}

    @property
    def option(self) -> str:
        """The command-line option that names this place."""
        if not self.system:
            return f"--into {_quoted(self.node_file.parent)}"
        return "--system" if self.is_here else f"--system --root {_quoted(self.root)}"

    def usual_parts(self) -> tuple[InstallPart, ...]:
        """Return all parts below a folder; on the system the service and those with folders."""
        if not self.system:
            return tuple(InstallPart)
        there = {
            InstallPart.PROMETHEUS: self.prometheus.parent,
            InstallPart.GRAFANA: self.grafana.parent,
        }
        return tuple(part for part in InstallPart if part not in there or there[part].is_dir())


def below(folder: Path) -> InstallPaths:
    """Return the paths of an installation within one folder, to inspect, to copy or to run."""
    return InstallPaths(
        unit=folder / f"{NAME}.service",
        node_file=folder / "node.yaml",
        environment=folder / "environment",
        prometheus=folder / "prometheus",
        grafana=folder / "grafana",
        provisioning=folder / "grafana" / "provisioning",
        manifest=folder / ".installed.json",
        system=False,
    )


def on_system(root: Path = Path("/")) -> InstallPaths:
    """Return the paths where systemd, Prometheus and Grafana of a Linux distribution look."""
    etc = root / "etc"
    return InstallPaths(
        unit=etc / "systemd" / "system" / f"{NAME}.service",
        node_file=etc / NAME / "node.yaml",
        environment=etc / NAME / "environment",
        prometheus=etc / "prometheus" / NAME,
        grafana=etc / "grafana" / NAME,
        provisioning=etc / "grafana" / "provisioning",
        manifest=etc / NAME / ".installed.json",
        system=True,
        root=root,
    )


@dataclass(frozen=True, slots=True)
class Shipped:
    """Content of our packages: rules by name, and Grafana's files by name."""

    rules: Mapping[str, str]
    grafana: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NodeToInstall:
    """The node to install: its configuration, that file's text, and the scheme of its page."""

    config: NodeConfig
    text: str
    scheme: str
    program: Path
    user: str


def desired_files(
    paths: InstallPaths, parts: Iterable[InstallPart], node: NodeToInstall, shipped: Shipped
) -> tuple[DesiredFile, ...]:
    """Return all files of the parts, in the best order for reading."""
    chosen = set(parts)
    found: list[DesiredFile] = []
    if InstallPart.SERVICE in chosen:
        node_file, environment = paths.seen(paths.node_file), paths.seen(paths.environment)
        unit = unit_text(node.config, node.program, node_file, environment, node.user)
        found += [
            DesiredFile(paths.node_file, node.text, theirs=True),
            DesiredFile(paths.unit, unit),
        ]
    if InstallPart.PROMETHEUS in chosen:
        found += _prometheus(paths, node, shipped)
    if InstallPart.GRAFANA in chosen:
        for name, text in shipped.grafana.items():
            inside = Path(name)
            provisioned = inside.parts[0] == "provisioning"
            where = paths.provisioning if provisioned else paths.grafana
            rest = Path(*inside.parts[1:]) if provisioned else inside
            found.append(DesiredFile(where / rest, text))
    return tuple(found)


def _prometheus(
    paths: InstallPaths, node: NodeToInstall, shipped: Shipped
) -> Iterator[DesiredFile]:
    rules = str(paths.prometheus / "rules" / "*.yaml")
    text = scrape_config(
        [_target(node)],
        rule_files=[rules],
        scheme=node.scheme,
        alertmanagers=[ALERTMANAGER],
        cluster=node.config.cluster,
    )
    if paths.system:
        # An existing Prometheus has its own configuration, which is to include ours.
        text = yaml.safe_dump({"scrape_configs": yaml.safe_load(text)["scrape_configs"]})
        yield DesiredFile(paths.prometheus / "scrape.yaml", text)
    else:
        yield DesiredFile(paths.prometheus / "prometheus.yaml", text)
    for name, rule in shipped.rules.items():
        yield DesiredFile(paths.prometheus / name, rule)


def _target(node: NodeToInstall) -> ScrapeTarget:
    address = node.config.listen.metrics_address
    host = "127.0.0.1" if address.host in ("", "0.0.0.0", "::") else address.host
    return ScrapeTarget(
        str(ListenAddress(host, address.port)), node.config.node, node.config.cluster
    )


def next_steps(
    paths: InstallPaths, parts: Iterable[InstallPart], scheme: str, cluster: str
) -> tuple[str, ...]:
    """Return the remaining steps once the files are written."""
    chosen, found = set(parts), []
    prometheus = paths.seen(paths.prometheus)
    if InstallPart.SERVICE in chosen:
        found.append(f"disagg-node config check {_quoted(paths.node_file)}")
        if not paths.system:
            found.append(f"systemctl link {_quoted(paths.unit)}")
        found.append(
            "systemctl daemon-reload && systemctl enable --now disagg-node"
            if paths.is_here
            else f"systemctl --root={_quoted(paths.root)} enable disagg-node"
        )
    if InstallPart.PROMETHEUS in chosen and paths.system:
        rules = prometheus / "rules" / "*.yaml"
        found += [
            f"# in prometheus.yml, under rule_files: {rules}",
            f"# and under scrape_config_files: {prometheus / 'scrape.yaml'} (before Prometheus "
            "2.43 copy its job under scrape_configs)",
            "# no alert is delivered until prometheus.yml has an alerting block, such as: "
            f"alerting: {json.dumps(alerting([ALERTMANAGER]))}",
            f"# routes and inhibitions to start from: {prometheus / 'alertmanager.yaml'}",
        ]
        found += ["systemctl reload prometheus"] if paths.is_here else []
    elif InstallPart.PROMETHEUS in chosen:
        found += [
            f"prometheus --config.file={_quoted(prometheus / 'prometheus.yaml')}",
            f"alertmanager --config.file={_quoted(prometheus / 'alertmanager.yaml')}"
            "  # after its receivers are yours",
        ]
    if InstallPart.PROMETHEUS in chosen and not cluster:
        found.append(
            f"# the cluster has no name: give it one in {paths.node_file} (cluster:) before "
            "another is scraped by the same Prometheus, and install again"
        )
    if InstallPart.PROMETHEUS in chosen and scheme == "https":
        found.append("# the page is encrypted: add tls_config and basic_auth, see docs/serving.md")
    if InstallPart.GRAFANA in chosen and paths.system:
        found += ["systemctl restart grafana-server"] if paths.is_here else []
    elif InstallPart.GRAFANA in chosen:
        found.append(f"# start Grafana with GF_PATHS_PROVISIONING={_quoted(paths.provisioning)}")
    return tuple(found)


def upgrade_steps(
    paths: InstallPaths, steps: Iterable[FileChange], *, restarted: bool, spares_engines: bool
) -> tuple[str, ...]:
    """Return the remaining steps once an installation's files are those of another version."""
    if not paths.is_here:
        return ()
    found = []
    if not restarted:
        why = "" if spares_engines else "  # ends its workers, as its node file says"
        found.append(f"systemctl daemon-reload && systemctl restart disagg-node{why}")
    changed = [step.path for step in steps if step.action.writes or step.action is Action.REMOVE]
    if any(path.is_relative_to(paths.prometheus) for path in changed):
        found.append("systemctl reload prometheus")
    grafana = (paths.grafana, paths.provisioning)
    if any(path.is_relative_to(each) for path in changed for each in grafana):
        found.append("systemctl restart grafana-server")
    return tuple(found)


def after_removal(paths: InstallPaths, steps: Iterable[FileChange]) -> tuple[str, ...]:
    """Return the remaining steps once an installation was removed."""
    gone, found = [step.path for step in steps if step.action is Action.REMOVE], []
    if not paths.system and paths.unit in gone:
        found.append("systemctl disable --now disagg-node  # where its unit was linked")
    if paths.system and any(path.is_relative_to(paths.prometheus) for path in gone):
        folder = paths.seen(paths.prometheus)
        found.append(f"# take {folder} out of prometheus.yml, then reload Prometheus")
    if paths.system and paths.is_here and any(path.is_relative_to(paths.grafana) for path in gone):
        found.append("systemctl restart grafana-server")
    found.append(
        "# the program itself: uv tool uninstall disagg-node, or pipx, or pip, as it was installed"
    )
    return tuple(found)


def leftovers(steps: Iterable[FileChange]) -> tuple[str, ...]:
    """Return the command to remove files of earlier installs that are no longer needed."""
    old = [_quoted(step.path) for step in steps if step.action is Action.LEFT]
    return (f"rm {' '.join(old)}",) if old else ()


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
