"""Steps of attached engines that were started with our plugin."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from disagg_cluster.discovery.observations.types import FoundEngine
from disagg_cluster.host.files.private_files import UnsafeDirError, make_inner
from disagg_cluster.host.processes.process_table import parents
from disagg_cluster.host.processes.procfs import start_ticks
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.telemetry.steps.step_feed import ingest_steps
from disagg_cluster.telemetry.steps.step_source import ReceiverHealth
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import CollectorStatus, Method
from disagg_exporter.steps.listener import StepsListener
from disagg_exporter.steps.local_sockets import StepsSocketError
from disagg_exporter.steps.messages import ControlMessage, StepEvent
from disagg_exporter.steps.plugin_silence import WITHOUT_DETAILS

# For all engines of a host that share the socket, together.
MESSAGES_PER_SECOND = 20_000.0
COLLECTOR = "steps:attached"
AGAIN_SECONDS = 5.0
"""Interval between attempts to open a socket that could not be opened."""

_log = logging.getLogger("disagg_node")


class AttachedSteps:
    """Accounts the steps of attached engines under their names.

    Engines that a person starts on this host share one socket: the kernel's peer credentials say
    which process, and so which engine, a connection belongs to.

    Args:
        folder: Where the socket is.
        ledger, capacity_model: Receive the steps.
        engines: The current engines.
    """

    def __init__(
        self,
        folder: RunFolder,
        ledger: Ledger,
        capacity_model: CapacityModel,
        engines: Callable[[], tuple[FoundEngine, ...]],
    ) -> None:
        self._path = folder.attached_socket
        self._ledger = ledger
        self._capacity_model = capacity_model
        self._engines = engines
        self._names: dict[int, str] = {}
        self._last: dict[str, tuple[int, int]] = {}  # when a message came, and its flags
        self._ranks_here: dict[str, int | None] = {}
        self._listener: StepsListener | None = None
        self._again: asyncio.TimerHandle | None = None
        self._complaint = ""
        self._health = ReceiverHealth(COLLECTOR, _log)

    def open(self) -> None:
        """Listen from now on; in a running loop.

        Without the socket the rest still works, and it is tried again: a full disk, for instance,
        is full for a while only.
        """
        loop = asyncio.get_running_loop()
        listener = StepsListener(
            self._path,
            "",
            self._admits,
            self._receive_from_process,
            messages_per_second=MESSAGES_PER_SECOND,
            make_folder=lambda: make_inner(self._path.parent),
        )
        try:
            make_inner(self._path.parent)
            listener.open(loop)
        except (OSError, UnsafeDirError, StepsSocketError) as error:
            listener.close()
            self._again = loop.call_later(AGAIN_SECONDS, self.open)
            if str(error) != self._complaint:
                _log.warning(
                    "attach socket unavailable: no step telemetry from engines started by hand: %s",
                    error,
                )
            self._complaint = str(error)
            return
        if self._complaint:
            _log.info("attach socket available again: %s", self._path)
        self._listener, self._again, self._complaint = listener, None, ""

    def close(self) -> None:
        """Stop listening."""
        if self._again is not None:
            self._again.cancel()
        if self._listener is not None:
            self._listener.close()

    def receive_from_pod(self, uid: str, event: StepEvent) -> None:
        """Ingest what an engine in a pod sent on that pod's socket."""
        name = next((engine.name for engine in self._engines() if engine.pod_uid == uid), None)
        if name is not None:
            with self._health.ingesting(event):
                self._ingest(name, event)

    def last_received(self, name: str) -> Mapping[Method, int]:
        """Return when steps of an engine were last received, if they carry their duration."""
        received_ns, flags = self._last.get(name, (0, wire.NO_DETAILS))
        return {} if flags & wire.NO_DETAILS else {Method.STEPS: received_ns}

    def drain(self, _name: str) -> None:
        """Ingest what waits in the socket, before the end of an engine is accounted."""
        if self._listener is not None:
            self._listener.drain()

    def forget(self, name: str) -> None:
        """Forget an engine that has disappeared; if it returns, its processes connect again.

        A connection that stayed open would belong to no engine for as long as its process lives.
        """
        self._last.pop(name, None)
        self._ranks_here.pop(name, None)
        pids = frozenset(pid for pid, owner in self._names.items() if owner == name)
        self._names = {pid: owner for pid, owner in self._names.items() if owner != name}
        if self._listener is not None:
            self._listener.disconnect(pids)

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Return the status of receiving; nothing while no engine uses the socket."""
        if self._listener is None or not self._names:
            return (CollectorStatus(COLLECTOR, False, 0.0, None),) if self._complaint else ()
        return self._health.collectors(connected=self._listener.counts.connected > 0)

    def _admits(self, pid: int) -> bool:
        """Return whether a process belongs to a found engine; remembers which."""
        above = parents(pid)
        for engine in self._engines():
            leader = engine.leader
            if leader is None or not (pid in engine.pids or leader.pid in above):
                continue
            # A leader that has exited may have left its pid to others. A refused engine is found
            # again soon, and reconnects.
            if start_ticks(leader.pid) == leader.start_ticks:
                self._names[pid] = engine.name
                return True
        return False

    def _receive_from_process(self, event: StepEvent) -> None:
        name = self._names.get(event.key.pid)
        if name is not None:
            self._health.receive()
            with self._health.ingesting(event):
                self._ingest(name, event)

    def _is_here(self, name: str, rank: int) -> bool:
        """Return whether a rank is on this node: a leader also reports its followers'."""
        if name not in self._ranks_here:
            part = next((e.part for e in self._engines() if e.name == name), None)
            self._ranks_here[name] = part.local_ranks if part else None
        ranks_here = self._ranks_here[name]
        return ranks_here is None or rank < ranks_here

    def _ingest(self, name: str, event: StepEvent) -> None:
        if isinstance(event, ControlMessage) and event.step is None:
            return
        if not self._is_here(name, event.key.engine_index):
            return
        now_ns = time.monotonic_ns()
        if name not in self._last and event.flags & wire.NO_DETAILS:
            _log.warning("%s: %s", name, WITHOUT_DETAILS)
        self._last[name] = now_ns, event.flags
        ours = event._replace(key=event.key._replace(engine=name))
        ingest_steps(ours, self._ledger, self._capacity_model, now_ns)
