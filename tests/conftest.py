"""What all tests share: properties are held however slow the machine is."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Its own limit is 0.2 s an example, which two busy cores exceed now and then.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

pytest_plugins = ["support.leftovers"]

# So that what fails in there shows its values, too.
pytest.register_assert_rewrite("support")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: Unix sockets allow 107 bytes, and pytest's own are long."""
    with tempfile.TemporaryDirectory(prefix="dn-") as name:
        yield Path(name)
