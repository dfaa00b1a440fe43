"""One demo for all tests here: they take the time that it needs to become what they look at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.running_demo import RunningDemo


@pytest.fixture(scope="session")
def demo() -> Iterator[RunningDemo]:
    """The running demo; its end is the last test, in test_demo.py."""
    running = RunningDemo()
    yield running
    if running.process.poll() is None:
        running.end()
