"""One HTTP exchange: the encoded request, and its response, parsed as it arrives."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from disagg_exporter.http.client.unreachable import ResponseError
from disagg_exporter.http.tls_errors import TlsFault

if TYPE_CHECKING:
    from disagg_exporter.http.client.tls_client import ClientTls

Address = tuple[socket.AddressFamily, Any]
"""A server's address, as the socket module expects it."""

# A head is parsed again with every piece, and each chunk has a fixed cost: engines' heads have some
# hundred bytes, their pages some hundred chunks.
MAX_HEAD_BYTES = 16 * 1024
_MAX_BETWEEN_BYTES = 256 * 1024

_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: [^\r\n]*)?")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;.*)?")
_NOT_HTTP = "the answer is not HTTP"
_MAX_LINE_BYTES = 1024
_UNTIL_CLOSED = -1
# A TLS record: an alert, or part of a handshake.
_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A GET request.

    `key` names its owner, which has one request at a time and keeps the connection for the next.
    `addresses` are the server's, tried in turn. `deadline_seconds` covers connecting, sending and
    every byte of the response. `bearer` is a token that the server requires. `tls` holds the TLS
    settings; None for plain HTTP.
    """

    key: str
    url: str
    addresses: tuple[Address, ...]
    deadline_seconds: float
    bearer: str = field(default="", repr=False)
    tls: ClientTls | None = field(default=None, repr=False)

    @property
    def host(self) -> str:
        """The server's host name or address."""
        return urlsplit(self.url).hostname or ""

    def encoded(self, *, keep: bool) -> bytes:
        """Return the encoded request; `keep` asks the server to keep the connection open."""
        parts = urlsplit(self.url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        authorization = f"Authorization: Bearer {self.bearer}\r\n" if self.bearer else ""
        # Without `Accept`, client libraries respond with OpenMetrics and rename `vllm:x`.
        return (
            f"GET {path} HTTP/1.1\r\nHost: {parts.netloc.rpartition('@')[2]}\r\n"
            "Accept: text/plain;version=0.0.4\r\nAccept-Encoding: identity\r\n"
            f"{authorization}Connection: {'keep-alive' if keep else 'close'}\r\n\r\n"
        ).encode("latin-1")


@dataclass(frozen=True, slots=True)
class FetchResult:
    """The result of a request: the page, or an error.

    The error is an `EngineUnreachable`, or an unexpected exception.
    """

    request: FetchRequest
    page: bytes | Exception


class ResponseParser:
    """Parses the response to one GET. `status` is 0 until its head has arrived.

    Args:
        max_bytes: The largest accepted body.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._taken_bytes = 0
        self._rest = b""
        self._parts: list[bytes] = []
        self._size = 0
        self._left = _UNTIL_CLOSED
        self._chunked = self._after_chunk = self._in_trailer = False
        self._chunk_left = self._between_bytes = 0
        self.status = 0
        self.keeps_open = False
        """Whether the connection can be used for another request."""

    @property
    def begun(self) -> bool:
        """Whether any byte has arrived."""
        return self._taken_bytes > 0

    @property
    def body(self) -> bytes:
        """The part of the body that has arrived."""
        return b"".join(self._parts)

    def feed(self, data: bytes) -> bool:
        """Add the next bytes; return True if the response is complete, or its status is not 200.

        Raises:
            ResponseError: The response is not HTTP, or too large.
        """
        self._taken_bytes += len(data)
        while not self.status:
            head, end, data = (self._rest + data).partition(b"\r\n\r\n")
            if head[:2] in _TLS_RECORDS:
                raise ResponseError("the answer is TLS", TlsFault.TLS_WANTED)
            if not _may_begin(head) or len(head) > MAX_HEAD_BYTES:
                raise ResponseError(_NOT_HTTP)
            if not end:
                self._rest = head
                return False
            self._rest = b""
            self._read_head(head)
            self._check_size()
        self._check_size()
        if self.status != 200:
            self.keeps_open = False
            return True
        return self._feed_chunks(data) if self._chunked else self._feed_plain(data)

    def end(self) -> None:
        """Handle the end of the connection; the response is complete if this returns.

        Raises:
            ResponseError: It is not complete.
        """
        if not self.begun:
            raise ResponseError("the connection was closed without an answer", TlsFault.HUNG_UP)
        if not self.status or self._chunked or self._left != _UNTIL_CLOSED:
            raise ResponseError("the answer is cut off")

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        match = _STATUS.fullmatch(first)
        if match is None:
            raise ResponseError(_NOT_HTTP)
        status = int(match[2])
        if status < 200:
            return  # such as 100 Continue: the final response follows
        self.keeps_open = match[1] == b"1"
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon:
                raise ResponseError(_NOT_HTTP)
            self._read_field(name.lower(), value.strip(b" \t").lower())
        if self._left == _UNTIL_CLOSED and not self._chunked:
            self.keeps_open = False
        self.status = status

    def _read_field(self, name: bytes, value: bytes) -> None:
        if name == b"connection" and b"close" in value:
            self.keeps_open = False
        elif name == b"transfer-encoding":
            if value != b"chunked":
                raise ResponseError("the answer is encoded in a way that was not asked for")
            self._chunked = True
        elif name == b"content-length":
            if not value.isdigit() or len(value) > 18:
                raise ResponseError(_NOT_HTTP)
            if self._left not in (_UNTIL_CLOSED, int(value)):
                raise ResponseError(_NOT_HTTP)
            self._left = int(value)

    def _feed_plain(self, data: bytes) -> bool:
        if self._left == _UNTIL_CLOSED:
            self._keep(data)
            return False
        if self._size + self._left > self._max_bytes:
            raise self._too_large()
        if len(data) > self._left:
            # More than announced: the state of the connection is unknown.
            self.keeps_open, data = False, data[: self._left]
        self._left -= len(data)
        self._keep(data)
        return self._left == 0

    def _feed_chunks(self, data: bytes) -> bool:
        data, at = self._rest + data, 0
        while True:
            part = data[at : at + self._chunk_left]
            self._keep(part)
            at, self._chunk_left = at + len(part), self._chunk_left - len(part)
            end = -1 if self._chunk_left else data.find(b"\r\n", at)
            if end < 0:
                break
            line, at = data[at:end], end + 2
            if self._feed_line(line):
                self.keeps_open = self.keeps_open and at == len(data)
                return True
        self._rest = data[at:]
        if len(self._rest) > _MAX_LINE_BYTES:
            raise ResponseError(_NOT_HTTP)
        return False

    def _feed_line(self, line: bytes) -> bool:
        """Parse a line between chunks; return whether it is the last of the response."""
        self._between_bytes += len(line) + 2
        if self._between_bytes > _MAX_BETWEEN_BYTES:
            raise ResponseError("the answer comes in too many pieces")
        if self._in_trailer:
            return not line
        if self._after_chunk:
            if line:
                raise ResponseError(_NOT_HTTP)
            self._after_chunk = False
            return False
        match = _CHUNK.fullmatch(line)
        if match is None:
            raise ResponseError(_NOT_HTTP)
        self._chunk_left = int(match[1], 16)
        if self._size + self._chunk_left > self._max_bytes:
            raise self._too_large()
        self._after_chunk, self._in_trailer = self._chunk_left > 0, self._chunk_left == 0
        return False

    def _check_size(self) -> None:
        """Limit all bytes, not only the body: a server may send endless heads or empty chunks."""
        if self._taken_bytes > self._max_bytes + MAX_HEAD_BYTES:
            raise self._too_large()

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._max_bytes:
            raise self._too_large()
        if part:
            self._parts.append(part)

    def _too_large(self) -> ResponseError:
        return ResponseError(f"the page is larger than {self._max_bytes} bytes")


def _may_begin(text: bytes) -> bool:
    """Return whether an HTTP response may begin with this."""
    return b"HTTP/1.".startswith(text[:7])
