"""What a node file says, once it is understood: frozen, with units in the names.

The description of each field completes the sentence "expected …": it is what a person is told
whose file says something else, and what the JSON schema says.
"""

from disagg_cluster.config.attach import Attach, ListedEngine
from disagg_cluster.config.bridges import Bridges
from disagg_cluster.config.failure_hook import FailureHook
from disagg_cluster.config.node import (
    Dcgm,
    GpuPrice,
    Intervals,
    Latency,
    Listen,
    NodeConfig,
)
from disagg_cluster.config.patience import Deadlines, HealthProbes, Restart
from disagg_cluster.config.router import Router
from disagg_cluster.config.section import Section
from disagg_cluster.config.tls import EngineTls
from disagg_cluster.config.worker import KvTransfer, Worker

__all__ = [
    "Attach",
    "Bridges",
    "Dcgm",
    "Deadlines",
    "EngineTls",
    "FailureHook",
    "GpuPrice",
    "HealthProbes",
    "Intervals",
    "KvTransfer",
    "Latency",
    "ListedEngine",
    "Listen",
    "NodeConfig",
    "Restart",
    "Router",
    "Section",
    "Worker",
]
