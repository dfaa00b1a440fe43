"""A real daemon under a service manager: what it is told, and what the engines do not inherit."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from support.running_node import running_node, wait_for
from support.service_managers import NotifySocket
from support.two_planes import standin_node


def test_a_daemon_reports_its_state_to_the_service_manager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notify = NotifySocket(None)
    monkeypatch.setenv("NOTIFY_SOCKET", notify.address)
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    with running_node(standin_node(tmp_path), tmp_path) as node:
        notify.until("READY=1")
        notify.until("STATUS=2 of 2 workers ready")
        notify.until("WATCHDOG=1")
        daemon = node.process.pid
        engines = Path(f"/proc/{daemon}/task/{daemon}/children").read_text().split()
        for engine in engines:
            environ = Path(f"/proc/{engine}/environ").read_bytes()
            assert b"NOTIFY_SOCKET" not in environ
            assert b"WATCHDOG_" not in environ
        assert len(engines) == 2

        os.kill(daemon, signal.SIGSTOP)
        stat = Path(f"/proc/{daemon}/stat")
        wait_for(
            lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "the daemon to stop"
        )
        notify.waiting()
        assert notify.is_silent(1.5)
        os.kill(daemon, signal.SIGCONT)
        notify.until("WATCHDOG=1")

        os.kill(daemon, signal.SIGHUP)
        while not notify.next().startswith("RELOADING=1\n"):
            pass
        notify.until("READY=1")

        assert node.stop() == 0
        notify.until("STOPPING=1")
    notify.close()
