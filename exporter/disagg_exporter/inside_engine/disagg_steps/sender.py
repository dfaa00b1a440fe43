"""The sender of step records from one engine to the daemon of its node.

Two threads use it. The engine's own thread, which serves the requests, calls `Sender.keep` at every
step and only queues it: by its next step a busy engine has evicted our code from the processor's
caches, so the length of the code matters. A thread of ours reads the queue, counts it and sends it
as one packet, ten times a second while there are steps. Only the first step after an idle period,
and a flood, are sent by the engine's thread.

The sending thread holds the lock. The engine's thread never waits for it: if ours is sending at
that moment, the step is kept for the next packet, and lost if ours is stuck for long.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from . import wire
from .counting import Facts
from .link import Link
from .stream import StepReport, Stream

__all__ = ["BEAT_SECONDS", "KEPT_SECONDS", "Facts", "Sender", "StepReport"]

BEAT_SECONDS = 1.0

# How long a step may be queued, and how many of them.
KEPT_SECONDS = 0.1
KEPT_RECORDS = 64
# Queue limit while our thread is stuck, such as in a file system that does not answer.
MOST_KEPT = 1024
# How long an ending engine waits for our thread.
CLOSE_SECONDS = 2.0
_KEPT_NS = round(KEPT_SECONDS * 1e9)

# Records that fit into a packet, beside a heartbeat.
_MOST_RECORDS = wire.MAX_PACKET_BYTES // wire.BYTES - 1


class Sender:
    """The steps of one engine index in one process, queued briefly and sent together.

    Args:
        path: The daemon's socket.
        engine_index: The data-parallel rank.
        flags: The `wire` flags of every record.
        read: Converts the arguments of `keep` into a report, later and on either thread; None if it
            is not worth a record. If it raises, the record counts as a drop.
        in_flight: Counts the requests that the engine has not answered; None if unknown.
        limits: The most tokens and requests that the engine takes into one step, if known.
        late: Each step is launched before the record of the one before it is made.
        shared: Other processes get some of the engine's records.
        clock_ns: CLOCK_MONOTONIC.
        getpid: Distinguishes a forked child from its parent.
        beat_seconds: From one heartbeat to the next.
    """

    _kept: deque[tuple[int, tuple[Any, ...]]]
    _lock: threading.Lock
    _bell: SimpleQueue[None]
    _thread: threading.Thread | None
    _is_idle: bool

    def __init__(
        self,
        path: str,
        engine_index: int = 0,
        flags: int = 0,
        *,
        read: Callable[..., StepReport | None] = lambda report: report,
        in_flight: Callable[[], int | None] = lambda: None,
        limits: tuple[int, int] | None = None,
        late: bool = False,
        shared: bool = False,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        getpid: Callable[[], int] = os.getpid,
        beat_seconds: float = BEAT_SECONDS,
    ) -> None:
        self._link = Link(path)
        self._engine_index = engine_index
        self._flags = flags
        self._read = read
        self._in_flight = in_flight
        self._limits = limits
        self._late, self._shared = late, shared
        self._clock_ns = clock_ns
        self._getpid = getpid
        self._beat_ns = round(beat_seconds * 1e9)
        self._begin()

    @property
    def drops(self) -> int:
        """Number of records that were made and not sent, or could not be made."""
        return self._stream.drops

    def start(self) -> None:
        """Start the thread that connects, sends and beats once a second until `close`."""
        thread = threading.Thread(target=self._run, name="disagg-steps", daemon=True)
        thread.start()
        self._thread = thread
        atexit.register(self.close)

    def close(self) -> None:
        """Send what is queued, stop the thread and disconnect; gives up on a stuck thread."""
        atexit.unregister(self.close)
        if self._getpid() != self._pid:
            # A forked child that ends has nothing to send: the queue is its parent's.
            self._link.close()
            return
        self._closing = True
        self._bell.put(None)
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)
        held = self._lock.acquire(timeout=CLOSE_SECONDS)
        try:
            if held:
                self._send_kept(self._clock_ns())
        finally:
            self._link.close()
            if held:
                self._lock.release()

    def keep(self, t_ns: int, *report: Any) -> None:
        """Queue a report made at `t_ns`; send the queue if that is due. Never waits."""
        if self._getpid() != self._pid:
            self._restart_stream()
        kept = self._kept
        kept.append((t_ns, report))
        if t_ns >= self._due_ns or len(kept) >= KEPT_RECORDS:
            if self._lock.acquire(blocking=False):
                try:
                    self._send_kept(t_ns)
                finally:
                    self._lock.release()
            elif len(kept) > MOST_KEPT:
                kept.pop()
                self.drop()
        elif self._is_idle:
            self._is_idle = False
            self._bell.put(None)

    def step(self, facts: Facts, t_ns: int, *, counted: bool = True, dummy: bool = False) -> None:
        """Queue one step, or with `counted=False` the engine's state; for a sender without `read`.

        A fact out of its range is a drop, and nothing of it is counted.
        """
        self.keep(t_ns, StepReport(facts, counted, dummy))

    def drop(self) -> None:
        """Count a step that never became a record."""
        self._stream.drops += 1

    def beat(self) -> None:
        """Send the queue and a heartbeat; without a connection, try once to connect."""
        with self._lock:
            # The clock is read first: what was reported before that instant is in the packet.
            now_ns = self._clock_ns()
            connected = self._link.is_open
            if not connected:
                self._link.open()
                if self._link.is_open:
                    self._link.send(self._standing(wire.HELLO, now_ns))
            self._send_kept(now_ns, heartbeat=connected)

    def _begin(self) -> None:
        self._pid = self._getpid()
        self._stream = Stream(
            self._pid,
            self._engine_index,
            self._clock_ns(),
            self._flags,
            self._read,
            late=self._late,
            shared=self._shared,
        )
        self._kept, self._lock = deque(), threading.Lock()
        self._due_ns = 0
        self._bell, self._is_idle, self._closing = SimpleQueue(), False, False
        self._thread = None

    def _restart_stream(self) -> None:
        """Start a new stream in a forked child, which has no copy of our thread."""
        beating = self._thread is not None
        self._link.close()
        self._begin()
        if beating:
            self.start()

    def _run(self) -> None:
        while not self._closing:
            self.beat()
            self._listen(self._clock_ns() + self._beat_ns)

    def _listen(self, until_ns: int) -> None:
        """Until the next beat, send the queue whenever it is due.

        While the engine idles this sleeps: the engine's thread sends the first step itself, and
        rings when it queues the second.
        """
        while not self._closing and (now_ns := self._clock_ns()) < until_ns:
            wake_ns = min(self._due_ns, until_ns)
            if wake_ns <= now_ns:
                # Set before the check: anything queued after the check will ring.
                self._is_idle = True
                if self._kept:
                    self._is_idle = False
                    with self._lock:
                        self._send_kept(now_ns)
                    continue
                wake_ns = until_ns
            with suppress(Empty):
                self._bell.get(timeout=(wake_ns - now_ns) / 1e9)
            self._is_idle = False

    def _send_kept(self, now_ns: int, *, heartbeat: bool = False) -> None:
        """Make records of the queue and send them as one packet; the caller holds the lock."""
        kept, stream = self._kept, self._stream
        packet: list[bytes] = []
        if kept:
            self._due_ns = now_ns + _KEPT_NS
        while kept and len(packet) < _MOST_RECORDS:
            record = stream.record(*kept.popleft())
            if record is not None:
                packet.append(record)
        steps = len(packet)
        if heartbeat:
            packet.append(self._standing(wire.HEARTBEAT, now_ns))
        if packet and not self._link.send(b"".join(packet)):
            stream.drops += steps

    def _standing(self, kind: int, now_ns: int) -> bytes:
        try:
            in_flight = self._in_flight()
            limits = self._limits if kind == wire.HELLO else None
            return self._stream.standing(kind, now_ns, in_flight, limits)
        except Exception:  # noqa: BLE001 # other engine versions may report anything, or nothing
            return self._stream.standing(kind, now_ns)
