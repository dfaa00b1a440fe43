"""The daemon's own output: never blocks on a pipe without a reader, never floods the log."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import select
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from disagg_exporter.collectors import CollectorHealth, DaemonThread, NoThreadError
from disagg_exporter.model import CollectorStatus

MAX_BYTES = 1 << 20
CLOSING_SECONDS = 2.0
BURST_LINES = 10
SECONDS_PER_LINE = 60.0
MAX_EVENTS = 1024
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""A file that cannot take more now, and may once somebody has made room."""


class QueuedStream(io.TextIOBase):
    """A text stream onto a descriptor, written by a separate thread.

    Output that exceeds the queue, or meets a full disk, is dropped and counted, and the count is
    written once there is room again. The thread does not keep the process from ending.

    Args:
        descriptor: Target; the caller keeps ownership.
        max_bytes: Most bytes that may be queued.
        raises: Whether a write fails once the target is gone for good; if not, it is dropped.
    """

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, descriptor: int, max_bytes: int = MAX_BYTES, *, raises: bool = True) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = self._dropped = 0
        self._has_thread = False
        self._raises = raises
        self._error: OSError | None = None
        self._obstacle = ""

    @property
    def dropped(self) -> int:
        """Number of dropped writes since there was last room."""
        return self._dropped

    @property
    def obstacle(self) -> str:
        """Why the last write failed; empty if it did not, and nothing reads what is written."""
        return self._obstacle

    def writable(self) -> bool:
        """Yes."""
        return True

    def isatty(self) -> bool:
        """Whether the other end is a terminal."""
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        """The descriptor; direct writes to it overtake queued output."""
        return self._descriptor

    def write(self, text: str) -> int:
        """Queue text for writing; may raise `OSError` once nothing can be written any more."""
        if not isinstance(text, str):
            raise TypeError(f"text is written here, not {type(text).__name__}")
        piece = text.encode(self.encoding, self.errors)
        with self._changed:
            if self._error is not None:
                if self._raises:
                    raise OSError(*self._error.args)
                self._dropped += 1
            elif self._waiting_bytes + len(piece) > self._max_bytes:
                self._dropped += 1
            elif piece:
                self._waiting.append(piece)
                self._waiting_bytes += len(piece)
                self._changed.notify_all()
            self._start()
        return len(text)

    def flush(self) -> None:
        """Do nothing: a caller that flushes does not intend to wait for a reader."""

    def drain(self, seconds: float) -> bool:
        """Wait until all is written; return False after `seconds`, or if that is impossible."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting_bytes, seconds)
            return not self._waiting_bytes and self._error is None

    def _start(self) -> None:
        if self._has_thread:
            return
        try:
            DaemonThread(self._write_on, "output").start()
        except NoThreadError:
            return  # the next write tries again
        self._has_thread = True

    def _write_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                piece = self._waiting.popleft()
            try:
                # A full disk may have cut the last piece off within a line.
                self._write_all(b"\n" + piece if self._obstacle else piece)
            except OSError as error:
                if self._fail(error, piece):
                    continue
                return
            with self._changed:
                self._waiting_bytes -= len(piece)
                if self._dropped and not self._waiting:
                    self._note_dropped(piece)
                self._obstacle = ""
                self._changed.notify_all()

    def _fail(self, error: OSError, piece: bytes) -> bool:
        """Drop what cannot be written; return whether a later piece may succeed."""
        with self._changed:
            self._obstacle = error.strerror or str(error)
            passing = error.errno in _NO_ROOM
            if passing:
                self._dropped += 1
                self._waiting_bytes -= len(piece)
            else:
                self._error = error
                self._dropped += 0 if self._raises else len(self._waiting) + 1
                self._waiting.clear()
                self._waiting_bytes = 0
            self._changed.notify_all()
        return passing

    def _note_dropped(self, last: bytes) -> None:
        end = "" if last.endswith(b"\n") else "\n"
        why = self._obstacle or "nothing read it"
        note = f"{end}(output dropped here, as {why}: {self._dropped} pieces)\n".encode()
        self._dropped = 0
        self._waiting.append(note)
        self._waiting_bytes += len(note)

    def _write_all(self, piece: bytes) -> None:
        while piece:
            try:
                piece = piece[os.write(self._descriptor, piece) :]
            except BlockingIOError:
                # Another process that shares the terminal has made it non-blocking.
                poll = select.poll()
                poll.register(self._descriptor, select.POLLOUT)
                poll.poll()


class QueuedOutput:
    """The streams that replace the process's own."""

    def __init__(self, streams: Sequence[QueuedStream]) -> None:
        self._streams = streams
        self._health = CollectorHealth("output", logging.getLogger(__name__))

    def status(self) -> CollectorStatus:
        """Return the collector `output`: failed while anything printed is dropped."""
        obstacles = {stream.obstacle for stream in self._streams if stream.dropped}
        why = ", ".join(sorted(each or "nothing reads it" for each in obstacles))
        self._health.report({"": f"output is dropped: {why}"} if obstacles else {})
        return self._health.status()


