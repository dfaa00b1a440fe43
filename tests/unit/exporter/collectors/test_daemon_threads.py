"""Threads are reused, refused with an error if none starts, and block nothing."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable

import pytest

from disagg_exporter.collectors import (
    DaemonExecutor,
    DaemonThread,
    DaemonThreads,
    NoThreadError,
    daemon_threads,
)

START = next(
    name for name in ("_start_joinable_thread", "_start_new_thread") if hasattr(threading, name)
)
"""How `threading` starts a system thread: the first name since Python 3.13."""


def test_jobs_run_concurrently_up_to_the_limit_and_threads_are_reused() -> None:
    threads = DaemonThreads(2, "test")
    both, third = threading.Barrier(3), threading.Event()
    names: set[str] = set()

    def meet() -> None:
        names.add(threading.current_thread().name)
        both.wait(20)

    for _ in range(3):
        threads.run(meet)
        threads.run(meet)
        both.wait(20)
    threads.run(third.set)
    assert third.wait(20)
    assert names == {"test_1", "test_2"}
    threads.close()


def test_a_job_that_fails_ends_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    threads, done = DaemonThreads(1, "test"), threading.Event()

    def fail() -> None:
        raise ValueError("odd")

    threads.run(fail)
    threads.run(done.set)

    assert done.wait(20)
    assert "a job on test_1 failed" in caplog.text
    threads.close()


def test_a_job_that_gets_no_thread_is_refused_and_never_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, done, ran = DaemonThreads(2, "test"), threading.Event(), []
    with monkeypatch.context() as patch:
        patch.setattr(threading, START, _refused)
        with pytest.raises(NoThreadError):
            threads.run(lambda: ran.append(1))
    threads.run(done.set)

    assert done.wait(20)
    assert ran == []
    threads.close()


def test_a_job_waits_for_a_busy_thread_if_there_are_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, busy, free, done = DaemonThreads(2, "test"), *(threading.Event() for _ in range(3))
    threads.run(lambda: (busy.set(), free.wait(20))[0])
    assert busy.wait(20)
    with monkeypatch.context() as patch:
        patch.setattr(threading, START, _refused)
        threads.run(done.set)
        assert not done.is_set()
        free.set()
        assert done.wait(20)
    threads.close()


def _refused(*_: object, **__: object) -> None:
    raise RuntimeError("can't start new thread")


@pytest.fixture
def stillborn(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Threads that end before their first instruction, as without memory; returns their work."""
    begun: list[Callable[[], None]] = []
    monkeypatch.setattr(daemon_threads, "_FIRST_SIGN_SECONDS", 0.01)
    monkeypatch.setattr(threading, START, lambda work, *_, **__: begun.append(work))
    return begun


def test_a_thread_that_does_not_start_in_time_is_given_up(
    stillborn: list[Callable[[], None]],
) -> None:
    ran: list[int] = []
    thread = DaemonThread(lambda: ran.append(1), "test")
    with pytest.raises(NoThreadError, match="no sign of life"):
        thread.start()
    _thread.start_new_thread(stillborn[0], ())
    assert thread._started.wait(20)
    thread.join(20)

    assert ran == []


def test_a_job_whose_thread_never_starts_is_refused_and_the_next_runs(
    stillborn: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, done = DaemonThreads(1, "test"), threading.Event()
    with pytest.raises(NoThreadError):
        threads.run(done.set)
    monkeypatch.undo()
    threads.run(done.set)

    assert done.wait(20)
    threads.close()


def test_a_job_that_fails_without_memory_to_log_ends_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, done = DaemonThreads(1, "test"), threading.Event()

    def no_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(daemon_threads._log, "exception", no_memory)
    threads.run(no_memory)
    threads.run(done.set)

    assert done.wait(20)
    threads.close()


def test_an_executor_returns_results_and_errors_and_skips_cancelled_jobs() -> None:
    executor = DaemonExecutor(1, "test")
    busy, go_on = threading.Event(), threading.Event()
    ran: list[int] = []
    first = executor.submit(lambda: (busy.set(), go_on.wait(20), 7)[2])
    assert busy.wait(20)
    cancelled = executor.submit(ran.append, 1)
    assert cancelled.cancel()
    failed = executor.submit(divmod, 1, 0)
    go_on.set()

    assert first.result(20) == 7
    with pytest.raises(ZeroDivisionError):
        failed.result(20)
    assert ran == []
    executor.shutdown()
