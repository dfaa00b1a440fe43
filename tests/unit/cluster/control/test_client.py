"""What is said where no daemon answers: whether there is one, and what to do."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from disagg_cluster.control import client
from disagg_cluster.control.client import BrokenOffError, NoDaemonError, ask, new_request
from disagg_cluster.control.messages import DaemonStatus, PauseWorkers
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.host.run_dir.lock import RunLock


def test_a_running_daemon_that_does_not_answer_yet_is_not_reported_as_absent(
    folder: Path,
) -> None:
    run = RunFolder(folder)
    with RunLock(run.lock), pytest.raises(NoDaemonError, match="does not answer yet") as there:
        list(ask(run.control, new_request(DaemonStatus())))
    with pytest.raises(NoDaemonError, match="start one with"):
        list(ask(run.control, new_request(DaemonStatus())))

    assert "start one" not in str(there.value)


def test_a_request_to_a_hanging_daemon_times_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any verb."""
    monkeypatch.setattr(client, "answer_seconds", lambda _verb: 0.05)
    path = RunFolder(folder).control
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(str(path))
        silent.listen()
        with pytest.raises(BrokenOffError, match="does not answer in time"):
            list(ask(path, new_request(PauseWorkers())))


def test_a_lack_of_descriptors_is_reported_as_such_and_not_as_an_absent_daemon(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptor_left(*_arguments: int) -> socket.socket:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(client.socket, "socket", no_descriptor_left)
    with pytest.raises(BrokenOffError, match="cannot be asked: Too many open files"):
        list(ask(RunFolder(folder).control, new_request(DaemonStatus())))
