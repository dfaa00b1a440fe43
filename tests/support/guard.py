"""A proxy before a Prometheus: authenticates, speaks TLS, hangs, or adds warnings."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextlib.contextmanager
def guard(
    url: str,
    shown: str = "",
    tls: ssl.SSLContext | None = None,
    *,
    hold: threading.Event | None = None,
    warnings: Sequence[str] = (),
) -> Iterator[str]:
    """Forward requests to a server; yield the address of the proxy.

    Args:
        url: The server.
        shown: The required Authorization of clients.
        tls: The TLS context, if any.
        hold: Nothing is forwarded before this event.
        warnings: Added to every answer.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    class Guard(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if hold is not None:
                hold.wait(30)
            if shown and self.headers.get("Authorization") != shown:
                self._answer(401, b"Unauthorized")
                return
            try:
                with opener.open(f"{url}{self.path}", timeout=30) as answer:
                    status, body = answer.status, answer.read()
            except urllib.error.HTTPError as error:
                with error:
                    status, body = error.code, error.read()
            if warnings:
                body = json.dumps({**json.loads(body), "warnings": list(warnings)}).encode()
            self._answer(status, body)

        def _answer(self, status: int, body: bytes) -> None:
            with contextlib.suppress(OSError):  # who hung up
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Guard)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
