"""Node files for tests, and a machine on which everything they name exists."""

from __future__ import annotations

from typing import Any

from disagg_cluster.config import NodeConfig
from disagg_cluster.nodefile import ELSEWHERE, from_mapping
from disagg_cluster.nodefile.draft import Host
from disagg_exporter.model import Device

HAS_ALL = ELSEWHERE
HAS_NOTHING = Host(exists=lambda path: False, executable=lambda program: False)


def worker(name: str = "mixed-0", **keys: Any) -> dict[str, Any]:
    """Return a worker as read from YAML; GPUs and ports are up to the caller's keys."""
    return {"name": name, "role": "mixed", "model": "org/model", "port": 8100, "gpus": 1, **keys}


def node(*workers: dict[str, Any], **keys: Any) -> NodeConfig:
    """Return the configuration of a node with these workers."""
    return from_mapping({"node": "n", **keys, "workers": list(workers)}, "test", HAS_ALL)


def gpu(index: int, uuid: str = "") -> Device:
    """Return a GPU as NVML would list it."""
    return Device(uuid or f"GPU-{index:04d}", index, "Test GPU", f"nvidia{index}")
