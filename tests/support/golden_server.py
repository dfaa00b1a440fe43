"""The metrics server of the golden node, in this process."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from disagg_exporter.http.listen import ListenAddress
from disagg_exporter.http.server.authentication import OPEN, Access
from disagg_exporter.http.server.node_site import node_site
from disagg_exporter.http.server.routes import Site
from disagg_exporter.http.server.server import Limits, MetricsServer
from support.snapshots import TAKEN_NS, golden_snapshot


def golden_site() -> Site:
    """Return the pages of the golden node."""
    return node_site(golden_snapshot, lambda: "", lambda: 0.0, lambda: TAKEN_NS)


def golden_server(
    access: Access | Callable[[], Access] = OPEN,
    *,
    connections: int = 64,
    client_seconds: float = 5.0,
) -> MetricsServer:
    """Return a server of the golden node, not yet started."""
    return MetricsServer(
        ListenAddress("127.0.0.1", 0),
        golden_site(),
        Limits(connections, client_seconds),
        (lambda: access) if isinstance(access, Access) else access,
    )


@contextlib.contextmanager
def serving(
    access: Access | Callable[[], Access] = OPEN,
    *,
    connections: int = 64,
    client_seconds: float = 5.0,
) -> Iterator[int]:
    """Serve the golden node under conditions; yield the port, and leave no thread behind."""
    server = golden_server(access, connections=connections, client_seconds=client_seconds)
    before = threading.active_count()
    try:
        yield server.start().port
    finally:
        server.close()
        # close() does not wait for a thread that is just ending by itself.
        deadline = time.monotonic() + 20
        while threading.active_count() > before:
            assert time.monotonic() < deadline
