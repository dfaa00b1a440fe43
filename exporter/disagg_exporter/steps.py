"""The socket on which one worker's engine tells the daemon of its steps.

Readable and writable by its owner only. Who connects is asked of the kernel, not of the record:
only a process that the caller believes to be the engine's is listened to.
"""

from __future__ import annotations

import socket
import struct
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import StreamKey
from disagg_exporter.step_messages import Message, MessageKind, stream_key, to_message, to_step
from disagg_exporter.steps_socket import StepsSocketError, listening_socket

__all__ = [
    "ListenerCounts",
    "Message",
    "MessageKind",
    "StepsListener",
    "StepsSocketError",
    "in_session_of",
    "stream_key",
    "to_step",
]

# So that an engine which floods us cannot keep the daemon from everything else.
MESSAGES_PER_TURN = 256
CONNECTIONS_PER_TURN = 64
ACCEPT_PAUSE_SECONDS = 1.0

_PEER = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class ListenerCounts:
    """What one socket has seen: connections open now, the rest since it was made."""

    connected: int
    accepted: int
    refused: int
    bad_messages: int


def in_session_of(leader_pid: int, pid: int, proc_root: Path | str = "/proc") -> bool:
    """Say whether `pid` is the session leader `leader_pid` itself or lives in its session.

    A process that is gone, or that the kernel does not show us (pid 0), is in no session.
    """
    if pid <= 0 or leader_pid <= 0:
        return False
    if pid == leader_pid:
        return True
    try:
        line = (Path(proc_root) / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return False
    # pid (name) state ppid pgrp session …; the name may hold anything, brackets too.
    fields = line.rpartition(")")[2].split()
    return len(fields) > 3 and fields[3] == str(leader_pid)


@dataclass(slots=True, eq=False)
class _Peer:
    link: socket.socket
    pid: int
    flags_by_key: dict[StreamKey, int] = field(default_factory=dict)


class StepsListener:
    """One worker's socket: `open` it with the daemon's loop, `close` it in the end.

    `believes` says whether a process is the engine's own. `deliver` takes each message on the
    loop's thread, in the order in which its connection sent it.
    """

    def __init__(
        self,
        path: Path,
        engine: str,
        believes: Callable[[int], bool],
        deliver: Callable[[Message], None],
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._path = path
        self._engine = engine
        self._believes = believes
        self._deliver = deliver
        self._clock_ns = clock_ns
        self._loop: AbstractEventLoop | None = None
        self._socket: socket.socket | None = None
        self._peers: list[_Peer] = []
        self._accepted = self._refused = self._bad_messages = 0

    @property
    def counts(self) -> ListenerCounts:
        """What was accepted, refused and not understood so far."""
        return ListenerCounts(len(self._peers), self._accepted, self._refused, self._bad_messages)

    def open(self, loop: AbstractEventLoop) -> None:
        """Listen, in place of a dead daemon if need be; raises `StepsSocketError`."""
        self._socket = listening_socket(self._path)
        self._loop = loop
        loop.add_reader(self._socket, self._accept, self._socket, loop)

    def drain(self) -> None:
        """Hear all that has arrived, in one go: to be done before an engine's death is booked."""
        if self._socket is None or self._loop is None:
            return
        self._accept(self._socket, self._loop)
        for peer in tuple(self._peers):
            while self._hear_some(peer, self._loop):
                pass

    def close(self) -> None:
        """Hang up on everyone and remove the socket file. Delivers nothing."""
        if self._socket is None or self._loop is None:
            return
        # The file goes first: once we no longer listen, it may already be our successor's.
        self._path.unlink(missing_ok=True)
        for link in (self._socket, *(peer.link for peer in self._peers)):
            self._loop.remove_reader(link)
            link.close()
        self._peers.clear()
        self._socket = None

    def _accept(self, listening: socket.socket, loop: AbstractEventLoop) -> None:
        for _ in range(CONNECTIONS_PER_TURN):
            try:
                link, _address = listening.accept()
            except BlockingIOError:
                return
            except OSError:
                # Out of descriptors: the caller in the queue would wake us again at once.
                loop.remove_reader(listening)
                loop.call_later(ACCEPT_PAUSE_SECONDS, self._accept_again, listening, loop)
                return
            link.setblocking(False)
            credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            pid, _uid, _gid = _PEER.unpack(credentials)
            if not self._believes(pid):
                self._refused += 1
                link.close()
                continue
            self._accepted += 1
            peer = _Peer(link, pid)
            self._peers.append(peer)
            loop.add_reader(link, self._hear_some, peer, loop)

    def _accept_again(self, listening: socket.socket, loop: AbstractEventLoop) -> None:
        if self._socket is listening:
            loop.add_reader(listening, self._accept, listening, loop)

    def _hear_some(self, peer: _Peer, loop: AbstractEventLoop) -> bool:
        """Hear one turn's worth of a connection; say whether there may be more."""
        for _ in range(MESSAGES_PER_TURN):
            try:
                message = peer.link.recv(wire.MAX_BYTES + 1)
            except BlockingIOError:
                return False
            except OSError:
                message = b""
            if not message:
                self._forget(peer, loop)
                return False
            self._hear(peer, message)
        return True

    def _hear(self, peer: _Peer, message: bytes) -> None:
        try:
            record = wire.decode(message)
        except wire.WireError:
            self._bad_messages += 1
            return
        if len(message) > wire.MAX_BYTES:
            self._bad_messages += 1
            return
        heard = to_message(self._engine, record._replace(pid=peer.pid))
        peer.flags_by_key[heard.key] = heard.flags
        self._deliver(heard)

    def _forget(self, peer: _Peer, loop: AbstractEventLoop) -> None:
        loop.remove_reader(peer.link)
        peer.link.close()
        self._peers.remove(peer)
        for key, flags in peer.flags_by_key.items():
            # A plugin that lost its connection opens the next before it closes the old one.
            if not any(key in other.flags_by_key for other in self._peers):
                t_ns = self._clock_ns()
                self._deliver(Message(MessageKind.DISCONNECTED, key, flags, None, t_ns))
