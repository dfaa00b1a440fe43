"""All engines of the node, launched and attached, and the steps sockets of the launched ones."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial

from disagg_cluster.config import NodeConfig
from disagg_cluster.config.layout import Layout
from disagg_cluster.config.router import ROUTER_NAME
from disagg_cluster.discovery.attach_mode import AttachMode
from disagg_cluster.discovery.kubernetes_discovery import kubernetes_of
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.supervisor.worker_spec import WorkerSpec
from disagg_cluster.telemetry.device_watch import DeviceWatch
from disagg_cluster.telemetry.launched_engines import LaunchedEngines
from disagg_cluster.telemetry.pages.engine_tls import EngineTlsClients, EngineTlsServer
from disagg_cluster.telemetry.pages.page_scraper import PageScraper
from disagg_cluster.telemetry.source_selection import SourceCandidate
from disagg_cluster.telemetry.steps.step_feed import StepFeed
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.model import CollectorStatus, Device, EngineStatus


class EngineRegistry:
    """Both sorts of engines as one, for those who do not care who started them.

    Args:
        launched: The workers' engines.
        found: The engines that somebody else started; None where they are not looked for.
        interval_seconds: From one look at an engine's metrics page to the next.
    """

    def __init__(
        self, launched: LaunchedEngines, found: AttachMode | None, interval_seconds: float
    ) -> None:
        self._launched = launched
        self._found = found
        self.pages = self._page_scraper(interval_seconds)
        """The metrics pages of all engines."""

    @property
    def names(self) -> Mapping[str, str]:
        """What the found engines are called, by what they are recognised by."""
        return self._found.names.by_key if self._found else {}

    def resume(self, names: Mapping[str, str]) -> None:
        """Call found engines what the daemon before called them."""
        if self._found:
            self._found.names.resume(names)

    def background(self) -> Mapping[str, Callable[[], Coroutine[None, None, None]]]:
        """What has to run all the time, by name: the page scraper, and discovery."""
        if self._found is None:
            return {"pages": self.pages.run}
        discover = partial(self._found.run, self.pages, self._launched.peers)
        return {"pages": self.pages.run, "discovery": discover}

    def devices(self) -> tuple[Device, ...]:
        """The pseudo-devices of engines that were found."""
        return self._found.devices if self._found else ()

    @property
    def left_out(self) -> int | None:
        """How many engines were found beyond those that are attached to; None without attaching."""
        return self._found.left_out if self._found else None

    def statuses(self) -> tuple[EngineStatus, ...]:
        """Return every engine as the page shows it."""
        found = self._found.statuses(self.pages) if self._found else ()
        return (*self._launched.statuses(self.pages), *found)

    def source_candidates(self) -> tuple[SourceCandidate, ...]:
        """Return every engine as the choice of its source sees it."""
        found = self._found.source_candidates(self.pages) if self._found else ()
        return (*self._launched.source_candidates(self.pages), *found)

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Return how the engines are heard, looked for and read."""
        found = self._found.collectors() if self._found else ()
        return (*self._launched.collectors(), *found, *self.pages.statuses())

    def _page_scraper(self, interval_seconds: float) -> PageScraper:
        launched, found = self._launched, self._found
        if found is None:
            tls_of = EngineTlsClients(launched.tls_server).client
            return PageScraper(
                lambda: launched.urls, interval_seconds, launched.answers, tls_of=tls_of
            )

        def tls_server(name: str) -> EngineTlsServer:
            return (launched if name in launched.urls else found).tls_server(name)

        return PageScraper(
            lambda: {**launched.urls, **found.urls},
            interval_seconds,
            lambda name: launched.answers(name) if name in launched.urls else True,
            path_of=found.page_path,
            keep_lines=found.keep_lines,
            tls_of=EngineTlsClients(tls_server).client,
        )


def attaching(
    config: NodeConfig,
    layout: Layout,
    folder: RunFolder,
    ledger: Ledger,
    capacity_model: CapacityModel,
    devices: DeviceWatch,
    engines: LaunchedEngines,
) -> AttachMode | None:
    """What finds the engines of a node that we did not start; None where the file has no `attach`.

    Args:
        config: The node file.
        layout: The devices of the node.
        folder: Where engines tell their steps.
        ledger: Told of every change.
        capacity_model: Told of every step.
        devices: Their readings, with the processes on them.
        engines: Our own engines, which are never found.
    """
    if config.attach is None:
        return None
    return AttachMode(
        config.attach,
        folder,
        ledger,
        capacity_model,
        layout.devices,
        lambda: devices.look.readings(time.monotonic_ns()),
        ours=engines.pids,
        taken=(ROUTER_NAME, *engines.urls),
        kubernetes=kubernetes_of(config.attach, layout.devices, folder.pods),
    )


@contextlib.contextmanager
def receiving_steps(
    specs: Iterable[WorkerSpec],
    engines: LaunchedEngines,
    folder: RunFolder,
    ledger: Ledger,
    capacity_model: CapacityModel,
) -> Iterator[None]:
    """Listen for the steps of every worker until the block ends; in a running loop.

    Raises:
        StepsSocketError: A socket cannot be made.
    """
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        for spec in specs:
            name = spec.name
            pid, environment = partial(engines.pid, name), spec.command.env
            feed = StepFeed(name, folder.socket(name), ledger, capacity_model, pid, environment)
            feed.open(loop)
            stack.callback(feed.close)
            engines.set_feed(name, feed)
        yield
