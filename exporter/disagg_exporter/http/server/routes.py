"""The daemon's HTTP answers, independent of the transport, and their HTTP/1.1 encoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Protocol

from disagg_exporter.http.server.request import HeadError
from disagg_exporter.landing.page import POLICY
from disagg_exporter.metrics.page_cache import PageBytes

PLAIN = "text/plain; charset=utf-8"
_PATHS = ("/", "/metrics", "/healthz", "/readyz", "/landing.css", "/landing.js")
_VIEW = "/view.json"
_RECENT = "/recent.json"
_NOT_FOUND = "not found; there is / for people, and /metrics, /healthz, /readyz"
_LANDING_HEADERS = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)


@dataclass(frozen=True, slots=True)
class Response:
    """The status, headers and body of one answer."""

    status: HTTPStatus
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class MetricsPages(Protocol):
    """Makes the metrics page."""

    def page(self, accept: str, *, gzipped: bool) -> PageBytes:
        """Return the page in the format that an Accept header requests."""


class LandingPages(Protocol):
    """Makes the landing page."""

    @property
    def style(self) -> bytes:
        """Its style sheet."""

    @property
    def script(self) -> bytes:
        """Its script."""

    def page(self, why_dead: str, why_not_ready: str) -> str:
        """Return the current page; the two reasons are empty where all is well."""


@dataclass(frozen=True, slots=True)
class Site:
    """The pages. Their health is that of the daemon, never of its engines.

    `why_not_ready` returns an empty text when ready. `heartbeat_age_seconds` returns the time since
    the last round of the daemon's loop; above `dead_seconds` the daemon reports itself dead. `view`
    returns the landing page as JSON, `recent` the devices' recent accounts, if available.
    """

    pages: MetricsPages
    landing: LandingPages
    why_not_ready: Callable[[], str]
    heartbeat_age_seconds: Callable[[], float]
    dead_seconds: float = 10.0
    view: Callable[[], str] | None = None
    recent: Callable[[], str] | None = None

    def answer(self, method: str, target: str, accept: str, accept_encoding: str) -> Response:
        """Return the answer to one request."""
        path = target.partition("?")[0]
        optional = {_VIEW: self.view, _RECENT: self.recent}
        if path not in _PATHS and optional.get(path) is None:
            return _text(HTTPStatus.NOT_FOUND, _NOT_FOUND)
        if method not in ("GET", "HEAD"):
            allowed = (("Allow", "GET, HEAD"),)
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, "GET or HEAD only", allowed)
        match path:
            case "/metrics":
                return self._metrics(accept, accept_encoding)
            case "/healthz":
                return _health(self._why_dead())
            case "/readyz":
                return _health(self.why_not_ready())
            case "/view.json" if self.view is not None:
                return _landing("application/json", self.view().encode())
            case "/recent.json" if self.recent is not None:
                return _landing("application/json", self.recent().encode())
            case "/landing.css":
                return _landing("text/css", self.landing.style)
            case "/landing.js":
                return _landing("text/javascript", self.landing.script)
            case _:
                page = self.landing.page(self._why_dead(), self.why_not_ready())
                return _landing("text/html", page.encode())

    def _metrics(self, accept: str, accept_encoding: str) -> Response:
        page = self.pages.page(accept, gzipped=wants_gzip(accept_encoding))
        coding = (("Content-Encoding", "gzip"),) if page.gzipped else ()
        headers = (("Vary", "Accept, Accept-Encoding"), *coding)
        return Response(HTTPStatus.OK, page.content_type, page.body, headers)

    def _why_dead(self) -> str:
        age_seconds = self.heartbeat_age_seconds()
        if age_seconds <= self.dead_seconds:
            return ""
        return f"the daemon's loop last came round {age_seconds:.1f} s ago"


def wants_gzip(accept_encoding: str) -> bool:
    """Return whether an Accept-Encoding header accepts gzip."""
    for part in accept_encoding.split(","):
        name, _, weight = part.partition(";")
        if name.strip().lower() == "gzip":
            return weight.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _text(status: HTTPStatus, line: str, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    return Response(status, PLAIN, f"{line}\n".encode(), headers)


def _health(why_not: str) -> Response:
    return _text(HTTPStatus.SERVICE_UNAVAILABLE if why_not else HTTPStatus.OK, why_not or "ok")


def _landing(kind: str, body: bytes) -> Response:
    return Response(HTTPStatus.OK, f"{kind}; charset=utf-8", body, _LANDING_HEADERS)


def response_head(
    answer: Response, extra: tuple[tuple[str, str], ...] = (), *, keeps: bool
) -> bytes:
    """Return the status line and headers; `extra` headers replace ours."""
    fields = {
        "Server": "disagg-node",  # no version that an attacker could use
        "Date": formatdate(usegmt=True),
        "Content-Type": answer.content_type,
        "Content-Length": str(len(answer.body)),
        **dict(answer.headers),
        **dict(extra),
    }
    if not keeps:
        fields["Connection"] = "close"
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    status = f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
    return f"{status}{lines}\r\n".encode("latin-1")


def refusal(error: HeadError) -> bytes:
    """Return the complete answer to a refused request."""
    body = f"{error.status.value} {error}\n".encode()
    return response_head(Response(error.status, PLAIN, body), keeps=False) + body
