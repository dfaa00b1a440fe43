"""The socket on which one worker's engine reports its steps.

The kernel identifies the connecting process, not the record: only processes that the caller
recognizes as the engine's are accepted.
"""

from __future__ import annotations

import logging
import socket
import time
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from disagg_exporter.errors import DisaggError
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import StreamKey
from disagg_exporter.steps.batched_poller import BatchedPoller, RestSeconds, shared_poller
from disagg_exporter.steps.local_sockets import (
    FileIdentity,
    identity_of,
    listening_socket,
    peer_pid,
    unlink_if_same,
)
from disagg_exporter.steps.messages import ControlMessage, MessageKind, StepEvent, record_runs
from disagg_exporter.steps.rate_limiter import RateLimiter

# So that an engine that floods the daemon cannot block its other work.
MESSAGES_PER_TURN = 256
CONNECTIONS_PER_TURN = 64
# A sender's queue holds some hundred packets, so these turns read all that had arrived.
TURNS_PER_DRAIN = 64

# The plugin opens a connection for each stream. Without a limit, a client that invents new streams
# on one connection would fill the memory.
STREAMS_PER_CONNECTION = 16


def rest_a_little() -> float:
    """Return the default interval between polls in seconds.

    All connections of a daemon are polled at the same instants: an engine's sends are cheaper too
    when they wake no process. The kernel holds some hundred messages meanwhile.
    """
    return 0.25


# Interval of the check whether a socket's file was removed or replaced.
CHECK_SECONDS = 2.0

_log = logging.getLogger("disagg_node")


@dataclass(frozen=True, slots=True)
class ListenerCounts:
    """Counts of one socket: connections open now; the rest since its creation."""

    connected: int
    accepted: int
    refused: int
    bad_messages: int


@dataclass(slots=True, eq=False)
class _Peer:
    link: socket.socket
    pid: int
    keys: dict[tuple[int, int], StreamKey] = field(default_factory=dict)
    flags_by_key: dict[StreamKey, int] = field(default_factory=dict)


