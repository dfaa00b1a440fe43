"""A few threads for work that may block: kept once started, none of them needed at any one time.

Unlike an executor of the standard library it says at once when the system has no thread left, keeps
nothing that it has refused, and holds nobody up at the end: a thread stuck in the kernel is left.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

_log = logging.getLogger(__name__)

Job = Callable[[], None]


class NoThreadError(RuntimeError):
    """No thread is there, and the system gives none."""


class DaemonThreads:
    """Runs jobs on at most `limit` daemon threads, made when they are first needed.

    Args:
        limit: The most threads.
        name: What they are called.
    """

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._free = 0

    def run(self, job: Job) -> None:
        """Run a job on the first thread that is free; what it raises is logged.

        Raises:
            NoThreadError: There is no thread at all; the job is forgotten.
        """
        with self._lock:
            # Jobs that wait have made `free` negative.
            if self._free <= 0 and self._threads < self._limit:
                self._start()
            if not self._threads:
                raise NoThreadError("the system has no thread left")
            self._free -= 1
            self._jobs.put(job)

    def allow_one_more(self) -> None:
        """Run one more job at a time."""
        with self._lock:
            self._limit += 1

    def close(self) -> None:
        """Let the threads end once they have done what they were given; waits for none."""
        with self._lock:
            for _ in range(self._threads):
                self._jobs.put(None)

    def _start(self) -> None:
        number = self._threads + 1
        thread = threading.Thread(target=self._work, name=f"{self._name}_{number}", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError):
            return
        self._threads, self._free = number, self._free + 1

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:  # noqa: BLE001 - whatever a job raises, its thread is needed again
                _log.exception("a job on %s failed", threading.current_thread().name)
            with self._lock:
                self._free += 1
            del job
