"""From a node file to its configuration: read once, every problem reported at once, then frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from disagg_cluster.config import NodeConfig
from disagg_cluster.config.layout import assume
from disagg_cluster.config.problems import Finding, YamlPath, config_error
from disagg_cluster.nodefile.checks import check
from disagg_cluster.nodefile.draft import understand
from disagg_cluster.nodefile.worker_checks import THIS_HOST, Host
from disagg_cluster.nodefile.yaml_positions import YamlDocument, read_yaml, read_yaml_file
from disagg_exporter.devices.simulated import SimDevices
from disagg_exporter.devices.source import DeviceKind
from disagg_exporter.model import Device


@dataclass(frozen=True, slots=True)
class NodeFile:
    """What one reading of a node file gave.

    `lines` are those of everything in it, for problems that only its node can see.
    """

    config: NodeConfig
    lines: Mapping[YamlPath, int]


def read(path: Path, host: Host = THIS_HOST) -> NodeFile:
    """Read a node file, once: what changes in it meanwhile cannot give half of each.

    Raises:
        ConfigError: The file cannot be read, or has problems; all of them are in it.
    """
    document = read_yaml_file(path)
    return NodeFile(_configure(document, str(path), host, path.absolute().parent), document.lines)


def load(path: Path, host: Host = THIS_HOST) -> NodeConfig:
    """Read a node file of which nothing but the configuration is wanted; raises as `read`."""
    return read(path, host).config


def parse(text: str, source: str, host: Host = THIS_HOST, folder: Path | None = None) -> NodeConfig:
    """Understand the text of a node file.

    Args:
        text: YAML.
        source: What to call it in the report.
        host: The machine whose folders and programs it speaks of.
        folder: From where its relative paths count; they stay relative if None.

    Raises:
        ConfigError: It has problems; all of them are in the error.
    """
    return _configure(read_yaml(text), source, host, folder)


def from_mapping(mapping: Mapping[str, object], source: str, host: Host = THIS_HOST) -> NodeConfig:
    """Understand what a node file's YAML would have been read as; problems have no lines.

    Raises:
        ConfigError: It has problems; all of them are in the error.
    """
    return _configure(YamlDocument(mapping, {}, ()), source, host)


def expected_devices(config: NodeConfig) -> tuple[Device, ...] | None:
    """The devices of the node as far as its file says; None for a node without GPUs."""
    if config.devices is DeviceKind.SIM:
        return SimDevices(Path(), config.sim_devices).inventory()
    return assume(config)


def _configure(
    document: YamlDocument, source: str, host: Host, folder: Path | None = None
) -> NodeConfig:
    if document.value is None:
        raise config_error(document.findings or [Finding((), "the file is empty")], source)
    draft, violations = understand(document.value, folder)
    findings = [*document.findings, *violations]
    if draft is not None:
        config = draft.config
        if not (draft.sure("devices") and draft.sure("sim_devices")):
            config = config.model_copy(update={"devices": DeviceKind.AUTO})
        findings += check(draft, expected_devices(config), host)
    if findings or draft is None:
        raise config_error(findings, source, document.lines)
    return draft.config
