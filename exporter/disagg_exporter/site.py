"""What the daemon answers over HTTP, whatever carries it: the page, its health, a way in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from http import HTTPStatus

import disagg_exporter
from disagg_exporter.page_cache import PageCache

PLAIN = "text/plain; charset=utf-8"
_HTML = "text/html; charset=utf-8"

_LANDING = """\
<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>disagg-node</title></head>
<body>
<h1>disagg-node {version}</h1>
<p>GPU-seconds of LLM inference on this node, by phase.</p>
<ul>
<li><a href="/metrics">/metrics</a>: everything known now, for Prometheus</li>
<li><a href="/healthz">/healthz</a>: whether the daemon itself is alive{health}</li>
<li><a href="/readyz">/readyz</a>: whether it has begun to measure{readiness}</li>
</ul>
</body>
</html>
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, headers and body of one answer."""

    status: HTTPStatus
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Site:
    """The pages. They speak for the daemon, never for its engines.

    `why_not_ready` returns an empty text when ready. `heartbeat_age_seconds` is how long ago
    the daemon's loop last came round; past `dead_seconds` the daemon calls itself dead.
    """

    pages: PageCache
    why_not_ready: Callable[[], str]
    heartbeat_age_seconds: Callable[[], float]
    dead_seconds: float = 10.0

    def answer(self, method: str, target: str, accept: str, accept_encoding: str) -> Answer:
        """Return the answer to one request."""
        path = target.partition("?")[0]
        if path not in ("/", "/metrics", "/healthz", "/readyz"):
            return _text(HTTPStatus.NOT_FOUND, "not found; there is /metrics, /healthz, /readyz")
        if method not in ("GET", "HEAD"):
            allowed = (("Allow", "GET, HEAD"),)
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, "GET or HEAD only", allowed)
        if path == "/metrics":
            return self._metrics(accept, accept_encoding)
        if path == "/":
            return self._landing()
        why = self._why_dead() if path == "/healthz" else self.why_not_ready()
        return _text(HTTPStatus.SERVICE_UNAVAILABLE if why else HTTPStatus.OK, why or "ok")

    def _metrics(self, accept: str, accept_encoding: str) -> Answer:
        page = self.pages.page(accept, gzipped=wants_gzip(accept_encoding))
        coding = (("Content-Encoding", "gzip"),) if page.gzipped else ()
        headers = (("Vary", "Accept, Accept-Encoding"), *coding)
        return Answer(HTTPStatus.OK, page.content_type, page.body, headers)

    def _why_dead(self) -> str:
        age_seconds = self.heartbeat_age_seconds()
        if age_seconds <= self.dead_seconds:
            return ""
        return f"the daemon's loop last came round {age_seconds:.1f} s ago"

    def _landing(self) -> Answer:
        dead, unready = self._why_dead(), self.why_not_ready()
        body = _LANDING.format(
            version=escape(disagg_exporter.__version__),
            health=escape(f" (no: {dead})" if dead else " (yes)"),
            readiness=escape(f" (no: {unready})" if unready else " (yes)"),
        )
        return Answer(HTTPStatus.OK, _HTML, body.encode())


def wants_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header names gzip, and not only to refuse it."""
    for part in accept_encoding.split(","):
        name, _, weight = part.partition(";")
        if name.strip().lower() == "gzip":
            return weight.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _text(status: HTTPStatus, line: str, headers: tuple[tuple[str, str], ...] = ()) -> Answer:
    return Answer(status, PLAIN, f"{line}\n".encode(), headers)
