"""Receives the ForwardPassMetrics of one engine and passes its steps on to the node's ledger.

Needs the extra `fpm`.
"""

from __future__ import annotations

import logging
import time
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from disagg_cluster.host.tcp_listeners import Owner, owner_of
from disagg_cluster.telemetry.steps.fpm_addresses import listening_sockets
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.collectors import CollectorHealth
from disagg_exporter.model import CollectorStatus, Method
from disagg_exporter.steps.fpm.message import FpmMessage, FpmStream
from disagg_exporter.steps.fpm.subscriber import FpmSocketError, FpmSubscriber

_log = logging.getLogger("disagg_node")

# How often it is asked whose the publisher is, and how soon again if it was somebody else's: then
# all processes of the host have been looked at.
CHECK_SECONDS = 1.0
RETRY_SECONDS = 10.0

# A publisher shows a sign of life each second. One that is silent for so long is taken up with
# anew: ZMQ hangs up for good on who sends something too large.
SILENT_SECONDS = 10.0


@dataclass(slots=True)
class _Rank:
    """One publisher: whose listening sockets it was believed by, and its stream."""

    address: str
    stream: FpmStream
    subscriber: FpmSubscriber
    believed: frozenset[int] = frozenset()
    owner: Owner = Owner.NOBODY
    again_ns: int = 0
    received_ns: int = 0


class FpmFeed:
    """The publishers of one engine, one a data-parallel rank, through all its processes.

    A publisher is listened to only while the sockets that listen at its address are held by the
    engine's own processes; that is asked once a second.

    Args:
        engine: Our name of it.
        addresses: Of its publishers, by rank: see `fpm_addresses`.
        ledger, capacity_model: Where the steps go.
        pid: The process above all of the engine's own; None without one.
        members: All its processes, the likeliest first.
        attributed: Whether the engine is attributed by these steps; if not, they are dropped.
        kv_cache_tokens: What its cache can hold, where known.
        sockets, clock_ns, wall: Seams.
    """

    def __init__(
        self,
        engine: str,
        addresses: Sequence[str],
        ledger: Ledger,
        capacity_model: CapacityModel,
        pid: Callable[[], int | None],
        members: Callable[[int], Iterable[int]],
        *,
        attributed: Callable[[], bool] = lambda: True,
        kv_cache_tokens: Callable[[], float | None] = lambda: None,
        silent_seconds: float = SILENT_SECONDS,
        sockets: Callable[[str], frozenset[int]] = listening_sockets,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.received_ns: int | None = None
        self._engine = engine
        self._ledger = ledger
        self._capacity_model = capacity_model
        self._pid = pid
        self._members = members
        self._attributed = attributed
        self._kv_cache_tokens = kv_cache_tokens
        self._silent_ns = round(silent_seconds * 1e9)
        self._sockets = sockets
        self._clock_ns = clock_ns
        self._wall = wall
        self._received_wall: float | None = None
        self._leader: int | None = None
        self._timer: TimerHandle | None = None
        self._health = CollectorHealth(f"fpm:{engine}", _log)
        self._ranks = [
            _Rank(
                address,
                FpmStream(engine, 0, rank),
                FpmSubscriber(address, partial(self._receive, rank), clock_ns=clock_ns),
            )
            for rank, address in enumerate(addresses)
        ]

    def open(self, loop: AbstractEventLoop) -> None:
        """Listen from now on, whenever there is a publisher that is the engine's own."""
        self._check(loop)

    def close(self) -> None:
        """Hang up. Delivers nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for rank in self._ranks:
            rank.subscriber.close()

    def last_received(self) -> Mapping[Method, int]:
        """Return when its present process published something last."""
        return {} if self.received_ns is None else {Method.FPM: self.received_ns}

    def drain(self) -> None:
        """Ingest what has arrived: before the engine's death is accounted."""
        for rank in self._ranks:
            rank.subscriber.drain()

    @property
    def lost(self) -> int:
        """Messages that never came, by the gaps in their numbers, from its present process."""
        return sum(rank.stream.lost for rank in self._ranks)

    def collectors(self) -> tuple[CollectorStatus, ...]:
        """Return the collector `fpm:<engine>`."""
        ok = all(rank.subscriber.is_open for rank in self._ranks) and self.received_ns is not None
        status = self._health.status()
        return (
            replace(
                status,
                success=ok and status.success,
                duration_seconds=0.0,
                last_success_timestamp_seconds=self._received_wall,
            ),
        )

    def _check(self, loop: AbstractEventLoop) -> None:
        self._timer = loop.call_later(CHECK_SECONDS, self._check, loop)
        with self._health.round():
            leader = self._pid()
            if leader != self._leader:
                self._begin(leader)
            for rank in self._ranks:
                self._check_rank(rank, leader, loop)

    def _begin(self, leader: int | None) -> None:
        """Forget what the process before this one published."""
        self._leader, self.received_ns = leader, None
        for number, rank in enumerate(self._ranks):
            rank.subscriber.close()
            rank.stream = FpmStream(self._engine, leader or 0, number)
            rank.believed, rank.again_ns = frozenset(), 0

    def _check_rank(self, rank: _Rank, leader: int | None, loop: AbstractEventLoop) -> None:
        try:
            sockets = frozenset() if leader is None else self._sockets(rank.address)
        except OSError:
            sockets = frozenset()
        now_ns = self._clock_ns()
        # The very socket that was the engine's is still the engine's.
        if sockets and sockets == rank.believed and now_ns - rank.received_ns < self._silent_ns:
            return
        rank.subscriber.close()
        rank.believed = frozenset()
        if leader is None or now_ns < rank.again_ns:
            return
        owner = owner_of(sockets, self._members(leader))
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
        self.received_ns, self._received_wall = t_ns, self._wall()
        self._ranks[number].received_ns = t_ns
        stream = self._ranks[number].stream
        step = stream.take(sequence, message, t_ns, self._kv_cache_tokens())
        if step is not None and self._attributed():
            now_ns = self._clock_ns()
            self._ledger.step(stream.key, step, now_ns=now_ns)
            if message.idle:
                self._capacity_model.heartbeat(stream.key, step)
            else:
                self._capacity_model.step(stream.key, step, overlapped=False)
