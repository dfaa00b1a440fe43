"""HTTP sessions of commands: `requests`, with one deadline for everything and bounded answers.

`requests` restarts its timeout for every piece that arrives, so a server that sends a byte a second
would block a command for ever; the sockets below it have a deadline instead.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urljoin, urlsplit

import requests
import urllib3
from requests.utils import get_environ_proxies

from disagg_cluster.prometheus.http_client import (
    CLIENT_CERTIFICATE_HINT,
    TransportError,
    not_the_pinned_one,
    why_no_tls,
)
from disagg_cluster.prometheus.session_adapter import SessionAdapter

PAUSES_SECONDS = (0.2, 0.4, 0.8)
"""Default pauses before further attempts."""
_TRANSIENT = (502, 503, 504)
_MOST_REDIRECTS = 10
_READ_BYTES = 64 * 1024
_CUT_OFF = "the answer is cut off"
_HEADERS = {"User-Agent": "disagg-node", "Accept-Encoding": "identity"}
_UNSENDABLE = (requests.exceptions.InvalidHeader, UnicodeEncodeError)
_ERRORS = (
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    OSError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A server's answer; for an error, the part of its body that arrived."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class StreamedResponse:
    """A streamed answer; for an error `body`, for a success `lines` as they arrive.

    Reading `lines` raises `TransportError` where the answer breaks off, or takes too long.
    """

    status: int
    body: bytes
    lines: Iterator[bytes]


class HttpSession:
    """GETs with kept connections, retried with back-off while that may help and time is left.

    A POST is sent once, and its answer read as it arrives.

    Proxies are those of the environment (`HTTP_PROXY`, `HTTPS_PROXY`, `NO_PROXY`), except for
    servers of this machine; nothing else is used from it, neither `.netrc` nor authorities.

    Args:
        headers: Sent along; not to the target of a redirect.
        tls: The client's TLS context; None trusts the machine's authorities.
        server_name: The name in a server's certificate, where that is not its host.
        pinned: The only accepted certificate, in PEM; `tls` trusts it, too.
        pinned_by: The file that contains it.
        pauses_seconds: Pauses before further attempts.
        is_api: Whether redirects are followed, and bodies of errors read.
        sleep: Replaceable for tests.
    """

    def __init__(
        self,
        headers: Mapping[str, str],
        tls: ssl.SSLContext | None = None,
        *,
        server_name: str = "",
        pinned: bytes = b"",
        pinned_by: str = "",
        pauses_seconds: tuple[float, ...] = PAUSES_SECONDS,
        is_api: bool = False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._headers = headers
        self._pinned_by = pinned_by
        self._pauses_seconds = pauses_seconds
        self._is_api = is_api
        self._sleep = sleep
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.headers.clear()
        self._session.headers.update(_HEADERS)
        adapter = SessionAdapter(tls or ssl.create_default_context(), server_name, pinned)
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, adapter)

    def get(self, url: str, deadline_seconds: float, max_bytes: int) -> HttpResponse:
        """Return the answer of a server, also with an error status.

        Raises:
            TransportError: None arrived in time, or an invalid or too large one.
        """
        end_seconds = time.monotonic() + deadline_seconds
        for pause_seconds in (*self._pauses_seconds, None):
            last = pause_seconds is None or time.monotonic() + pause_seconds >= end_seconds
            try:
                response = self._follow(url, end_seconds, max_bytes)
            except TransportError as error:
                if last or not error.transient:
                    raise
            except TimeoutError:
                why = f"no whole answer in {deadline_seconds:g} s"
                raise TransportError(why) from None
            else:
                if last or response.status not in _TRANSIENT:
                    return response
            # After a failure on a kept connection, the next attempt uses a new one.
            self._session.close()
            self._sleep(pause_seconds or 0.0)
        raise AssertionError("the last attempt returns or raises")

    @contextmanager
    def post(
        self, url: str, body: bytes, deadline_seconds: float, max_bytes: int
    ) -> Iterator[StreamedResponse]:
        """Send JSON and yield the answer; leaving early disconnects, which aborts the request.

        Raises:
            TransportError: No answer arrived in time, or an invalid or too large one.
        """
        headers = {**self._headers, "Content-Type": "application/json"}
        too_late = f"no whole answer in {deadline_seconds:g} s"
        try:
            answer = self._send(url, headers, time.monotonic() + deadline_seconds, body)
        except TimeoutError:
            raise TransportError(too_late) from None
        try:
            error_body = b"" if answer.status_code == 200 else self._body(answer, max_bytes)
            lines = self._lines(answer, max_bytes, too_late)
            yield StreamedResponse(answer.status_code, error_body, lines)
        finally:
            answer.close()
            # A kept connection would keep its deadline, too.
            self._session.close()

    def close(self) -> None:
        """Close all connections."""
        self._session.close()

    def _lines(self, answer: requests.Response, max_bytes: int, too_late: str) -> Iterator[bytes]:
        left, rest = max_bytes, b""
        try:
            for part in answer.raw.stream(_READ_BYTES, decode_content=False):
                left -= len(part)
                if left < 0:
                    raise TransportError(f"the answer is larger than {max_bytes} bytes")
                *whole, rest = (rest + part).split(b"\n")
                yield from whole
        except _ERRORS as error:
            late = _is_timeout(list(_causes(error)))
            raise TransportError(too_late if late else _CUT_OFF, answered=True) from None
        yield rest

    def _follow(self, url: str, end_seconds: float, max_bytes: int) -> HttpResponse:
        headers = self._headers
        for _ in range(_MOST_REDIRECTS + 1):
            with self._send(url, headers, end_seconds) as answer:
                to = self._session.get_redirect_target(answer) if self._is_api else None
                if to is None:
                    return HttpResponse(answer.status_code, self._body(answer, max_bytes))
            # Credentials are only meant for the original server.
            url, headers = urljoin(url, to), {}
        raise TransportError("too many redirects", answered=True)

    def _send(
        self, url: str, headers: Mapping[str, str], end_seconds: float, data: bytes | None = None
    ) -> requests.Response:
        try:
            left_seconds = end_seconds - time.monotonic()
            if left_seconds <= 0:
                raise TimeoutError
            with warnings.catch_warnings():
                # `insecure_skip_verify` is what the user asked for.
                warnings.simplefilter("ignore", urllib3.exceptions.InsecureRequestWarning)
                return self._session.request(
                    "GET" if data is None else "POST",
                    url,
                    data=data,
                    headers=dict(headers),
                    timeout=cast(Any, urllib3.Timeout(total=left_seconds)),
                    allow_redirects=False,
                    stream=True,
                    proxies=_proxies(url),
                )
        except _ERRORS as error:
            raise self._explain(error, url) from None

    def _body(self, answer: requests.Response, max_bytes: int) -> bytes:
        if answer.status_code != 200 and not self._is_api:
            return b""
        body = bytearray()
        try:
            for part in answer.raw.stream(_READ_BYTES, decode_content=False):
                body += part
                if len(body) > max_bytes:
                    why = f"the page is larger than {max_bytes} bytes"
                    raise TransportError(why, answered=True)
        except _ERRORS as error:
            if answer.status_code != 200:
                return b""
            if _is_timeout(list(_causes(error))):
                raise TimeoutError from None
            raise TransportError(_CUT_OFF, answered=True) from None
        return bytes(body)

    def _explain(self, error: Exception, url: str) -> Exception:
        """Return the error of a request without an answer, in words without a header's value."""
        causes, parts = list(_causes(error)), urlsplit(url)
        if _is_timeout(causes):
            return TimeoutError()
        system = next((each for each in causes if _is_system_error(each)), None)
        why = getattr(system, "strerror", None)
        if any(isinstance(each, urllib3.exceptions.ProxyError) for each in causes):
            return TransportError(f"its proxy does not answer: {why or 'it refuses'}")
        if isinstance(system, ssl.SSLError) and not isinstance(system, ssl.SSLEOFError):
            return TransportError(why_no_tls(system, self._pinned_by), answered=True)
        if any(isinstance(each, urllib3.exceptions.SSLError) for each in causes) and not system:
            return TransportError(not_the_pinned_one(self._pinned_by), answered=True)
        if isinstance(system, socket.gaierror):
            return TransportError(why or "its name is unknown")
        connected = not any(
            isinstance(each, urllib3.exceptions.NewConnectionError) for each in causes
        )
        if system is not None and connected and parts.scheme == "https":
            # A client without a certificate is disconnected; the reason may get lost on the way.
            reason = getattr(system, "reason", None) or why or "no reason was given"
            text = f"it hung up ({reason}), as a server without TLS does, or one that wants"
            return TransportError(f"{text} {CLIENT_CERTIFICATE_HINT}", answered=True)
        if system is not None:
            return TransportError(why or "closed without an answer", transient=True)
        if any(isinstance(each, http.client.HTTPException) for each in causes):
            return TransportError("the answer is not HTTP", answered=True)
        if any(isinstance(each, _UNSENDABLE) for each in causes):
            return TransportError("a header holds what HTTP does not allow there")
        return TransportError(f"{parts.netloc.rpartition('@')[2]!a} is no host")


def _proxies(url: str) -> dict[str, str]:
    # A proxy meant for the internet must not receive requests to this machine's own servers.
    if not (found := get_environ_proxies(url)):
        return {}
    from disagg_cluster.discovery.finders.own_addresses import is_own_address

    return {} if is_own_address(urlsplit(url).hostname or "") else found


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all its causes: libraries wrap each other's in several ways."""
    yield error
    inner = [*error.args, getattr(error, "reason", None), error.__cause__]
    for each in dict.fromkeys(one for one in inner if isinstance(one, BaseException)):
        yield from _causes(each)


def _is_timeout(causes: list[BaseException]) -> bool:
    ours = (TimeoutError, urllib3.exceptions.ReadTimeoutError)
    return any(isinstance(each, ours) for each in causes)


def _is_system_error(error: BaseException) -> bool:
    """Return whether the kernel or OpenSSL raised it: errors of `requests` are OSErrors, too."""
    return isinstance(error, OSError) and not isinstance(error, requests.RequestException)
