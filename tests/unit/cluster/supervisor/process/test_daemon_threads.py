"""Threads that are kept, refused aloud, and waited for by nobody."""

from __future__ import annotations

import threading

import pytest

from disagg_cluster.supervisor.process.daemon_threads import DaemonThreads, NoThreadError


def test_jobs_run_side_by_side_up_to_the_limit_and_threads_are_kept() -> None:
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
        patch.setattr(threading.Thread, "start", _refused)
        with pytest.raises(NoThreadError):
            threads.run(lambda: ran.append(1))
    threads.run(done.set)

    assert done.wait(20)
    assert ran == []
    threads.close()


def test_a_job_waits_for_a_thread_that_is_busy_if_no_more_can_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, busy, free, done = DaemonThreads(2, "test"), *(threading.Event() for _ in range(3))
    threads.run(lambda: (busy.set(), free.wait(20))[0])
    assert busy.wait(20)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _refused)
        threads.run(done.set)
        assert not done.is_set()
        free.set()
        assert done.wait(20)
    threads.close()


def _refused(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
