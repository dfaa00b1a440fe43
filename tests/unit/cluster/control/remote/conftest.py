"""What the tests of gRPC share: they leave no descriptor to later tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from support.children import descriptors
from support.two_planes import wait_until


@pytest.fixture(autouse=True, scope="module")
def closed() -> Iterator[None]:
    """Wait until gRPC's threads have closed what its servers and clients held.

    These are in reference cycles, and what they held would be closed during a later test.
    """
    before = descriptors()
    yield
    gc.collect()
    # Not in an event loop, which would hold descriptors itself.
    wait_until("gRPC to close its descriptors", lambda: descriptors() <= before)
