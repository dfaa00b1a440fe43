"""A node file's content, once understood: frozen, with units in the names.

The description of each field completes the sentence "expected …": it is shown to a person whose
file states something else, and published in the JSON schema.
"""

from disagg_cluster.config.node import (
    Attach,
    Bridges,
    Dcgm,
    FailureHook,
    Frontend,
    GpuPriceConfig,
    IntervalsConfig,
    Latency,
    LinksConfig,
    ListedEngine,
    Listen,
    NodeConfig,
)
from disagg_cluster.config.restart_policy import Deadlines, HealthProbes, Restart
from disagg_cluster.config.router import Router
from disagg_cluster.config.tls import EngineTls
from disagg_cluster.config.values import Section
from disagg_cluster.config.worker import KvTransfer, Worker

__all__ = [
    "Attach",
    "Bridges",
    "Dcgm",
    "Deadlines",
    "EngineTls",
    "FailureHook",
    "Frontend",
    "GpuPriceConfig",
    "HealthProbes",
    "IntervalsConfig",
    "KvTransfer",
    "Latency",
    "LinksConfig",
    "ListedEngine",
    "Listen",
    "NodeConfig",
    "Restart",
    "Router",
    "Section",
    "Worker",
]
