"""An HTTP server on 127.0.0.1 that keeps its connections, as engines' servers do."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler

from support.http_serving import serving


class NoPage(Exception):  # noqa: N818 what a test says, not what fails
    """Answer 503."""


@contextlib.contextmanager
def page_server(
    answer: Callable[[str], bytes], context: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Answer each path with what `answer` returns for it; yield the root.

    With a context it speaks TLS.
    """

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:  # the standard handler finds it by name
            try:
                status, body = 200, answer(self.path)
            except NoPage:
                status, body = 503, b""
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def handle(self) -> None:
            # Clients that hang up midway are part of many tests.
            with contextlib.suppress(OSError):
                super().handle()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with serving(Answers, context, waits_for_clients=True) as url:
        yield url
