"""Commands under test do not wait for servers that are not there."""

from __future__ import annotations

import pytest

from disagg_cluster.prometheus.http_session import HttpSession


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """They ask four times, and otherwise pause between for more than a second."""
    monkeypatch.setitem(HttpSession.__init__.__kwdefaults__, "sleep", lambda _seconds: None)
