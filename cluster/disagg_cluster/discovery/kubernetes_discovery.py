"""The Kubernetes side of attach mode: pods, holders of GPUs, and the steps sockets of pods."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from disagg_cluster.config import Attach
from disagg_cluster.discovery.kubernetes.api_server import ApiServer, in_cluster
from disagg_cluster.discovery.kubernetes.pod_watch import COLLECTOR as POD_WATCH
from disagg_cluster.discovery.kubernetes.pod_watch import PodWatch
from disagg_cluster.discovery.kubernetes.pods import GpuHolder, Pod
from disagg_cluster.discovery.pod_steps.sockets import PodStepSockets
from disagg_exporter.collectors import CollectorHealth, keep_running
from disagg_exporter.devices.pod_resources.client import COLLECTOR as PODRESOURCES
from disagg_exporter.devices.pod_resources.client import KUBELET_SOCKET, PodResources
from disagg_exporter.model import CollectorStatus, Device

NODE_NAME = "NODE_NAME"
"""The variable with the Kubernetes name of the pod's node; the chart sets it."""

KEEP_SECONDS = 2.0
_log = logging.getLogger("disagg_node")
FIRST_LIST_SECONDS = 3.0


class KubernetesDiscovery:
    """What a node's daemon knows from the API server and the kubelet, as far as each is available.

    Args:
        server: The API server; None outside a cluster.
        node: The node's name there; empty if it is not known.
        kubelet: The kubelet's podresources socket; None on a node without GPUs.
        steps_root: The folder of the pods' steps sockets.
    """

    def __init__(
        self,
        server: ApiServer | None,
        node: str,
        kubelet: Path | None,
        steps_root: Path,
    ) -> None:
        self._watch = PodWatch(server, node) if server is not None and node else None
        self._resources = PodResources(kubelet) if kubelet is not None else None
        self.steps = PodStepSockets(steps_root)
        self._tasks = tuple(
            CollectorHealth(f"task:{name}", _log) for name in (POD_WATCH, PODRESOURCES)
        )
        self._following = CollectorHealth("task:pod_steps", _log)
        self._why = ""
        if server is None:
            self._why = "not in a cluster: pods, their labels and namespaces are not known"
        elif not node:
            self._why = f"{NODE_NAME} is not set: the pods of this node cannot be asked for"

    def pods(self) -> tuple[Pod, ...]:
        """Return the pods of this node, as far as they are known."""
        return self._watch.pods() if self._watch else ()

    def holders(self) -> tuple[GpuHolder, ...]:
        """Return which container holds which GPU, as far as it is known."""
        return self._resources.holders() if self._resources else ()

    def lost(self) -> Iterable[str]:
        """Yield why either is unavailable."""
        yield self._why
        if self._watch is not None:
            yield self._watch.why()
        if self._resources is not None:
            yield self._resources.why()

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Return the status of each part except `steps`, which is one of the step sources."""
        parts = (self._watch, self._resources)
        status = tuple(part.status() for part in parts if part is not None)
        own = (health.status() for health in (*self._tasks, self._following) if health.has_failed)
        return (*status, *own)

    async def first_list(self) -> None:
        """Wait briefly for the pods: an engine is named after its pod, and names are permanent."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LIST_SECONDS):
                while self._watch is not None and not self._watch.listed:
                    await asyncio.sleep(0.05)

    async def run(self, followers: Callable[[], Collection[str]] = tuple) -> None:
        """Follow until cancelled; `followers` are UIDs of pods that rightly report no steps."""
        try:
            async with asyncio.TaskGroup() as group:
                for part, health in zip((self._watch, self._resources), self._tasks, strict=True):
                    if part is not None:
                        group.create_task(keep_running(part.run, health))
                while True:
                    with self._following.round():
                        self._update_sockets(followers())
                    await asyncio.sleep(KEEP_SECONDS)
        finally:
            self.steps.close()

    def _update_sockets(self, followers: Collection[str]) -> None:
        if self._watch is None:
            return
        is_current = self._watch.listed and not self._watch.why()
        loop = asyncio.get_running_loop()
        self.steps.keep(self._watch.pods(), loop, is_current=is_current, followers=followers)


def kubernetes_of(
    attach: Attach,
    devices: Sequence[Device],
    steps_root: Path,
) -> KubernetesDiscovery | None:
    """Return the Kubernetes side of attach mode on this node; None where there is none.

    Args:
        attach: Whether it is enabled; `auto` looks for a service account or a kubelet's socket.
        devices: The devices of this node.
        steps_root: The folder of the pods' steps sockets.
    """
    server = in_cluster(os.environ)
    wanted = server is not None or KUBELET_SOCKET.parent.is_dir() or attach.kubernetes == "always"
    if attach.kubernetes == "never" or not wanted:
        return None
    socket = KUBELET_SOCKET if any(not device.is_pseudo for device in devices) else None
    return KubernetesDiscovery(server, os.environ.get(NODE_NAME, ""), socket, steps_root)
