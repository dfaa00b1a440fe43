"""Receives the ForwardPassMetrics of one engine and passes its steps on to the node's ledger.

Needs the extra `fpm`.
"""

from __future__ import annotations

import logging
import time
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from disagg_cluster.host.tcp_listeners import Owner, owner_of
from disagg_cluster.telemetry.steps.fpm_addresses import listening_sockets
from disagg_cluster.telemetry.steps.step_source import ReceiverHealth
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.model import CollectorStatus, Method
from disagg_exporter.steps.fpm.message import FpmMessage, FpmStream
from disagg_exporter.steps.fpm.subscriber import FpmSocketError, FpmSubscriber

_log = logging.getLogger("disagg_node")

# How often the owner of the publisher is checked, and how soon again if it was another process:
# that check scans all processes of the host.
CHECK_SECONDS = 1.0
RETRY_SECONDS = 10.0

# A publisher sends a sign of life each second. One that is silent for this long is reconnected: ZMQ
# permanently disconnects a peer that sends too large a message.
SILENT_SECONDS = 10.0


@dataclass(slots=True)
class _Rank:
    """One publisher: the listening sockets by which it was believed, and its stream."""

    address: str
    stream: FpmStream
    subscriber: FpmSubscriber
    believed: frozenset[int] = frozenset()
    owner: Owner = Owner.NOBODY
    again_ns: int = 0
    received_ns: int = 0


class FpmFeed:
    """The publishers of one engine process, one for each data-parallel rank.

    A publisher is subscribed to only while the sockets that listen at its address are held by the
    engine's own processes; that is checked once a second.

    Args:
        engine: Our name for it.
        addresses: Those of its publishers, by rank: see `fpm_addresses`.
        ledger, capacity_model: Where the steps go.
        leader: The root of the engine's own process tree.
        members: All its processes, the likeliest first.
        attributed: Whether the engine is attributed by these steps; if not, they are dropped.
        kv_cache_tokens: The capacity of its KV cache, if known.
        sockets, clock_ns: Seams.
    """

    def __init__(
        self,
        engine: str,
        addresses: Sequence[str],
        ledger: Ledger,
        capacity_model: CapacityModel,
        leader: int,
        members: Callable[[], Iterable[int]],
        *,
        attributed: Callable[[], bool] = lambda: True,
        kv_cache_tokens: Callable[[], float | None] = lambda: None,
        silent_seconds: float = SILENT_SECONDS,
        sockets: Callable[[str], frozenset[int]] = listening_sockets,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.received_ns: int | None = None
        self._engine = engine
        self._ledger = ledger
        self._capacity_model = capacity_model
        self._members = members
        self._attributed = attributed
        self._kv_cache_tokens = kv_cache_tokens
        self._silent_ns = round(silent_seconds * 1e9)
        self._sockets = sockets
        self._clock_ns = clock_ns
        self._timer: TimerHandle | None = None
        self._health = ReceiverHealth(f"fpm:{engine}", _log)
        self._ranks = [
            _Rank(
                address,
                FpmStream(engine, leader, rank),
                FpmSubscriber(address, partial(self._receive, rank), clock_ns=clock_ns),
            )
            for rank, address in enumerate(addresses)
        ]

    def open(self, loop: AbstractEventLoop) -> None:
        """Subscribe from now on, whenever there is a publisher that is the engine's own."""
        self._check(loop)

    def close(self) -> None:
        """Disconnect. Delivers nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for rank in self._ranks:
            rank.subscriber.close()

    def last_received(self) -> Mapping[Method, int]:
        """Return when a message was last received."""
        return {} if self.received_ns is None else {Method.FPM: self.received_ns}

    def drain(self) -> None:
        """Ingest what has arrived: called before the engine's death is accounted."""
        for rank in self._ranks:
            rank.subscriber.drain()

    @property
    def lost(self) -> int:
        """Lost messages of its present process, by the gaps in their sequence numbers."""
        return sum(rank.stream.lost for rank in self._ranks)

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Return the collector `fpm:<engine>`."""
        ok = all(rank.subscriber.is_open for rank in self._ranks) and self.received_ns is not None
        return self._health.collectors(connected=ok)

    def _check(self, loop: AbstractEventLoop) -> None:
        self._timer = loop.call_later(CHECK_SECONDS, self._check, loop)
        with self._health.round():
            for rank in self._ranks:
                self._check_rank(rank, loop)

    def _check_rank(self, rank: _Rank, loop: AbstractEventLoop) -> None:
        try:
            sockets = self._sockets(rank.address)
        except OSError:
            sockets = frozenset()
        now_ns = self._clock_ns()
        # The same sockets were believed before, and are still the engine's.
        if sockets and sockets == rank.believed and now_ns - rank.received_ns < self._silent_ns:
            return
        rank.subscriber.close()
        rank.believed = frozenset()
        if now_ns < rank.again_ns:
            return
        owner = owner_of(sockets, self._members())
        if owner is not rank.owner and owner in (Owner.OTHER, Owner.UNKNOWN):
            _log.warning("%s: not its own process publishes at %s", self._engine, rank.address)
        rank.owner = owner
        if owner is not Owner.OURS:
            pause_seconds = 0.0 if owner is Owner.NOBODY else RETRY_SECONDS
            rank.again_ns = now_ns + round(pause_seconds * 1e9)
            return
        try:
            rank.subscriber.open(loop)
        except FpmSocketError as error:
            _log.warning("%s: %s", self._engine, error)
            rank.again_ns = now_ns + round(RETRY_SECONDS * 1e9)
        else:
            rank.believed, rank.received_ns = sockets, now_ns

    def _receive(self, number: int, sequence: int, message: FpmMessage, t_ns: int) -> None:
        with self._health.guard():
            self._ingest(number, sequence, message, t_ns)

    def _ingest(self, number: int, sequence: int, message: FpmMessage, t_ns: int) -> None:
        self._health.receive()
        self.received_ns = t_ns
        self._ranks[number].received_ns = t_ns
        stream = self._ranks[number].stream
        step = stream.ingest(sequence, message, t_ns, self._kv_cache_tokens())
        if step is not None and self._attributed():
            now_ns = self._clock_ns()
            if stream.is_heartbeat:
                self._ledger.heartbeat(stream.key, step, overlapped=False, now_ns=now_ns)
            else:
                self._ledger.step(stream.key, step, now_ns=now_ns)
            if message.idle:
                self._capacity_model.heartbeat(stream.key, step)
            else:
                self._capacity_model.step(stream.key, step, overlapped=False)
