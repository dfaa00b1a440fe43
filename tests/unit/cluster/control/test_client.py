"""What is said where no daemon answers: whether there is one, and what to do."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from disagg_cluster.control import client
from disagg_cluster.control.client import BrokenOffError, NoDaemonError, ask, new_request
from disagg_cluster.control.messages import DaemonStatus, PauseWorkers
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.host.run_dir.lock import RunLock


def test_a_daemon_that_is_there_and_does_not_answer_yet_is_no_reason_to_start_another(
    folder: Path,
) -> None:
    run = RunFolder(folder)
    with RunLock(run.lock), pytest.raises(NoDaemonError, match="does not answer yet") as there:
        list(ask(run.control, new_request(DaemonStatus())))
    with pytest.raises(NoDaemonError, match="start one with"):
        list(ask(run.control, new_request(DaemonStatus())))

    assert "start one" not in str(there.value)


def test_a_daemon_that_hangs_is_not_waited_for_for_ever(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it was asked for."""
    monkeypatch.setattr(client, "answer_seconds", lambda _verb: 0.05)
    path = RunFolder(folder).control
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(str(path))
        silent.listen()
        with pytest.raises(BrokenOffError, match="does not answer in time"):
            list(ask(path, new_request(PauseWorkers())))
