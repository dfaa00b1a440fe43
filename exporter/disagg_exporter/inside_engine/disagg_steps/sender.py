"""The stream of step records from one engine to the daemon of its node.

Two threads touch it. The engine's own thread calls `Sender.step`, which counts, tries one
non-blocking send and returns whatever came of it. A thread of ours calls `Sender.beat` once a
second: it alone opens and closes sockets, says hello on each new one and sends heartbeats.
There is no lock, so neither can hold the other up; each name is written by one thread only,
except `_link`, which both may set to None and only the beating thread to a socket.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable

from . import wire
from .counting import DROPS, NOTHING_YET, Facts, count

__all__ = ["BEAT_SECONDS", "Facts", "Sender"]

BEAT_SECONDS = 1.0

# A queue that outlasts a daemon stalled for seconds; the kernel lowers it to what it allows.
SEND_BUFFER_BYTES = 4 << 20


class Sender:
    """One stream: the steps of one engine index in one process, and their running totals.

    Every step made gets the next sequence number, whether it could be sent or not, and is in the
    totals; `drops` counts those that were not sent. Hello and heartbeat repeat the number, the
    state (running, waiting, deferred, KV) and the totals of the last step, with no work of their
    own, so that a listener sees what it missed even when nothing follows.
    """

    _sequence: int
    _totals: list[int]
    _link: socket.socket | None
    _opened: socket.socket | None
    _thread: threading.Thread | None
    _stop: threading.Event
    _retired: list[socket.socket]

    def __init__(
        self,
        path: str,
        engine_index: int = 0,
        flags: int = 0,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        getpid: Callable[[], int] = os.getpid,
        beat_seconds: float = BEAT_SECONDS,
    ) -> None:
        """Take the daemon's socket path and the `wire` flags of every record. Sends nothing yet."""
        self._path = path
        self._engine_index = engine_index
        self._flags = flags
        self._clock_ns = clock_ns
        self._getpid = getpid
        self._beat_seconds = beat_seconds
        self._begin()

    @property
    def drops(self) -> int:
        """How many records were made and not sent, or could not be made."""
        return self._totals[DROPS]

    def start(self) -> None:
        """Start the thread that connects and beats once a second until `close`."""
        stop = self._stop
        self._thread = threading.Thread(
            target=self._run, args=(stop,), name="disagg-steps", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop beating and hang up."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._hang_up()

    def step(self, facts: Facts, t_ns: int, *, counted: bool = True, dummy: bool = False) -> None:
        """Count one step and try to send it. Never waits.

        `counted=False` is for a record that carries only the engine's state, with no step behind
        it. Raises `struct.error` for a fact out of its range, and has then counted nothing.
        """
        if self._getpid() != self._pid:
            self._start_over()
        totals = self._totals.copy()
        if counted:
            count(totals, facts, dummy=dummy)
        sequence = self._sequence + 1
        flags = self._flags | wire.DUMMY if dummy else self._flags
        message = self._packed(wire.STEP, flags, sequence, t_ns, facts, totals)
        self._totals, self._sequence = totals, sequence
        if not self._send(message):
            self.drop()
        # After the send: a heartbeat that named this step before it is out would report it lost.
        self._told = (sequence, facts, totals)

    def drop(self) -> None:
        """Count a step that never became a record or was not sent."""
        self._totals[DROPS] += 1

    def beat(self) -> None:
        """Do one beat: a heartbeat if there is a connection, else one attempt to get one."""
        for link in self._retired:
            link.close()
        self._retired.clear()
        if self._link is None and self._opened is not None:
            # Closed one beat later: the engine's thread may be inside `send` on it just now.
            self._retired.append(self._opened)
            self._opened = None
        if self._link is None:
            self._connect()
        else:
            self._send(self._standing(wire.HEARTBEAT))

    def _begin(self) -> None:
        self._pid = self._getpid()
        self._identity = (self._pid, self._engine_index, 0, self._clock_ns())
        self._sequence = 0
        self._totals = list(NOTHING_YET)
        self._link = self._opened = self._thread = None
        self._retired = []
        self._stop = threading.Event()
        self._told = (0, Facts(), self._totals)

    def _start_over(self) -> None:
        """Become a stream of one's own in a forked child, where our thread did not come along."""
        beating = self._thread is not None
        self._hang_up()
        self._begin()
        if beating:
            self.start()

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.beat()
            stop.wait(self._beat_seconds)

    def _standing(self, kind: int) -> bytes:
        # The clock is read first: whatever was recorded before that instant is in what follows.
        t_ns = self._clock_ns()
        sequence, facts, totals = self._told
        state = Facts(
            running=facts.running,
            waiting=facts.waiting,
            deferred=facts.deferred,
            kv_usage_ratio=facts.kv_usage_ratio,
        )
        return self._packed(kind, self._flags, sequence, t_ns, state, totals)

    def _packed(
        self, kind: int, flags: int, sequence: int, t_ns: int, facts: Facts, totals: list[int]
    ) -> bytes:
        # In the order of `wire.Record`, without making one: this runs at every step of the engine.
        head = (wire.VERSION, kind, flags, *self._identity, sequence, t_ns)
        return wire.pack(*head, *facts, *totals)

    def _send(self, message: bytes) -> bool:
        link = self._link
        if link is None:
            return False
        try:
            link.send(message, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError:
            self._link = None
            return False
        return True

    def _connect(self) -> None:
        try:
            link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            return
        try:
            link.setblocking(False)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            link.connect(self._path)
            link.send(self._standing(wire.HELLO), socket.MSG_NOSIGNAL)
        except OSError:
            link.close()
            return
        self._opened = self._link = link

    def _hang_up(self) -> None:
        for link in (*self._retired, self._opened):
            if link is not None:
                link.close()
        self._retired.clear()
        self._link = self._opened = None
