"""One JSON request to a router or engine of this node."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from disagg_cluster.host.foreign_json import parse_foreign
from disagg_exporter.errors import DisaggError
from disagg_exporter.http.deadline_socket import DeadlineSocket

_MOST_BYTES = 4 << 20
_REASON_CHARACTERS = 200


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Leaves a redirect as it is: the key of an engine goes to no other server."""

    def redirect_request(self, *_: object) -> None:
        """Follow none."""


class _Connection(http.client.HTTPConnection):
    """A connection with one deadline for all it does: its timeout does not restart."""

    def connect(self) -> None:
        """Connect, and limit everything after by what is left of the timeout."""
        assert self.timeout is not None
        end_seconds = time.monotonic() + self.timeout
        super().connect()
        limited = DeadlineSocket(fileno=self.sock.detach())
        limited.limit(end_seconds - time.monotonic())
        self.sock = limited


class _Limited(urllib.request.HTTPHandler):
    """Opens plain HTTP by connections with a deadline."""

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Send the request."""
        return self.do_open(_Connection, request)


# The servers are local or close: never use the environment's proxy.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects, _Limited)


class NoResponseError(DisaggError):
    """There was no answer in time; the message names the request and the error."""


@dataclass(frozen=True, slots=True)
class JsonAnswer:
    """The status of an answer and its JSON body; as text if it is not JSON."""

    status: int
    value: Any

    @property
    def ok(self) -> bool:
        """Whether the status is a success."""
        return 200 <= self.status < 300

    def text(self) -> str:
        """A short description for messages."""
        text = self.value if isinstance(self.value, str) else json.dumps(self.value)
        return f"HTTP {self.status}: {text[:_REASON_CHARACTERS]}"


def call(
    method: str,
    url: str,
    body: object = None,
    *,
    timeout_seconds: float,
    api_key: str = "",
) -> JsonAnswer:
    """Send a request, with a JSON body if one is given.

    Over HTTP all of it has `timeout_seconds`, over HTTPS each piece of the answer.

    Raises:
        NoResponseError: No complete HTTP answer arrived in time. Of an error, its status suffices.
    """
    headers = {"Content-Type": "application/json"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers, method=method)
    try:
        with _DIRECT.open(request, timeout=timeout_seconds) as answer:
            return JsonAnswer(answer.status, _value(answer.read(_MOST_BYTES)))
    except urllib.error.HTTPError as error:
        with error:
            return JsonAnswer(error.code, _error_page(error))
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "reason", error)
        raise NoResponseError(f"{method} {url}: {why}") from error


def _error_page(error: urllib.error.HTTPError) -> Any:
    try:
        return _value(error.read(_MOST_BYTES))
    except (OSError, http.client.HTTPException) as broken:
        return f"the page broke off: {broken}"


def _value(text: bytes) -> Any:
    try:
        return parse_foreign(text)
    except ValueError:
        return text.decode(errors="replace")
