"""An HTTP server on 127.0.0.1 that keeps its connections, as engines' servers do."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class NoPage(Exception):  # noqa: N818 what a test says, not what fails
    """Answer 503."""


@contextlib.contextmanager
def page_server(answer: Callable[[str], bytes]) -> Iterator[str]:
    """Answer each path with what `answer` returns for it; yield the root."""

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

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
