"""Attach mode of a daemon: its finders, the engines found, and their monitoring."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from disagg_cluster.config import Attach
from disagg_cluster.discovery.attached.attached_fpm import AttachedFpm
from disagg_cluster.discovery.attached.attached_steps import AttachedSteps
from disagg_cluster.discovery.attached.engines import AttachedEngines
from disagg_cluster.discovery.discovery_loop import INTERVAL_SECONDS, DiscoveryLoop, EngineFinder
from disagg_cluster.discovery.finders.declared import DynamoFinder, ListedFinder
from disagg_cluster.discovery.finders.pods import PodFinder
from disagg_cluster.discovery.finders.processes import ProcessFinder
from disagg_cluster.discovery.kubernetes_discovery import KubernetesDiscovery
from disagg_cluster.discovery.observations.types import EngineNames
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.telemetry.engine_registry import EngineRegistry
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.model import CollectorStatus, Device, DeviceReading


class AttachMode:
    """Discovers the engines of a node that we did not start, and follows them.

    Args:
        attach: Where to look for them.
        registry: Receives their records; it also holds the engines that we started.
        names: Their names.
        folder: Where engines send their steps.
        ledger, capacity_model: The accounting.
        devices: The devices of this node, including pseudo-devices of our own engines.
        readings: The last readings of the devices.
        kubernetes: The Kubernetes side of it; None where there is none.
        interval_seconds: Interval between scans.
        proc: Replaceable for tests.
    """

    def __init__(
        self,
        attach: Attach,
        registry: EngineRegistry,
        names: EngineNames,
        folder: RunFolder,
        ledger: Ledger,
        capacity_model: CapacityModel,
        devices: Sequence[Device],
        readings: Callable[[], Sequence[DeviceReading]],
        kubernetes: KubernetesDiscovery | None = None,
        *,
        interval_seconds: float = INTERVAL_SECONDS,
        proc: Path = Path("/proc"),
    ) -> None:
        gpus = [device for device in devices if not device.is_pseudo]
        self.attached = attached = AttachedEngines(
            registry,
            ledger,
            gpus,
            registering=attach.dynamo_files is not None,
            tls=attach.tls,
            first_index=len(devices),
        )
        self._steps = AttachedSteps(folder, ledger, capacity_model, attached.engines)
        pages = registry.pages
        self._fpm = AttachedFpm(ledger, capacity_model, attached.engines, self._steps, pages.page)
        self._kubernetes = kubernetes
        finders: list[EngineFinder] = [ListedFinder(attach.endpoints, gpus)]
        if kubernetes is not None:
            kubernetes.steps.deliver = self._steps.receive_from_pod
            registry.sources.add(kubernetes.steps)
            finders.append(PodFinder(kubernetes.pods, kubernetes.holders, gpus, kubernetes.lost))
        registry.sources.add(self._steps, self._fpm)
        if attach.processes:
            finders.append(ProcessFinder(readings, gpus, registry.launched_pids, proc=proc))
        if attach.dynamo_files:
            finders.append(DynamoFinder(Path(attach.dynamo_files)))
        self._loop = DiscoveryLoop(
            finders, attached, names, registry, interval_seconds=interval_seconds
        )

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Return the status of the finders."""
        kubernetes = self._kubernetes.collectors() if self._kubernetes else ()
        return (*self._loop.collectors(), *kubernetes)

    def lost(self) -> tuple[str, ...]:
        """Return what cannot be observed, and why."""
        return tuple(filter(None, (*self._loop.lost(), self.attached.lost)))

    async def run(self) -> None:
        """Scan for engines until cancelled."""
        async with asyncio.TaskGroup() as group:
            if self._kubernetes is not None:
                group.create_task(self._kubernetes.run(self._following_pods))
                await self._kubernetes.first_list()
            group.create_task(self._fpm.run())
            self._steps.open()
            try:
                await self._loop.run()
            finally:
                self._steps.close()

    def _following_pods(self) -> frozenset[str]:
        return frozenset(engine.pod_uid for engine in self.attached.engines() if engine.follows)
