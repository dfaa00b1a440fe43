"""Where the files of an installation go: below one folder, or where the system looks for them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

NAME = "disagg-node"


class Part(StrEnum):
    """A piece of an installation; a machine may have any of them."""

    SERVICE = "service"
    PROMETHEUS = "prometheus"
    GRAFANA = "grafana"


@dataclass(frozen=True, slots=True)
class Places:
    """The paths of an installation.

    `unit` is the systemd unit, `node_file` what the daemon runs on, `environment` a file of
    variables that the unit reads if it is there. `manifest` remembers what was written.
    """

    unit: Path
    node_file: Path
    environment: Path
    prometheus: Path
    grafana: Path
    provisioning: Path
    manifest: Path
    system: bool

    def usual_parts(self) -> tuple[Part, ...]:
        """Everything below a folder; on the system the service, and whose folders are there."""
        if not self.system:
            return tuple(Part)
        there = {Part.PROMETHEUS: self.prometheus.parent, Part.GRAFANA: self.grafana.parent}
        return tuple(part for part in Part if part not in there or there[part].is_dir())


def below(folder: Path) -> Places:
    """Everything below one folder, to look at, to copy or to run from there."""
    return Places(
        unit=folder / f"{NAME}.service",
        node_file=folder / "node.yaml",
        environment=folder / "environment",
        prometheus=folder / "prometheus",
        grafana=folder / "grafana",
        provisioning=folder / "grafana" / "provisioning",
        manifest=folder / ".installed.json",
        system=False,
    )


def on_system(root: Path = Path("/")) -> Places:
    """Where systemd, Prometheus and Grafana of a Linux distribution look."""
    etc = root / "etc"
    return Places(
        unit=etc / "systemd" / "system" / f"{NAME}.service",
        node_file=etc / NAME / "node.yaml",
        environment=etc / NAME / "environment",
        prometheus=etc / "prometheus" / NAME,
        grafana=etc / "grafana" / NAME,
        provisioning=etc / "grafana" / "provisioning",
        manifest=etc / NAME / ".installed.json",
        system=True,
    )
