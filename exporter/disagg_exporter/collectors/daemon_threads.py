"""A few reusable threads for work that may block; no single one of them is essential.

Unlike the standard library's pool, they fail at once when the system has no thread left, keep no
job that was refused, and block nothing: neither at the end, where a thread stuck in the kernel is
abandoned, nor at their start. `threading.Thread.start` waits indefinitely for the new thread's
first sign of life, and a thread that finds no memory for its first instructions ends without one:
an event loop that has started it hangs for good (CPython 3.11: gh-140746).
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

_log = logging.getLogger(__name__)

Job = Callable[[], None]

_FIRST_SIGN_SECONDS = 2.0
"""A thread reports within milliseconds; on a machine at its limits, within a second."""


class NoThreadError(RuntimeError):
    """No thread exists, and the system cannot create one."""


class _FirstSign(threading.Event):
    """What a new thread sets first; waiting for it is bounded."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(_FIRST_SIGN_SECONDS if timeout is None else timeout)


class DaemonThread(threading.Thread):
    """One daemon thread, whose `start` always returns.

    Args:
        work: What it does.
        name: Its name.
    """

    def __init__(self, work: Job, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self._claim = threading.Lock()
        # `start` waits for this private attribute; without the replacement it would wait
        # indefinitely.
        self._started = _FirstSign()

    def start(self) -> None:
        """Start it.

        Raises:
            NoThreadError: The system has none, or not the memory for its first steps; the work is
                not done.
        """
        try:
            super().start()
        except (RuntimeError, MemoryError) as error:
            raise NoThreadError(f"the system has no thread left: {error}") from error
        # If it runs after all, it finds its work claimed.
        if not self._started.is_set() and self._claim.acquire(blocking=False):
            raise NoThreadError("the system has no thread left: a new one gave no sign of life")

    def run(self) -> None:
        """Do its work, unless the starter has given it up."""
        if self._claim.acquire(blocking=False):
            self._work()


class DaemonThreads:
    """Runs jobs on at most `limit` daemon threads, created on first need.

    Args:
        limit: The most threads.
        name: Prefix of their names.
    """

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._made = self._threads = self._free = 0

    def run(self, job: Job) -> None:
        """Run a job on the first free thread; an exception it raises is logged.

        Raises:
            NoThreadError: There is no thread at all; the job is dropped.
        """
        with self._lock:
            # Queued jobs have made `free` negative.
            if self._free <= 0 and self._threads < self._limit:
                self._start()
            self._free -= 1
            self._jobs.put(job)

    def allow_one_more(self) -> None:
        """Raise the limit by one."""
        with self._lock:
            self._limit += 1

    def close(self) -> None:
        """Let the threads end once their jobs are done, without waiting for them."""
        with self._lock:
            for _ in range(self._threads):
                self._jobs.put(None)

    def _start(self) -> None:
        try:
            DaemonThread(self._work, f"{self._name}_{self._made + 1}").start()
        except (NoThreadError, MemoryError) as error:
            if not self._threads:
                raise NoThreadError(str(error)) from error
            return  # an existing thread runs the job when it is free
        self._made, self._threads, self._free = self._made + 1, self._threads + 1, self._free + 1

    def _work(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                try:
                    job()
                except Exception:  # noqa: BLE001 - a job may raise anything, and its thread is needed again
                    _log_failure(f"a job on {threading.current_thread().name}")
                del job
                with self._lock:
                    self._free += 1
        finally:
            # However it ends, another may take its place.
            with self._lock:
                self._threads -= 1


def _log_failure(what: str) -> None:
    # If memory is short, logging may fail too; the thread continues.
    with contextlib.suppress(MemoryError):
        _log.exception("%s failed", what)


class DaemonExecutor(Executor):
    """Runs work on `DaemonThreads` and returns futures, for callers such as an event loop.

    Args:
        limit: The most threads.
        name: Prefix of their names.
    """

    def __init__(self, limit: int, name: str) -> None:
        self._threads = DaemonThreads(limit, name)

    def submit(self, work: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """Run it on the first free thread, unless it is cancelled before.

        Raises:
            NoThreadError: There is no thread at all.
        """
        result: Future[Any] = Future()

        def carry_out() -> None:
            if not result.set_running_or_notify_cancel():
                return
            try:
                found = work(*args, **named)
            except BaseException as error:  # noqa: BLE001 - it is passed to the future's caller
                result.set_exception(error)
            else:
                result.set_result(found)

        self._threads.run(carry_out)
        return result

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads end once their jobs are done, without waiting for them."""
        self._threads.close()
