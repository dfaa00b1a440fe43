"""Client of Prometheus' HTTP API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from disagg_cluster.host.foreign_json import parse_foreign
from disagg_cluster.prometheus.http_client import TransportError
from disagg_exporter.errors import DisaggError

if TYPE_CHECKING:
    import ssl

    from disagg_cluster.prometheus.http_session import HttpSession

_BODY_BYTES = 64 << 20
_OK = 200
_UNAUTHORIZED = (401, 403)
_WARNING_CHARACTERS = 400
_QUOTED_BYTES = 80
_NOT_FINITE = frozenset(("NaN", "+Inf", "-Inf"))
_TOO_MUCH = (
    *("exceed", "too many", "too long", "limit", "larger than"),
    *("timed out", "timeout", "no whole answer"),
)


class PrometheusError(DisaggError):
    """A Prometheus does not answer, or refuses a request; the text says which."""

    @property
    def is_too_much(self) -> bool:
        """Whether the query was too large or too slow: one of a shorter range may succeed."""
        return any(phrase in str(self) for phrase in _TOO_MUCH)


class NoAnswerError(PrometheusError):
    """Nothing answers there."""


@dataclass(frozen=True, slots=True)
class Samples:
    """One series: its labels, and its finite values with the Unix time of each."""

    labels: Mapping[str, str]
    values: tuple[tuple[float, float], ...]


class Prometheus:
    """A client of one Prometheus; close it. Several threads may use it, each by its own connection.

    Args:
        base_url: Its root.
        headers: Sent along, for a server that requires credentials.
        tls: TLS context for https; the machine's authorities are trusted if None.
    """

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str] = MappingProxyType({}),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        # Takes 0.1 s, paid only by commands that make requests.
        from disagg_cluster.prometheus.http_session import HttpSession

        self._url = base_url
        self._connect = partial(HttpSession, headers, tls, is_api=True)
        self._idle_sessions: list[HttpSession] = []

    def renew(self, headers: Mapping[str, str], tls: ssl.SSLContext | None) -> None:
        """Use other credentials, or another TLS context, from the next request on."""
        from disagg_cluster.prometheus.http_session import HttpSession

        self._connect = partial(HttpSession, headers, tls, is_api=True)
        old, self._idle_sessions = self._idle_sessions, []
        while old:
            old.pop().close()

    def close(self) -> None:
        """Close the connections."""
        while self._idle_sessions:
            self._idle_sessions.pop().close()

    def query_range(
        self,
        expr: str,
        start_seconds: float,
        end_seconds: float,
        step_seconds: float,
        deadline_seconds: float = 60.0,
    ) -> list[Samples]:
        """Evaluate `expr` at each step from start to end; steps without a value are left out.

        Raises:
            PrometheusError: No answer in time, an invalid answer, or a bad expression.
        """
        span = {"start": start_seconds, "end": end_seconds, "step": step_seconds}
        parameters = {"query": expr, **{key: f"{value:.3f}" for key, value in span.items()}}
        return self._matrix(self._get("query_range", parameters, deadline_seconds))

    def query_samples(
        self, selector: str, at_seconds: float, deadline_seconds: float = 60.0
    ) -> list[Samples]:
        """Return the stored samples of a range such as `up[5m]` that ends at an instant.

        Raises:
            PrometheusError: As `query_range`.
        """
        parameters = {"query": selector, "time": f"{at_seconds:.3f}"}
        return self._matrix(self._get("query", parameters, deadline_seconds))

    def _get(
        self, endpoint: str, parameters: Mapping[str, str], deadline_seconds: float
    ) -> dict[str, Any]:
        root = self._url.rstrip("/")
        url = f"{root}/api/v1/{endpoint}?{urlencode(parameters)}"
        at_rest = self._idle_sessions
        try:
            session = at_rest.pop()
        except IndexError:
            session = self._connect()
        try:
            response = session.get(url, deadline_seconds, _BODY_BYTES)
        except TransportError as error:
            raise NoAnswerError(f"no answer from {root}: {error}") from None
        finally:
            if at_rest is self._idle_sessions:
                at_rest.append(session)
            else:
                session.close()
        if response.status in _UNAUTHORIZED:
            why = f"({response.status}, {_quoted(response.body)})"
            hint = "--http-config or --header says who asks"
            raise PrometheusError(f"{root} does not let us in {why}; {hint}")
        return self._data(response.status, response.body)

    def _data(self, status: int, body: bytes) -> dict[str, Any]:
        # Prometheus explains a bad expression in the body of its 400.
        try:
            answer = parse_foreign(body, object_hook=_read)
            if answer["status"] == "success":
                if why := _partial(answer):
                    raise PrometheusError(
                        f"{self._url} answers in part only, and sums of it would be too low: {why}"
                    )
                return dict(answer["data"])
            raise PrometheusError(f"{self._url} refuses: {answer['error']}")
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            answered = "" if status == _OK else f"{status}, "
            raise self._invalid_answer(f"{answered}{_quoted(body)}") from error

    def _matrix(self, data: dict[str, Any]) -> list[Samples]:
        try:
            if data["resultType"] != "matrix":
                raise self._invalid_answer(f"a {data['resultType']} is no series over time")
            found = data["result"]
            if not all(isinstance(each, Samples) for each in found):
                raise self._invalid_answer("a series without values")
        except (KeyError, TypeError) as error:
            raise self._invalid_answer(error) from error
        return list(found)

    def _invalid_answer(self, what: object) -> PrometheusError:
        return PrometheusError(f"{self._url} does not answer like a Prometheus: {what}")


def _read(series: dict[str, Any]) -> dict[str, Any] | Samples:
    """Convert the samples of a series as soon as its end is parsed.

    Millions of pairs kept until the end of an answer would be scanned by the garbage collector
    repeatedly, which takes several times as long as parsing them.
    """
    values = series.get("values")
    if not isinstance(values, list):
        return series
    labels = dict(series["metric"])
    if not all(isinstance(each, str) for each in labels.values()):
        raise TypeError("a label that is no text")
    return Samples(labels, tuple((float(t), float(v)) for t, v in values if v not in _NOT_FINITE))


def _quoted(body: bytes) -> str:
    """The begin of a foreign page, on one line."""
    return repr(body[:_QUOTED_BYTES].decode(errors="replace"))


def _partial(answer: Mapping[str, Any]) -> str:
    """Return why an answer is partial, as Thanos and VictoriaMetrics' cluster say; empty if not.

    Prometheus' own warnings are about the expression.
    """
    if answer.get("isPartial"):
        return "some of its stores do not answer (isPartial)"
    series = [
        str(each) for each in answer.get("warnings") or () if not str(each).startswith("PromQL")
    ]
    return "; ".join(series)[:_WARNING_CHARACTERS]
