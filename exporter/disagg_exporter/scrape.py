"""Fetches an engine's metrics page, within a deadline that covers everything."""

from __future__ import annotations

import http.client
import socket
import time
from urllib.parse import SplitResult, urlsplit

from disagg_exporter.errors import DisaggError
from disagg_exporter.limited_socket import LimitedSocket, TooManyBytesError

MAX_PAGE_BYTES = 8 * 1024 * 1024

# Asked for without this, client libraries answer OpenMetrics and rename `vllm:x` to `vllm_x`.
_HEADERS = {"Accept": "text/plain;version=0.0.4", "Connection": "close"}
_HEAD_BYTES = 64 * 1024


class EngineUnreachable(DisaggError):  # noqa: N818 the state of an engine, named as we say it
    """No page from an engine; its text is one line that says why."""


class EngineRefused(EngineUnreachable):
    """Somebody answers there, but not with the page."""


def fetch(url: str, deadline_seconds: float, max_bytes: int = MAX_PAGE_BYTES) -> bytes:
    """Return the body of the page at an `http://` address.

    The deadline covers connecting, sending and every byte of the answer; only the look-up of a
    host *name* is left to the resolver's own patience. Redirects are not followed.

    Raises:
        EngineRefused: The answer is no 200.
        EngineUnreachable: Nothing listens, no whole answer came in time, or it is larger than
            `max_bytes`, or cut off.
    """
    end_seconds = time.monotonic() + deadline_seconds
    try:
        return _get(_http(url), end_seconds, max_bytes)
    except EngineUnreachable as error:
        raise type(error)(f"{url}: {error}") from None
    except TimeoutError:
        raise EngineUnreachable(f"{url}: no whole answer in {deadline_seconds:g} s") from None
    except TooManyBytesError:
        raise EngineUnreachable(f"{url}: {_too_large(max_bytes)}") from None
    except http.client.IncompleteRead:
        raise EngineUnreachable(f"{url}: the answer is cut off") from None
    except http.client.RemoteDisconnected:
        raise EngineUnreachable(f"{url}: the connection was closed without an answer") from None
    except (http.client.HTTPException, ValueError) as error:
        # ValueError: the standard client passes a chunk of negative size on to read().
        why = type(error).__name__
        raise EngineUnreachable(f"{url}: the answer is not HTTP ({why})") from None
    except OSError as error:
        raise EngineUnreachable(f"{url}: {error.strerror or type(error).__name__}") from None


def _http(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        sound = bool(parts.scheme == "http" and parts.hostname) and parts.port != 0
    except ValueError as error:
        raise EngineUnreachable(f"not an address ({error})") from None
    if not sound or not url.isascii() or not url.isprintable() or " " in url:
        raise EngineUnreachable("not an address of the form http://HOST:PORT/PATH")
    return parts


def _get(parts: SplitResult, end_seconds: float, max_bytes: int) -> bytes:
    host, port = parts.hostname or "", parts.port or http.client.HTTP_PORT
    connection = http.client.HTTPConnection(host, port)
    try:
        connection.sock = _connect(host, port, end_seconds, max_bytes + _HEAD_BYTES)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers=_HEADERS)
        # The response owns the connection from here on (it is not kept alive) and must close it.
        with connection.getresponse() as response:
            return _body(response, max_bytes)
    finally:
        connection.close()


def _connect(host: str, port: int, end_seconds: float, max_bytes: int) -> LimitedSocket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise EngineUnreachable(f"{host!a} is not a host name") from None
    failure: OSError = OSError(None, "host has no address")
    for family, kind, protocol, _, address in found:
        sock = LimitedSocket(family, kind, protocol)
        try:
            sock.limit(end_seconds - time.monotonic(), max_bytes)
            sock.connect(address)
        except OSError as error:
            sock.close()
            failure = error
        else:
            return sock
    raise failure


def _body(response: http.client.HTTPResponse, max_bytes: int) -> bytes:
    if response.status != http.client.OK:
        raise EngineRefused(f"answers {response.status} instead of 200")
    if (response.length or 0) > max_bytes:
        raise EngineUnreachable(_too_large(max_bytes))
    body = response.read(max_bytes + 1)
    if len(body) > max_bytes:
        raise EngineUnreachable(_too_large(max_bytes))
    if response.length:
        # read() with a size says nothing of a body that ended before its Content-Length.
        raise http.client.IncompleteRead(body, response.length)
    return body


def _too_large(max_bytes: int) -> str:
    return f"the page is larger than {max_bytes} bytes"