@contextlib.contextmanager
def queued_output() -> Iterator[QueuedOutput]:
    """Make sys.stdout and sys.stderr non-blocking until the block ends.

    At the end, queued output gets two seconds. A stream that nothing reads even then is left as it
    is, so that the process can end with output left.
    """
    own = sys.stdout, sys.stderr
    # What is said on standard error must never end what says it.
    streams = [_queued(sys.stdout, raises=True), _queued(sys.stderr, raises=False)]
    sys.stdout, sys.stderr = (queued or plain for queued, plain in zip(streams, own, strict=True))
    try:
        yield QueuedOutput([stream for stream in streams if stream is not None])
    finally:
        until = time.monotonic() + CLOSING_SECONDS
        drained = [s is None or s.drain(until - time.monotonic()) for s in streams]
        if drained[0]:
            sys.stdout = own[0]
        if drained[1]:
            sys.stderr = own[1]


def _queued(stream: TextIO | None, *, raises: bool) -> QueuedStream | None:
    """Return a queued stream onto the same descriptor; None without a stream or descriptor."""
    if stream is None:
        return None
    try:
        descriptor = stream.fileno()
        stream.flush()
    except (OSError, ValueError):
        return None
    return QueuedStream(descriptor, raises=raises)


AUDIT = "audit"
"""Attribute of a log record about who changed what: each is written."""


@dataclass(slots=True)
class _Event:
    """How many lines of one event may still be written, since when, and how many were dropped."""

    left: float
    since_seconds: float
    dropped: int = 0


class LogRateLimit(logging.Filter):
    """Lets each event pass a few times at once, and from then on once a minute.

    Lines belong to one event if they have the same format string and the same first value, which is
    its subject. The next line that passes reports how many were dropped. Debug lines and those with
    the attribute `AUDIT` always pass.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._events: OrderedDict[tuple[str, str], _Event] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is to be written."""
        if record.levelno <= logging.DEBUG or getattr(record, AUDIT, False):
            return True
        event = self._event(record)
        if event.left < 1:
            event.dropped += 1
            return False
        event.left -= 1
        if event.dropped:
            left_out = f"(left out since the last such line: {event.dropped})"
            record.msg, record.args = f"{record.getMessage()} {left_out}", ()
            event.dropped = 0
        return True

    def _event(self, record: logging.LogRecord) -> _Event:
        subject = str(record.args[0]) if isinstance(record.args, tuple) and record.args else ""
        key, now_seconds = (str(record.msg), subject), self._clock()
        event = self._events.pop(key, None) or _Event(BURST_LINES, now_seconds)
        earned = (now_seconds - event.since_seconds) / SECONDS_PER_LINE
        event.left, event.since_seconds = min(event.left + earned, BURST_LINES), now_seconds
        self._events[key] = event
        while len(self._events) > MAX_EVENTS:
            self._events.popitem(last=False)
        return event
