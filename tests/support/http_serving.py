"""A server of the standard library on a free port of 127.0.0.1, on a thread, while a block runs."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextlib.contextmanager
def serving(
    handler: type[BaseHTTPRequestHandler],
    context: ssl.SSLContext | None = None,
    *,
    waits_for_clients: bool = False,
) -> Iterator[str]:
    """Serve until the block ends; yield the root, without a slash.

    With a context it speaks TLS. With `waits_for_clients` it ends when all have hung up.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = not waits_for_clients
    if context is not None:
        # The connection's thread does the handshake: one that hangs must not delay the others.
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http{'s' if context else ''}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
