"""One HTTP connection of a client: its requests, one after the other, carried to the site."""

from __future__ import annotations

import logging
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from disagg_exporter.access import Access
from disagg_exporter.limited_socket import Limited
from disagg_exporter.site import PLAIN, Answer, Site

_log = logging.getLogger(__name__)


class ConnectionHandler(BaseHTTPRequestHandler):
    """Serves a connection until its end; `seconds` is the deadline of a request and of silence.

    `access` returns the conditions that hold now: they may change while a connection lasts.

    Raises:
        OSError: The client went away in the middle of an answer, or took it too slowly.
    """

    protocol_version = "HTTP/1.1"
    error_message_format = "%(code)d %(message)s\n"
    error_content_type = PLAIN
    # Head and body are two writes; the second must not wait for the first to be acknowledged.
    disable_nagle_algorithm = True
    connection: Limited

    def __init__(
        self, client: Limited, peer: Any, site: Site, access: Callable[[], Access], seconds: float
    ) -> None:
        self._site = site
        self._access = access
        self._seconds = seconds
        super().__init__(client, peer, None)  # type: ignore[arg-type] # it only keeps the server

    def handle_one_request(self) -> None:
        """Serve one request, from the wait for it to the end of its answer."""
        self.connection.limit(self._seconds)
        super().handle_one_request()

    def _respond(self) -> None:
        self._drop_body()
        access = self._access()
        refusal = access.refusal(self.headers.get("Authorization", ""))
        if refusal is not None:
            self._send(refusal, access.headers)
            return
        accept = ", ".join(self.headers.get_all("Accept", []))
        encodings = ", ".join(self.headers.get_all("Accept-Encoding", []))
        answer = self._site.answer(self.command, self.path, accept, encodings)
        self._send(answer, access.headers)

    # The standard handler finds these by name, so the names are not ours to choose.
    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _respond  # noqa: N815

    def _drop_body(self) -> None:
        """Read what little body there may be: the connection closes after, cleanly or not."""
        length = self.headers.get("Content-Length", "0")
        if length == "0" and "Transfer-Encoding" not in self.headers:
            return
        self.close_connection = True
        if length.isascii() and length.isdigit() and len(length) < 10:
            self.rfile.read(min(int(length), 65536))

    def _send(self, answer: Answer, extra: tuple[tuple[str, str], ...]) -> None:
        self.connection.limit(self._seconds)
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        # What the operator asks for stands in the place of ours.
        for name, value in {**dict(answer.headers), **dict(extra)}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def version_string(self) -> str:
        """Return what the Server header says: nothing an attacker could use."""
        return "disagg-node"

    def log_message(self, format: str, *args: Any) -> None:
        """Log at debug level: a scrape each second is no news."""
        _log.debug("metrics page: " + format, *args)
