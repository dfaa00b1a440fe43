"""Receives the steps of one worker's engine and passes them on to the node's ledger."""

from __future__ import annotations

import logging
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping
from pathlib import Path

from disagg_cluster.telemetry.steps.step_source import ReceiverHealth
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import CollectorStatus, Method
from disagg_exporter.steps.batched_poller import RestSeconds
from disagg_exporter.steps.listener import StepsListener, rest_a_little
from disagg_exporter.steps.local_sockets import in_session_of
from disagg_exporter.steps.messages import ControlMessage, StepEvent, StepRecords
from disagg_exporter.steps.plugin_silence import SilenceFacts, explain_silence

_log = logging.getLogger("disagg_node")


class StepFeed:
    """One worker's socket, open for the life of the daemon, across all the worker's processes.

    `received_ns` is when something was last received from its present process, `worked_ns` the time
    of its last step that did work; None before. Neither a heartbeat nor a filler step of data
    parallelism is work.

    Args:
        engine: The worker's name.
        path: Where its socket is.
        ledger: Receives the steps.
        capacity_model: Receives the steps, too.
        pid: The present process of the worker, the leader of its session; None without one.
        environment: The variables that the engine was started with.
        rest_seconds: How long sent records may wait now.
    """

    def __init__(
        self,
        engine: str,
        path: Path,
        ledger: Ledger,
        capacity_model: CapacityModel,
        pid: Callable[[], int | None],
        environment: Mapping[str, str],
        *,
        rest_seconds: RestSeconds = rest_a_little,
    ) -> None:
        self._engine = engine
        self._ledger = ledger
        self._capacity_model = capacity_model
        self._pid = pid
        self._environment = environment
        self._health = ReceiverHealth(f"steps:{engine}", _log)
        self._listener = StepsListener(
            path, engine, self._admits, self._receive, rest_seconds=rest_seconds
        )
        self._flags: int | None = None
        self._records_seen = False
        self._refused_before = self._bad_before = 0
        self._silence: str | None = None
        self.received_ns: int | None = None
        self.worked_ns: int | None = None

    def open(self, loop: AbstractEventLoop) -> None:
        """Listen; raises `StepsSocketError`."""
        self._listener.open(loop)

    def close(self) -> None:
        """Disconnect."""
        self._listener.close()

    def last_received(self) -> Mapping[Method, int]:
        """Return when something was last received; empty for a plugin that reports no steps."""
        if self.received_ns is None or self._silence is not None:
            return {}
        return {Method.STEPS: self.received_ns}

    def drain(self) -> None:
        """Ingest what waits in the socket: called before the engine's death is accounted."""
        self._listener.drain()

    def begin(self) -> None:
        """Forget what the previous process reported, and who else tried to report."""
        self._flags = None
        self._records_seen = False
        counts = self._listener.counts
        self._refused_before, self._bad_before = counts.refused, counts.bad_messages
        self.received_ns = self.worked_ns = self._silence = None

    @property
    def simulated(self) -> bool:
        """Whether the engine reports that it is a stand-in."""
        return bool((self._flags or 0) & wire.SIMULATED)

    def check_silence(self, seconds_since_ready: float, tokens_advancing: bool | None) -> None:
        """Log why expected steps do not arrive, when that begins, changes or ends."""
        counts = self._listener.counts
        silence = explain_silence(
            SilenceFacts(
                seconds_since_ready=seconds_since_ready,
                connected=counts.connected > 0,
                hello_flags=self._flags,
                records_seen=self._records_seen,
                vllm_plugins=self._environment.get("VLLM_PLUGINS"),
                tokens_advancing=tokens_advancing,
                refused=counts.refused - self._refused_before,
                bad_messages=counts.bad_messages - self._bad_before,
            )
        )
        if silence != self._silence:
            _log.warning("%s: %s", self._engine, silence or "its steps are received again")
            self._silence = silence

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Return the collector `steps:<engine>`; nothing while it has no process."""
        if self._pid() is None:
            return ()
        connected = self._listener.counts.connected > 0
        return self._health.collectors(connected=connected and self._silence is None)

    def _admits(self, pid: int) -> bool:
        leader = self._pid()
        return leader is not None and in_session_of(leader, pid)

    def _receive(self, event: StepEvent) -> None:
        with self._health.ingesting(event):
            self._ingest(event)

    def _ingest(self, event: StepEvent) -> None:
        if isinstance(event, ControlMessage) and event.step is None:
            return
        now_ns = time.monotonic_ns()
        self._flags = event.flags
        self._health.receive()
        self.received_ns = now_ns
        if isinstance(event, StepRecords):
            self._records_seen = True
            work = event.rows[~event.rows["dummy"]]
            if len(work):
                self.worked_ns = min(int(work["t_ns"][-1]), now_ns)
        ingest_steps(event, self._ledger, self._capacity_model, now_ns)


def ingest_steps(
    event: StepEvent, ledger: Ledger, capacity_model: CapacityModel, now_ns: int
) -> None:
    """Pass the steps that an engine reported on to accounting and capacity."""
    overlapped = bool(event.flags & wire.OVERLAPPED)
    held_totals = bool(event.flags & wire.HELD_TOTALS)
    if isinstance(event, StepRecords):
        ledger.steps(event.key, event.rows, now_ns=now_ns)
        capacity_model.steps(event.key, event.rows, overlapped=overlapped, held_totals=held_totals)
    elif event.step is not None:
        capacity_model.heartbeat(event.key, event.step, event.limits)
        ledger.heartbeat(
            event.key,
            event.step,
            overlapped=overlapped,
            held_totals=held_totals,
            in_flight=event.in_flight,
            now_ns=now_ns,
        )
