"""Steps of attached engines that publish them as ForwardPassMetrics."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from disagg_cluster.discovery.observations.types import FoundEngine, Leader
from disagg_cluster.telemetry.steps.fpm_addresses import of_dynamo, of_sglang
from disagg_cluster.telemetry.steps.step_source import EngineFeeds, StepSource
from disagg_exporter.accounting import Ledger
from disagg_exporter.attribution.pages.sources import PATIENCE_NS
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.collectors import CollectorHealth
from disagg_exporter.model import CollectorStatus, EnginePage, Method

if TYPE_CHECKING:
    from disagg_cluster.telemetry.steps.fpm_feed import FpmFeed

FOLLOW_SECONDS = 1.0
_MOST_RANKS = 64

_log = logging.getLogger("disagg_node")


class AttachedFpm(EngineFeeds["FpmFeed"]):
    """Subscribes to the FPM publishers of the current engines, by how each was started.

    Args:
        ledger, capacity_model: Receive the steps.
        engines: The current engines.
        steps: Steps reported by our plugin, which is preferred: both would count twice.
        page: An engine's last page.
        clock_ns: CLOCK_MONOTONIC.
    """

    def __init__(
        self,
        ledger: Ledger,
        capacity_model: CapacityModel,
        engines: Callable[[], tuple[FoundEngine, ...]],
        steps: StepSource,
        page: Callable[[str], EnginePage | None],
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__()
        self._ledger = ledger
        self._capacity_model = capacity_model
        self._engines = engines
        self._steps = steps
        self._page = page
        self._clock_ns = clock_ns
        self._leaders: dict[str, Leader] = {}
        self._failed: dict[str, CollectorHealth] = {}
        self._following = CollectorHealth("task:fpm", _log)
        self._warned = False

    async def run(self) -> None:
        """Follow the engines until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                with self._following.round():
                    self.follow(loop)
                await asyncio.sleep(FOLLOW_SECONDS)
        finally:
            self.close()

    def follow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Subscribe to engines that are new, or restarted, since the last round."""
        for engine in self._engines():
            if engine.name in self.feeds:
                # A listed engine, or a pod's, stays present between two of its processes.
                if engine.leader in (None, self._leaders[engine.name]):
                    continue
                super().forget(engine.name)
            try:
                self._listen(engine, loop)
            except Exception as error:  # noqa: BLE001 - what anybody can start must not end us
                self._fail(engine.name, error)
            else:
                if failed := self._failed.pop(engine.name, None):
                    failed.succeed()

    def forget(self, name: str) -> None:
        """Close the feed of an engine that no longer exists."""
        self._failed.pop(name, None)
        self._leaders.pop(name, None)
        super().forget(name)

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Return the status of each publisher's feed."""
        every = [*super().collectors(), *(health.status() for health in self._failed.values())]
        if self._following.has_failed:
            every.append(self._following.status())
        return tuple(every)

    def _listen(self, engine: FoundEngine, loop: asyncio.AbstractEventLoop) -> None:
        addresses = addresses_of(engine)
        if engine.leader is not None and addresses and self._can_listen(engine.name):
            feed = self._feed(engine.name, engine.leader.pid, addresses)
            self.feeds[engine.name], self._leaders[engine.name] = feed, engine.leader
            feed.open(loop)

    def _fail(self, name: str, error: Exception) -> None:
        """Close its feed after an unexpected error; the next round tries again."""
        super().forget(name)
        if name not in self._failed:
            self._failed[name] = CollectorHealth(f"fpm:{name}", _log)
        self._failed[name].fail(error)

    def _feed(self, name: str, leader: int, addresses: Sequence[str]) -> FpmFeed:
        from disagg_cluster.telemetry.steps.fpm_feed import FpmFeed

        return FpmFeed(
            name,
            addresses,
            self._ledger,
            self._capacity_model,
            leader,
            lambda: self._pids(name),
            attributed=lambda: not self._steps_are_received(name),
            kv_cache_tokens=lambda: self._kv_cache_tokens(name),
            clock_ns=self._clock_ns,
        )

    def _can_listen(self, name: str) -> bool:
        if all(map(importlib.util.find_spec, ("zmq", "msgspec"))):
            return True
        if not self._warned:
            self._warned = True
            _log.warning("%s publishes its steps; to receive them, install the extra fpm", name)
        return False

    def _pids(self, name: str) -> Iterable[int]:
        pids = (engine.pids for engine in self._engines() if engine.name == name)
        return sorted(next(pids, ()))

    def _steps_are_received(self, name: str) -> bool:
        received_ns = self._steps.last_received(name).get(Method.STEPS)
        return received_ns is not None and self._clock_ns() - received_ns <= PATIENCE_NS

    def _kv_cache_tokens(self, name: str) -> float | None:
        page = self._page(name)
        return None if page is None else page.kv_cache_tokens


def addresses_of(engine: FoundEngine) -> tuple[str, ...]:
    """Return the addresses at which an engine publishes steps, by its environment and arguments.

    Empty for an engine whose processes are not visible, as the publisher could not be attributed.
    Also empty for a follower, as it is unknown whether its ranks publish at all.
    """
    if engine.leader is None or engine.follows:
        return ()
    argv = engine.markers.argv
    if engine.kind == "sglang":
        name = option(argv, "--forward-pass-metrics-ipc-name")
        ranks = _count(option(argv, "--dp-size") or option(argv, "--data-parallel-size"))
        return of_sglang({"forward_pass_metrics_ipc_name": name}, ranks)
    return of_dynamo(engine.markers.env, _count(option(argv, "--data-parallel-size")))


def option(argv: Sequence[str], name: str) -> str | None:
    """Return the value of an argument, in either spelling."""
    for position, argument in enumerate(argv):
        if argument.startswith(f"{name}="):
            return argument[len(name) + 1 :]
        if argument == name and position + 1 < len(argv):
            return argv[position + 1]
    return None


def _count(text: str | None) -> int:
    known = text is not None and text.isascii() and text.isdecimal() and len(text) < 4
    return min(int(text or 1), _MOST_RANKS) if known else 1
