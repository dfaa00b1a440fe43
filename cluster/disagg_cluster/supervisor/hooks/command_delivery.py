"""Delivers a failure to a command: on its standard input, within a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from disagg_cluster.host.processes import procfs
from disagg_cluster.host.processes.process_traits import WORKER_MARK
from disagg_cluster.host.worker_logs import LogError, open_log, rotate
from disagg_cluster.supervisor.hooks.failure_notifier import HookError
from disagg_cluster.supervisor.process import child_process
from disagg_cluster.supervisor.process.family import ProcessId

_REAP_SECONDS = 2.0
_SCAN_SECONDS = 0.25
_MOST_LOG_BYTES = 1_000_000
_INHERITED = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER")
_INHERITED_PREFIXES = ("LC_", "SSL_CERT_")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_READ_BYTES = 64 * 1024
# Surplus output is still read, so that the command does not block, but at 1.3 MB/s: one that prints
# for ever must not keep us busy.
_SKIP_SECONDS = 0.05


class CommandDelivery:
    """Runs a command in a separate session for each failure.

    Args:
        argv: Program and arguments.
        environ: Ours; the command gets only what a program needs of it: neither tokens nor the
            variables of our service manager.
        log_path: Its output is appended there, up to a megabyte of each run.
        deadline_seconds: How long it may take; then it is killed, as are the processes that it
            leaves at its end: all of its session, and those that have left the session.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        log_path: Path,
        deadline_seconds: float,
    ) -> None:
        self._argv = tuple(argv)
        self._environment = {key: value for key, value in environ.items() if _is_needed(key)}
        self._environment[WORKER_MARK] = str(log_path)
        self._log_path = log_path
        self._deadline_seconds = deadline_seconds

    async def deliver(self, data: bytes) -> None:
        """Run it to its end, or raise `HookError`."""
        try:
            code = await self._run(data)
        finally:
            with contextlib.suppress(LogError):
                rotate(self._log_path, _MOST_LOG_BYTES)
        if code:
            ended = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise HookError(f"the command ended with {ended}; see {self._log_path}")

    async def _run(self, data: bytes) -> int | None:
        """Run it and leave nothing behind; return its exit code, or minus a signal."""
        # A file in memory: unlike with a pipe, writing never waits for a reader.
        with (
            os.fdopen(os.memfd_create("failure"), "wb+", buffering=0) as data_file,
            bounded_output(self._log_path, _MOST_LOG_BYTES) as output,
        ):
            data_file.write(data)
            data_file.seek(0)
            child = child_process.start(
                self._argv,
                self._environment,
                self._log_path,
                stdin=data_file.fileno(),
                output=output,
            )
            tracking = asyncio.create_task(_track_descendants(child))
            try:
                async with asyncio.timeout(self._deadline_seconds):
                    await _ended(child)
                return child.exit_code()
            except TimeoutError:
                raise HookError(f"it took more than {self._deadline_seconds:g} s") from None
            finally:
                tracking.cancel()
                await _end(child)


async def _track_descendants(child: child_process.ChildProcess) -> None:
    """Track its descendants until cancelled: they stay known after leaving its session."""
    seen: set[ProcessId] = set()
    child.family.descendants = lambda: seen
    while True:
        waiting = [child.pid, *(pid for pid, ticks in seen if procfs.start_ticks(pid) == ticks)]
        while waiting:
            for pid in procfs.children_of(waiting.pop()):
                found = (pid, procfs.start_ticks(pid) or 0)
                if found not in seen:
                    seen.add(found)
                    waiting.append(pid)
        await asyncio.sleep(_SCAN_SECONDS)


async def _ended(child: child_process.ChildProcess) -> None:
    """Wait for a leader's death."""
    loop, dead = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(child.pidfd, dead.set)
    try:
        await dead.wait()
    finally:
        loop.remove_reader(child.pidfd)


async def _end(child: child_process.ChildProcess) -> None:
    """Kill what is left of it, and reap its leader."""
    child.signal_group(signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_REAP_SECONDS):
            await _ended(child)
    # Once more, for processes started while the others were being killed.
    child.signal_group(signal.SIGKILL)
    child.reap()
    child.let_go()


def _is_needed(name: str) -> bool:
    return name in _INHERITED or name.startswith(_INHERITED_PREFIXES) or name.lower() in _PROXIES


@contextmanager
def bounded_output(log_path: Path, most_bytes: int) -> Iterator[int]:
    """Yield the descriptor a command is to write to; by the end its output is in the log.

    A file would grow as long as the command runs. Needs a running loop.

    Args:
        log_path: Where the output is appended.
        most_bytes: How much of it is kept; the rest is read and dropped, and the log says so.

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
        """Move what is there, without waiting for processes that still hold the other end."""
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
        # A full disk is no reason not to deliver a failure.
        with suppress(OSError):
            os.write(self._target, kept)
