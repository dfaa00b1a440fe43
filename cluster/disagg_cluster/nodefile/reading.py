"""Reads a node file into a frozen configuration, or reports all its problems at once.

What depends on a machine is asked of a `Host`: this one, this one before a start (which runs
interpreters and reads models' folders, and takes a moment), or one that cannot be asked.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from disagg_cluster.config import NodeConfig, Worker
from disagg_cluster.config.layout import assume
from disagg_cluster.config.problems import Finding, YamlPath, config_error
from disagg_cluster.config.values import is_model_path
from disagg_cluster.host.files.named_paths import why_no_folder
from disagg_cluster.host.processes.interpreter import lacks_module
from disagg_cluster.launch.command import child_environment
from disagg_cluster.nodefile.checks import check
from disagg_cluster.nodefile.draft import Host, understand
from disagg_cluster.nodefile.yaml_positions import YamlDocument, read_yaml, read_yaml_file
from disagg_exporter.devices.simulated import SimDevices
from disagg_exporter.devices.source import DeviceKind
from disagg_exporter.model import Device

_MODULES = {"vllm": "vllm", "sglang": "sglang"}
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def _is_installed(package: str) -> bool:
    # A package within a missing one raises.
    folders = package.split(".")
    parts = (".".join(folders[:count]) for count in range(1, len(folders) + 1))
    return all(find_spec(part) is not None for part in parts)


THIS_HOST = Host(
    exists=lambda path: Path(path).exists(),
    executable=lambda program: shutil.which(program) is not None,
    why_no_folder=lambda path: why_no_folder(Path(path)),
    installed=_is_installed,
)
"""This machine."""

ELSEWHERE = Host(exists=lambda _path: True, executable=lambda _program: True)
"""A machine that cannot be asked; it is assumed to have all that a file names."""


@dataclass(frozen=True, slots=True)
class NodeFile:
    """A node file as it was read.

    `lines` are the lines of its paths, for problems that only its node can find.
    """

    config: NodeConfig
    lines: Mapping[YamlPath, int]


def read(path: Path, host: Host = THIS_HOST) -> NodeFile:
    """Read a node file; it is read only once, so that a change meanwhile cannot mix versions.

    Raises:
        ConfigError: The file cannot be read, or has problems; all of them are in it.
    """
    document = read_yaml_file(path)
    return NodeFile(_configure(document, str(path), host, path.absolute().parent), document.lines)


def load(path: Path, host: Host = THIS_HOST) -> NodeConfig:
    """Return only the configuration of a node file; raises as `read`."""
    return read(path, host).config


def parse(text: str, source: str, host: Host = THIS_HOST, folder: Path | None = None) -> NodeConfig:
    """Return the configuration in the text of a node file.

    Args:
        text: YAML.
        source: What to call it in the report.
        host: The machine whose folders and programs it names.
        folder: The base of its relative paths; they stay relative if None.

    Raises:
        ConfigError: It has problems; all of them are in the error.
    """
    return _configure(read_yaml(text), source, host, folder)


def from_mapping(mapping: Mapping[str, object], source: str, host: Host = THIS_HOST) -> NodeConfig:
    """Return the configuration of a node file's data; its problems have no lines.

    Raises:
        ConfigError: It has problems; all of them are in the error.
    """
    return _configure(YamlDocument(mapping, {}, ()), source, host)


def expected_devices(config: NodeConfig) -> tuple[Device, ...] | None:
    """Return the node's devices as far as its file states; None for a node without GPUs."""
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


def launching_host() -> Host:
    """Return this machine with the slower checks, of interpreters and models.

    Each interpreter is asked once; only the next such host knows of later installations.
    """
    lacks = cache(_lacks)

    def why_no_engine(worker: Worker) -> str:
        module = _MODULES.get(worker.engine)
        if module is None or not lacks(worker.python, module, worker.env.get("PYTHONPATH")):
            return ""
        return f"{worker.python} has no module {module}"

    return replace(THIS_HOST, why_no_engine=why_no_engine, why_no_model=why_no_model)


def _lacks(python: str, module: str, python_path: str | None) -> bool:
    own = {} if python_path is None else {"PYTHONPATH": python_path}
    return lacks_module(python, module, child_environment(os.environ, own))


def why_no_model(worker: Worker) -> str:
    """Return why an engine cannot read its model; empty if no reason is known."""
    if worker.engine == "standin":
        return ""
    if is_model_path(worker.model):
        return _why_no_folder(Path(worker.model).expanduser())
    environment = {**os.environ, **worker.env}
    if _is_offline(environment) and not _is_cached(worker.model, environment):
        offline = next(name for name in _OFFLINE if _is_on(environment.get(name)))
        return f"{worker.model} is not in the hub's cache here, and {offline} keeps it from loading"
    return ""


def _why_no_folder(path: Path) -> str:
    if not path.is_dir():
        return ""  # a file of weights, or absent, which another check reports
    config = path / "config.json"
    try:
        with config.open("rb") as opened:
            opened.read(1)
    except FileNotFoundError:
        return f"{path} holds no config.json: it is no folder of a model"
    except OSError as error:
        return f"{config} cannot be read by this user: {error.strerror}"
    return ""


def _is_offline(environment: Mapping[str, str]) -> bool:
    return any(_is_on(environment.get(name)) for name in _OFFLINE)


def _is_on(value: str | None) -> bool:
    return (value or "").upper() in ("1", "ON", "YES", "TRUE")


def _is_cached(model: str, environment: Mapping[str, str]) -> bool:
    home = environment.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    cache_dir = Path(environment.get("HF_HUB_CACHE") or Path(home) / "hub")
    return (cache_dir / f"models--{model.replace('/', '--')}").is_dir()
