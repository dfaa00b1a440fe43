"""What all tests share: properties are held however slow the machine is."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from disagg_cluster.host.linear_algebra import one_thread

# Its own limit is 0.2 s an example, which two busy cores exceed now and then. A run of all tests
# tries some examples, each run others; `make test-properties` tries many.
_BUSY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("some", _BUSY, max_examples=25)
settings.register_profile("many", _BUSY, max_examples=1000)
settings.load_profile("some")

pytest_plugins = ["support.leftovers"]

# So that what fails in there shows its values, too.
pytest.register_assert_rewrite("support")


def pytest_sessionstart() -> None:
    """As commands and daemons do; several runs share the machine's cores."""
    one_thread()


def pytest_collection_finish() -> None:
    """What was collected stays until the end: the garbage collector need not look at it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: Unix sockets allow 107 bytes, and pytest's own are long."""
    with tempfile.TemporaryDirectory(prefix="dn-") as name:
        yield Path(name)
