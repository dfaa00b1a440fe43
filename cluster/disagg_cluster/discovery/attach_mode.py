"""Attach mode of a daemon: its finders, what they found, and the watch over both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from disagg_cluster.discovery.observations.types import MAX_ENGINES, EngineNames, FoundEngine
from disagg_cluster.discovery.pod_steps.sockets import DeliverSteps
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.telemetry.launched_engines import KnownPeer
from disagg_cluster.telemetry.pages.engine_tls import EngineTlsServer
from disagg_cluster.telemetry.pages.page_scraper import PageScraper
from disagg_cluster.telemetry.source_selection import SourceCandidate
from disagg_cluster.telemetry.steps.step_source import StepSources
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.model import CollectorStatus, Device, DeviceReading, EnginePage, EngineStatus
from disagg_exporter.roles.evidence.page import telling_lines
from disagg_exporter.roles.evidence.types import Verdict


class AttachMode:
    """Discovers the engines of a node that we did not start, and follows them.

    Args:
        attach: Where they are looked for.
        folder: Where engines send their steps.
        ledger, capacity_model: The accounting.
        devices: The devices of this node, the pseudo-devices of our own engines among them.
        readings: The last readings of the devices.
        ours: The processes of the engines that we started.
        taken: Names of our own engines.
        kubernetes: Makes the Kubernetes side of it, given the receiver of steps from pods.
        interval_seconds: From one look to the next.
        proc: Seam.
    """

    def __init__(
        self,
        attach: Attach,
        folder: RunFolder,
        ledger: Ledger,
        capacity_model: CapacityModel,
        devices: Sequence[Device],
        readings: Callable[[], Sequence[DeviceReading]],
        *,
        ours: Callable[[], Iterable[int]] = tuple,
        taken: Sequence[str] = (),
        kubernetes: Callable[[DeliverSteps], KubernetesDiscovery | None] = lambda _deliver: None,
        interval_seconds: float = INTERVAL_SECONDS,
        proc: Path = Path("/proc"),
    ) -> None:
        gpus = [device for device in devices if not device.is_pseudo]
        self._steps = AttachedSteps(folder, ledger, capacity_model, self._engines, self._drain_pod)
        self._pages: PageScraper | None = None
        self._fpm = AttachedFpm(ledger, capacity_model, self._engines, self._steps, self._page)
        self._sources = StepSources(self._steps, self._fpm)
        self._attached = AttachedEngines(
            ledger,
            gpus,
            self._sources,
            registering=attach.dynamo_files is not None,
            tls=attach.tls,
            first_index=len(devices),
        )
        self.names = EngineNames(taken)
        self._ours = ours
        self._interval_seconds = interval_seconds
        self._kept: dict[str, tuple[float, tuple[str, ...]]] = {}
        self._loop: DiscoveryLoop | None = None
        self._kubernetes = kubernetes(self._steps.receive_from_pod)
        finders: list[EngineFinder] = [ListedFinder(attach.endpoints, gpus)]
        if self._kubernetes is not None:
            kube = self._kubernetes
            finders.append(PodFinder(kube.pods, kube.holders, gpus, kube.lost))
        if attach.processes:
            finders.append(ProcessFinder(readings, gpus, ours, proc=proc))
        if attach.dynamo_files:
            finders.append(DynamoFinder(Path(attach.dynamo_files)))
        self._finders = finders

    @property
    def urls(self) -> Mapping[str, str]:
        """The roots of the engines' servers now."""
        return self._attached.urls

    @property
    def devices(self) -> tuple[Device, ...]:
        """The pseudo-devices of the engines."""
        return self._attached.devices

    def tls_server(self, name: str) -> EngineTlsServer:
        """What is known of the TLS that an engine serves."""
        return self._attached.tls_server(name)

    def page_path(self, name: str) -> str:
        """Where on its server an engine's metrics page is."""
        return self._attached.page_path(name)

    def keep_lines(self, name: str, page: bytes) -> tuple[str, ...]:
        """The lines of an engine's page that its role may be known from; looked for at times."""
        if not self._attached.has_url(name):
            return ()
        if len(self._kept) > 2 * MAX_ENGINES:
            self._kept.clear()  # mostly of engines that have gone
        now = time.monotonic()
        since, lines = self._kept.get(name, (0.0, ()))
        if now - since >= self._interval_seconds * 0.75:
            since, lines = now, telling_lines(page)
            self._kept[name] = since, lines
        return lines

    def statuses(self, pages: PageScraper) -> tuple[EngineStatus, ...]:
        """Return every engine as the page shows it."""
        return self._attached.statuses(pages)

    def source_candidates(self, pages: PageScraper) -> tuple[SourceCandidate, ...]:
        """Return every engine as the choice of its source sees it."""
        return self._attached.source_candidates(pages)

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """How the finders fare, and how steps are received."""
        finders = self._loop.collectors() if self._loop else ()
        kubernetes = self._kubernetes.collectors() if self._kubernetes else ()
        return (*finders, *kubernetes, *self._sources.collectors())

    def verdict(self, name: str) -> Verdict:
        """What an engine is for, and why."""
        return self._attached.verdict(name)

    @property
    def left_out(self) -> int:
        """How many engines were found beyond those that are attached to."""
        return self._attached.left_out

    def lost(self) -> tuple[str, ...]:
        """What cannot be seen, and why."""
        finders = self._loop.lost() if self._loop else ()
        return tuple(filter(None, (*finders, self._attached.lost)))

    async def run(self, pages: PageScraper, peers: Callable[[], Iterable[KnownPeer]]) -> None:
        """Look for engines until cancelled."""
        self._pages = pages
        self._loop = DiscoveryLoop(
            self._finders,
            self._attached,
            self.names,
            pages,
            peers,
            ours=self._ours,
            interval_seconds=self._interval_seconds,
        )
        async with asyncio.TaskGroup() as group:
            if self._kubernetes is not None:
                group.create_task(self._kubernetes.run(self._following_pods))
                await self._kubernetes.first_list()
            group.create_task(self._fpm.run())
            self._steps.open()
            try:
                await self._loop.run()
            finally:
                self._sources.close()

    def _engines(self) -> tuple[FoundEngine, ...]:
        return self._attached.engines()

    def _following_pods(self) -> frozenset[str]:
        return frozenset(engine.pod_uid for engine in self._engines() if engine.follows)

    def _page(self, name: str) -> EnginePage | None:
        return self._pages.page(name) if self._pages else None

    def _drain_pod(self, uid: str) -> None:
        if self._kubernetes is not None:
            self._kubernetes.drain(uid)
