"""The output of a command on its way to a log: so much of it, and no more, however it goes on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from disagg_cluster.host.worker_logs import open_log

_READ_BYTES = 64 * 1024
# What is over is read all the same, so that nobody waits for us, but at 1.3 MB/s: a command that
# prints for ever is not to keep us busy.
_SKIP_SECONDS = 0.05


@contextmanager
def bounded_output(log_path: Path, most_bytes: int) -> Iterator[int]:
    """The descriptor that a command is to write to; what it wrote by the end is in the log.

    A file would grow as long as the command runs. Needs a running loop.

    Args:
        log_path: Where the output is appended.
        most_bytes: So much of it is kept, the rest is read and forgotten; the log says that.

    Raises:
        LogError: The log cannot be written.
    """
    log, _ = open_log(log_path)
    with log:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reading, False)
        pump = _Pump(reading, log.fileno(), most_bytes)
        try:
            pump.begin()
            yield writing
        finally:
            os.close(writing)
            pump.end()
            os.close(reading)


class _Pump:
    def __init__(self, source: int, target: int, most_bytes: int) -> None:
        self._source = source
        self._target = target
        self._left_bytes = most_bytes
        self._most_bytes = most_bytes
        self._loop = asyncio.get_running_loop()
        self._next: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        self._loop.add_reader(self._source, self._move)

    def end(self) -> None:
        """Move what is there; who still holds the other end is not waited for."""
        self._loop.remove_reader(self._source)
        if self._next is not None:
            self._next.cancel()
        while self._left_bytes > 0 and (data := self._read()):
            self._keep(data)

    def _move(self) -> None:
        if data := self._read():
            self._keep(data)
        if self._left_bytes <= 0:
            self._loop.remove_reader(self._source)
            self._next = self._loop.call_later(_SKIP_SECONDS, self._move)

    def _read(self) -> bytes:
        try:
            return os.read(self._source, _READ_BYTES)
        except BlockingIOError:
            return b""

    def _keep(self, data: bytes) -> None:
        if self._left_bytes <= 0:
            return
        kept = data[: self._left_bytes]
        self._left_bytes -= len(kept)
        if not self._left_bytes:
            kept += f"\n… (cut after {self._most_bytes} bytes)\n".encode()
        # A full disk is no reason not to tell of a failure.
        with suppress(OSError):
            os.write(self._target, kept)