class StepsListener:
    """One worker's socket: `open` it in the daemon's loop, `close` it at the end.

    `believes` returns whether a process is the engine's own. `deliver` receives each message on
    the loop's thread, in the order of its connection, within `rest_seconds()`.

    `mode` are the permissions of its file. With `messages_per_second`, messages beyond that stay
    with the sender, whose plugin counts those it could not send. `make_folder` recreates the
    socket's folder if it has vanished.
    """

    def __init__(
        self,
        path: Path,
        engine: str,
        believes: Callable[[int], bool],
        deliver: Callable[[StepEvent], None],
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        rest_seconds: RestSeconds = rest_a_little,
        mode: int = 0o600,
        messages_per_second: float | None = None,
        make_folder: Callable[[], object] = lambda: None,
    ) -> None:
        self._path = path
        self._engine = engine
        self._believes = believes
        self._deliver = deliver
        self._clock_ns = clock_ns
        self._rest_seconds = rest_seconds
        self._mode = mode
        self._make_folder = make_folder
        self._watch: TimerHandle | None = None
        self._complaint = ""
        self._rate_limiter: RateLimiter | None = None
        if messages_per_second is not None:
            self._rate_limiter = RateLimiter(messages_per_second, clock_ns=clock_ns)
        self._loop: AbstractEventLoop | None = None
        self._poller: BatchedPoller | None = None
        self._socket: socket.socket | None = None
        self._identity: FileIdentity | None = None
        self._peers: list[_Peer] = []
        self._accepted = self._refused = self._bad_messages = 0

    @property
    def counts(self) -> ListenerCounts:
        """The connections and invalid messages counted so far."""
        return ListenerCounts(len(self._peers), self._accepted, self._refused, self._bad_messages)

    def open(self, loop: AbstractEventLoop) -> None:
        """Listen, replacing a dead daemon's file if needed; raises `StepsSocketError`."""
        self._socket = listening_socket(self._path, self._mode)
        self._identity = identity_of(self._path)
        self._loop = loop
        self._poller = shared_poller(loop, self._rest_seconds)
        loop.add_reader(self._socket, self._accept, self._socket, loop, self._poller)
        self._watch = loop.call_later(CHECK_SECONDS, self.check)

    def check(self) -> None:
        """Recreate the socket's file if it is gone or replaced; also runs periodically."""
        if self._socket is None or self._loop is None:
            return
        if self._watch is not None:
            self._watch.cancel()
        self._watch = self._loop.call_later(CHECK_SECONDS, self.check)
        if self.is_in_place:
            return
        try:
            self._make_folder()
            self.restore()
        except (OSError, DisaggError) as error:
            if str(error) != self._complaint:
                _log.warning("%s has vanished and cannot be recreated: %s", self._path, error)
            self._complaint = str(error)
            return
        self._complaint = ""
        _log.warning("%s has vanished or was replaced: recreated", self._path)

    @property
    def is_in_place(self) -> bool:
        """Whether the file at its path is its own; also true while it does not listen."""
        return self._socket is None or identity_of(self._path) == self._identity

    def restore(self) -> None:
        """Listen at its path again, after the file there was removed or replaced.

        Connections stay open. On `StepsSocketError` it listens as before.
        """
        if self._socket is None or self._loop is None or self._poller is None:
            return
        fresh = listening_socket(self._path, self._mode)
        self._accept(self._socket, self._loop, self._poller)
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._socket, self._identity = fresh, identity_of(self._path)
        self._loop.add_reader(fresh, self._accept, fresh, self._loop, self._poller)

    def drain(self) -> None:
        """Read all that has arrived at once; needed before an engine's end is accounted.

        A sender that never stops is read only for a while.
        """
        if self._socket is None or self._loop is None or self._poller is None:
            return
        self._accept(self._socket, self._loop, self._poller)
        for peer in tuple(self._peers):
            for _ in range(TURNS_PER_DRAIN):
                if not self._read_turn(peer, self._poller):
                    break

    def disconnect(self, pids: Collection[int]) -> None:
        """Close the connections of some processes; their plugins connect again within seconds."""
        for peer in tuple(self._peers):
            if peer.pid in pids and self._poller is not None:
                self._forget(peer, self._poller)

    def close(self) -> None:
        """Close all connections and remove the socket file. Delivers nothing."""
        if self._socket is None or self._loop is None or self._poller is None:
            return
        if self._watch is not None:
            self._watch.cancel()
        # The file is removed first: once we stop listening, it may already be our successor's.
        unlink_if_same(self._path, self._identity)
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for peer in self._peers:
            self._poller.remove(peer.link)
            peer.link.close()
        self._peers.clear()
        self._socket = self._poller = None

    def _accept(
        self, listening: socket.socket, loop: AbstractEventLoop, poller: BatchedPoller
    ) -> None:
        for _ in range(CONNECTIONS_PER_TURN):
            if not self._may_take():
                self._accept_later(listening, loop, poller)
                return
            try:
                link, _address = listening.accept()
            except BlockingIOError:
                return
            except OSError:
                # Out of descriptors: the queued connection would wake us again at once.
                self._accept_later(listening, loop, poller)
                return
            self._took()
            link.setblocking(False)
            try:
                pid = peer_pid(link)
                believed = self._believes(pid)
            except Exception:
                self._refused += 1
                link.close()
                raise
            if not believed:
                self._refused += 1
                link.close()
                continue
            peer = _Peer(link, pid)
            try:
                poller.add(link, partial(self._read_turn, peer, poller))
            except OSError:
                # Out of descriptors; the plugin will try again.
                link.close()
                self._accept_later(listening, loop, poller)
                return
            self._accepted += 1
            self._peers.append(peer)

    def _accept_later(
        self, listening: socket.socket, loop: AbstractEventLoop, poller: BatchedPoller
    ) -> None:
        loop.remove_reader(listening)
        loop.call_at(poller.next_seconds(), self._accept_again, listening, loop, poller)

    def _accept_again(
        self, listening: socket.socket, loop: AbstractEventLoop, poller: BatchedPoller
    ) -> None:
        if self._socket is listening:
            loop.add_reader(listening, self._accept, listening, loop, poller)

    def _read_turn(self, peer: _Peer, poller: BatchedPoller) -> bool:
        """Read about one turn's worth of a connection; return whether more may be waiting."""
        packets: list[bytes] = []
        received, over = 0, False
        while received < MESSAGES_PER_TURN and not over and self._may_take():
            try:
                packet = peer.link.recv(wire.MAX_PACKET_BYTES + 1)
            except BlockingIOError:
                break
            except OSError:
                packet = b""
            if packet:
                count = max(len(packet) // wire.BYTES, 1)
                self._took(count)
                packets.append(packet)
                received += count
            over = not packet
        if packets:
            self._receive(peer, packets)
        if over:
            self._forget(peer, poller)
        return received >= MESSAGES_PER_TURN and not over

    def _may_take(self) -> bool:
        return self._rate_limiter is None or self._rate_limiter.available() >= 1

    def _took(self, count: int = 1) -> None:
        if self._rate_limiter is not None:
            self._rate_limiter.spend(count)

    def _receive(self, peer: _Peer, packets: Sequence[bytes]) -> None:
        runs, bad = record_runs(packets)
        self._bad_messages += bad
        for run in runs:
            identity = run.incarnation, run.engine_index
            if (key := peer.keys.get(identity)) is None:
                if len(peer.keys) >= STREAMS_PER_CONNECTION:
                    self._bad_messages += run.records
                    continue
                key = peer.keys[identity] = StreamKey(self._engine, peer.pid, *identity)
            peer.flags_by_key[key] = run.flags
            self._deliver(run.event(key))

    def _forget(self, peer: _Peer, poller: BatchedPoller) -> None:
        poller.remove(peer.link)
        peer.link.close()
        self._peers.remove(peer)
        for key, flags in peer.flags_by_key.items():
            # A plugin that lost its connection opens a new one before it closes the old one.
            if not any(key in other.flags_by_key for other in self._peers):
                t_ns = self._clock_ns()
                self._deliver(ControlMessage(MessageKind.DISCONNECTED, key, flags, None, t_ns))
