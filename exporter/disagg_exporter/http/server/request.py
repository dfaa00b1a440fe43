"""Parses the head of an HTTP/1.1 request, or refuses it with a reason.

Strict where two parsers could disagree about where a request ends (RFC 9112, sections 2.2, 3, 5 and
6.3): behind an authenticating proxy, what is a request's body to one may be a request to the
other.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from http import HTTPStatus

from disagg_exporter.errors import DisaggError
from disagg_exporter.http.deadline_socket import DeadlineSocket

MAX_HEAD_BYTES = 16 * 1024
"""For the request line and headers together."""

MAX_TARGET_BYTES = 8 * 1024
MAX_HEADERS = 100
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_REQUEST_LINE = re.compile(rb"(%s) ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])" % _TOKEN)
_HEADER = re.compile(rb"(%s):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)" % _TOKEN)
_BARE = re.compile(rb"(?<!\r)\n|\r(?!\n|\Z)")
_END = b"\r\n\r\n"
# If one of these were given twice, parsers could read different requests.
_ONCE = ("host", "content-length", "transfer-encoding", "authorization")


class HeadError(DisaggError):
    """A refused request; `status` and the text are the answer."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request without its body.

    `headers` are by lower-case name; values of one name are joined by a comma. `keeps`: the client
    may send another request on the connection. `has_body`: a body follows this head.
    """

    method: str
    target: str
    headers: dict[str, str]
    keeps: bool
    has_body: bool

    def header(self, name: str) -> str:
        """Return a header's value by its lower-case name; empty without it."""
        return self.headers.get(name, "")


def end_of_head(received: bytes | bytearray, searched: int = 0) -> int | None:
    """Return where the body begins, or None if more must be received first.

    The first `searched` bytes were searched in an earlier call, and are not searched again.

    Raises:
        HeadError: This cannot become an acceptable head.
    """
    start = max(0, searched - len(_END) + 1)
    end = received.find(_END, start)
    size = len(received) if end < 0 else end + len(_END)
    if _BARE.search(received, start, size):
        raise _bad("a line ends in CR LF, and neither is used alone")
    if size > MAX_HEAD_BYTES or (end < 0 and size == MAX_HEAD_BYTES):
        raise _too_large(received)
    return None if end < 0 else size


def parse_head(head: bytes) -> RequestHead:
    """Parse a complete head, up to the end that `end_of_head` returns.

    Raises:
        HeadError: It is malformed or ambiguous, or its version or method is not supported.
    """
    # Some clients send an empty line after a request, which then precedes the next.
    head = head.removesuffix(_END).removeprefix(b"\r\n")
    if head.count(b"\r\n") > MAX_HEADERS:
        raise HeadError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too many headers")
    line, *fields = head.split(b"\r\n")
    method, target, minor = _request_line(line)
    headers: dict[str, str] = {}
    for field in fields:
        name, value = _field(field)
        if name in headers:
            if name in _ONCE:
                raise _bad(f"{name} is given twice")
            value = f"{headers[name]}, {value}"
        headers[name] = value
    has_body = _has_body(headers, minor)
    options = [word.strip().lower() for word in headers.get("connection", "").split(",")]
    keeps = minor > 0 and "close" not in options
    return RequestHead(method, target, headers, keeps and not has_body, has_body)


def _request_line(line: bytes) -> tuple[str, str, int]:
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        raise _bad("the first line is not METHOD TARGET HTTP/1.1")
    method, target, major, minor = (part.decode("ascii") for part in match.groups())
    if major != "1":
        raise HeadError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "HTTP/1.1 is spoken here")
    if method not in METHODS:
        raise HeadError(HTTPStatus.NOT_IMPLEMENTED, "no such method")
    if len(target) > MAX_TARGET_BYTES:
        raise HeadError(HTTPStatus.REQUEST_URI_TOO_LONG, "the target is too long")
    return method, target, int(minor)


def _field(field: bytes) -> tuple[str, str]:
    match = _HEADER.fullmatch(field)
    if match is None:
        if field[:1] in (b" ", b"\t"):
            raise _bad("a header goes on in the next line")
        raise _bad("a header is not NAME: VALUE")
    name, value = match.groups()
    return name.decode("ascii").lower(), value.decode("latin-1").rstrip(" \t")


def _has_body(headers: dict[str, str], minor: int) -> bool:
    length, coding = headers.get("content-length"), headers.get("transfer-encoding")
    if coding is not None:
        if length is not None:
            raise _bad("both content-length and transfer-encoding")
        if minor == 0 or coding.lower() != "chunked":
            raise _bad("the only transfer-encoding is chunked, of HTTP/1.1")
        return True
    if length is None:
        return False
    if not (length.isascii() and length.isdigit()):
        raise _bad("content-length is not a number")
    return length.strip("0") != ""


def _too_large(received: bytes | bytearray) -> HeadError:
    if b"\r\n" not in received[:MAX_HEAD_BYTES]:
        return HeadError(HTTPStatus.REQUEST_URI_TOO_LONG, "the target is too long")
    return HeadError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the headers are too large")


def _bad(text: str) -> HeadError:
    return HeadError(HTTPStatus.BAD_REQUEST, text)


# Shared by all readers, for data that is discarded.
_SCRAP = bytearray(65536)


class RequestReader:
    """Reads the heads of a connection's requests in turn."""

    def __init__(self, client: DeadlineSocket) -> None:
        self._client = client
        self._received = bytearray()
        self._searched_bytes = 0

    @property
    def is_amid_head(self) -> bool:
        """Whether a part of a head has been received."""
        return bool(self._received)

    def next_head(self) -> RequestHead | None:
        """Return the next head, if it has been received completely.

        Raises:
            HeadError: The head is not acceptable; nothing more can be read.
        """
        end = end_of_head(self._received, self._searched_bytes)
        if end is None:
            self._searched_bytes = len(self._received)
            return None
        head = bytes(self._received[:end])
        del self._received[:end]
        self._searched_bytes = 0
        return parse_head(head)

    def receive(self, *, waits: bool = True) -> bool:
        """Receive a piece; return False if the client sends no more.

        Raises:
            BlockingIOError: There is nothing now, and `waits` is false.
            OSError: The connection broke, or the deadline passed.
        """
        piece = bytearray(MAX_HEAD_BYTES - len(self._received))
        count = self._client.recv_into(piece, len(piece), _flags(waits=waits))
        self._received += memoryview(piece)[:count]
        return count > 0

    def read_head(self) -> RequestHead | None:
        """Wait for the next head; None if the client ends. Raises as `next_head` and `receive`."""
        while (head := self.next_head()) is None:
            if not self.receive():
                return None
        return head

    def discard(self, *, waits: bool = True) -> int:
        """Receive and drop a piece; return its size, 0 at the end. Raises as `receive`."""
        self._received.clear()
        return self._client.recv_into(_SCRAP, len(_SCRAP), _flags(waits=waits))


def _flags(*, waits: bool) -> int:
    return 0 if waits else socket.MSG_DONTWAIT
