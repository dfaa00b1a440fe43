"""Commands under test neither wait for absent servers nor report how long they have taken."""

from __future__ import annotations

import pytest

from disagg_cluster.cli.planning.progress import Progress
from disagg_cluster.prometheus.http_session import HttpSession


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """They ask four times, and otherwise pause between for more than a second."""
    monkeypatch.setitem(HttpSession.__init__.__kwdefaults__, "sleep", lambda _seconds: None)


@pytest.fixture(autouse=True)
def _no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a command may take longer than the ten seconds after which it says so."""
    monkeypatch.setitem(Progress.__init__.__kwdefaults__, "every_seconds", 3600.0)
