"""What a Prometheus answers over its HTTP API."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from disagg_cluster.prometheus.http_client import why_no_tls
from disagg_exporter.errors import DisaggError

if TYPE_CHECKING:
    import ssl

_BODY_BYTES = 64 << 20
_WHO_ARE_YOU = (401, 403)


class PrometheusError(DisaggError):
    """A Prometheus that does not answer, or refuses what it was asked; its text says which."""


class NoAnswerError(PrometheusError):
    """Nobody answers there."""


def query(
    base_url: str, expr: str, deadline_seconds: float = 5.0
) -> list[tuple[dict[str, str], float]]:
    """Evaluate `expr` now: labels and value of each series; a scalar is one without labels.

    Raises:
        PrometheusError: no answer in time, an answer that is none, or a bad expression.
    """
    data = _ask(base_url, "query", {"query": expr}, deadline_seconds, {})
    try:
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        if data["resultType"] == "vector":
            return [(dict(row["metric"]), float(row["value"][1])) for row in data["result"]]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise PrometheusError(f"{base_url} does not answer like a Prometheus: {error}") from error
    raise PrometheusError(f"{expr!r} is a {data['resultType']}: only an instant has one value")


@dataclass(frozen=True, slots=True)
class Samples:
    """One series: its labels, and its values with the Unix time of each; NaN is left out."""

    labels: Mapping[str, str]
    values: tuple[tuple[float, float], ...]


def query_range(
    base_url: str,
    expr: str,
    start_seconds: float,
    end_seconds: float,
    step_seconds: float,
    deadline_seconds: float = 60.0,
    headers: Mapping[str, str] = MappingProxyType({}),
    tls: ssl.SSLContext | None = None,
) -> list[Samples]:
    """Evaluate `expr` at each step from start to end; a step at which it is nothing is left out.

    Raises:
        PrometheusError: no answer in time, an answer that is none, or a bad expression.
    """
    range_ = {"start": start_seconds, "end": end_seconds, "step": step_seconds}
    told = {"query": expr, **{key: f"{value:.3f}" for key, value in range_.items()}}
    return _matrix(_ask(base_url, "query_range", told, deadline_seconds, headers, tls), base_url)


def query_samples(
    base_url: str,
    selector: str,
    at_seconds: float,
    deadline_seconds: float = 60.0,
    headers: Mapping[str, str] = MappingProxyType({}),
    tls: ssl.SSLContext | None = None,
) -> list[Samples]:
    """The samples as they were stored, of a range such as `up[5m]` that ends at an instant.

    Raises:
        PrometheusError: as `query_range`.
    """
    told = {"query": selector, "time": f"{at_seconds:.3f}"}
    return _matrix(_ask(base_url, "query", told, deadline_seconds, headers, tls), base_url)


def _ask(
    base_url: str,
    what: str,
    told: Mapping[str, str],
    deadline_seconds: float,
    headers: Mapping[str, str],
    tls: ssl.SSLContext | None = None,
) -> dict[str, Any]:
    url = f"{base_url.rstrip('/')}/api/v1/{what}?{urllib.parse.urlencode(told)}"
    return _data(_get(url, deadline_seconds, headers, tls), base_url)


def _matrix(data: dict[str, Any], base_url: str) -> list[Samples]:
    try:
        if data["resultType"] != "matrix":
            raise PrometheusError(f"a {data['resultType']} is no series over time")
        return [
            Samples(
                dict(row["metric"]),
                tuple((float(t), float(v)) for t, v in row["values"] if v != "NaN"),
            )
            for row in data["result"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise PrometheusError(f"{base_url} does not answer like a Prometheus: {error}") from error


def _get(
    url: str, deadline_seconds: float, headers: Mapping[str, str], tls: ssl.SSLContext | None
) -> bytes:
    # A proxy meant for the internet must not see what goes to the node's own Prometheus.
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if tls is not None:
        handlers.append(urllib.request.HTTPSHandler(context=tls))
    opener, root = urllib.request.build_opener(*handlers), url.partition("/api/")[0]
    try:
        request = urllib.request.Request(url)
        for name, value in headers.items():
            # Whoever we are redirected to is not told who we are.
            request.add_unredirected_header(name, value)
        with opener.open(request, timeout=deadline_seconds) as answer:
            return bytes(answer.read(_BODY_BYTES))
    except urllib.error.HTTPError as error:
        # Prometheus explains a bad expression in the body of its 400.
        with error:
            body = _rest_of(error)
        if error.code in _WHO_ARE_YOU:
            told = f"({error.code}, {body[:80]!r}); --http-config or --header says who asks"
            raise PrometheusError(f"{root} does not let us in {told}") from None
        return body
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        why = _tls_fault(reason) or getattr(reason, "strerror", None) or reason
        raise NoAnswerError(f"no answer from {root}: {why}") from error


def _rest_of(error: urllib.error.HTTPError) -> bytes:
    """What comes of the body of an error: of one that is cut off or stalls, nothing."""
    try:
        return bytes(error.read(_BODY_BYTES))
    except (OSError, http.client.HTTPException):
        return b""


def _tls_fault(reason: object) -> str:
    """Why TLS does not come about; empty for another reason."""
    import ssl

    return why_no_tls(reason) if isinstance(reason, ssl.SSLError) else ""


def _data(body: bytes, base_url: str) -> dict[str, Any]:
    try:
        answer = json.loads(body)
        if answer["status"] == "success":
            return dict(answer["data"])
        raise PrometheusError(f"{base_url} refuses: {answer['error']}")
    except (KeyError, TypeError, ValueError) as error:
        raise PrometheusError(
            f"{base_url} does not answer like a Prometheus: {body[:80]!r}"
        ) from error
