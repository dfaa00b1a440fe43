"""Valid and invalid answers of a Prometheus."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

from disagg_cluster.prometheus.prometheus_api import (
    Prometheus,
    PrometheusError,
    Samples,
)
from support.certificates import client_context, server_context
from support.collected import is_collected_in_json

Client = Callable[..., Prometheus]


class Stub(BaseHTTPRequestHandler):
    """Answers each expression with the status and body in `answers`."""

    answers: ClassVar[dict[str, tuple[int, str]]] = {}
    asked: ClassVar[list[tuple[str, dict[str, str], str | None]]] = []

    def do_GET(self) -> None:
        if self.path.startswith("/elsewhere"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/elsewhere"))
            self.end_headers()
            return
        url = urlsplit(self.path)
        told = {key: value for key, [value] in parse_qs(url.query).items()}
        self.asked.append((url.path, told, self.headers.get("X-Scope-OrgID")))
        expr = told["query"]
        if expr == "mine" and self.headers.get("Authorization") != "Basic bWU6czNjcmV0":
            expr = "not yours"
        status, body = self.answers[expr]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def prometheus() -> Iterator[Client]:
    """Makes clients, and closes them at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(
            contextlib.closing(Prometheus(*args, **kwargs))
        )


def success(kind: str, result: object) -> tuple[int, str]:
    return 200, json.dumps({"status": "success", "data": {"resultType": kind, "result": result}})


def partial(key: str, value: object) -> tuple[int, str]:
    data = {"resultType": "matrix", "result": []}
    return 200, json.dumps({"status": "success", key: value, "data": data})


@pytest.fixture
def base_url() -> Iterator[str]:
    Stub.answers = {
        "up": success("vector", [{"metric": {"job": "a"}, "value": [1.5, "1"]}]),
        "up[1m]": success("matrix", []),
        "over time": success(
            "matrix",
            [
                {
                    "metric": {"job": "a"},
                    "values": [[60, "1.5"], [120, "NaN"], [180, "2"], [240, "+Inf"], [300, "-Inf"]],
                }
            ],
        ),
        "odd over time": success("matrix", [{"metric": {}, "values": [[1]]}]),
        "a label": success("matrix", [{"metric": {"values": "a"}, "values": [[60, "1"]]}]),
        "no values": success("matrix", [{"metric": {}}]),
        "a label of 5": success("matrix", [{"metric": {"job": 5}, "values": [[60, "1"]]}]),
        "a time of 400 digits": success("matrix", [{"metric": {}, "values": [[10**400, "1"]]}]),
        "deeply nested": (200, "[" * 100_000),
        "sum(": (400, '{"status":"error","errorType":"bad_data","error":"parse error: unclosed"}'),
        "html": (200, "<html>"),
        "gone": (404, "<html>"),
        "half": partial("warnings", ["store east: connection refused", "store west: the same"]),
        "half of VictoriaMetrics": partial("isPartial", True),
        "odd rate": partial("warnings", ["PromQL info: metric might not be a counter"]),
        "mine": success("matrix", []),
        "not yours": (401, "Unauthorized"),
    }
    Stub.asked = []
    with served() as port:
        yield f"http://127.0.0.1:{port}/"


@contextlib.contextmanager
def served(tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Serve the stub; yield its port."""
    server = HTTPServer(("127.0.0.1", 0), Stub)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_unreachable_address_is_reported(prometheus: Client) -> None:
    with pytest.raises(
        PrometheusError, match=r"no answer from http://127.0.0.1:1: Connection refused"
    ):
        prometheus("http://127.0.0.1:1").query_range("up", 0, 60, 60, 1.0)


def test_an_invalid_base_url_is_a_prometheus_error(prometheus: Client) -> None:
    with pytest.raises(PrometheusError, match="no answer from"):
        prometheus("localhost").query_range("up", 0, 60, 60)


def test_a_range_gives_the_finite_values_with_their_times(
    base_url: str, prometheus: Client
) -> None:
    found = prometheus(base_url, {"X-Scope-OrgID": "me"}).query_range("over time", 60, 180, 60)

    assert found == [Samples({"job": "a"}, ((60.0, 1.5), (180.0, 2.0)))]
    steps = {"start": "60.000", "end": "180.000", "step": "60.000"}
    assert Stub.asked == [("/api/v1/query_range", {"query": "over time", **steps}, "me")]


def test_a_label_may_be_called_values(base_url: str, prometheus: Client) -> None:
    found = prometheus(base_url).query_range("a label", 60, 60, 60)

    assert found == [Samples({"values": "a"}, ((60.0, 1.0),))]


def test_stored_samples_are_queried_at_an_instant(base_url: str, prometheus: Client) -> None:
    assert prometheus(base_url).query_samples("up[1m]", 90.5) == []
    assert Stub.asked == [("/api/v1/query", {"query": "up[1m]", "time": "90.500"}, None)]


@pytest.mark.parametrize(
    ("expr", "said"),
    [
        ("sum(", "refuses: parse error: unclosed"),
        ("up", "a vector is no series over time"),
        ("html", "does not answer like a Prometheus: '<html>'"),
        ("gone", "does not answer like a Prometheus: 404, '<html>'"),
        ("half", r"in part only, and sums of it would be too low: store east: .*; store west"),
        ("half of VictoriaMetrics", r"in part only, .*: some of its stores do not answer"),
        ("odd over time", "does not answer like a Prometheus"),
        ("no values", "does not answer like a Prometheus"),
        ("a label of 5", "does not answer like a Prometheus"),
        ("a time of 400 digits", "does not answer like a Prometheus"),
        ("deeply nested", "does not answer like a Prometheus"),
    ],
)
def test_an_answer_without_series_is_reported_with_its_reason(
    base_url: str, expr: str, said: str, prometheus: Client
) -> None:
    def ask() -> None:
        with pytest.raises(PrometheusError, match=said):
            prometheus(base_url).query_range(expr, 0, 60, 60)

    # Where it is nested, nothing can be finalized.
    assert not is_collected_in_json(ask)


def test_warnings_about_an_expression_do_not_invalidate_its_answer(
    base_url: str, prometheus: Client
) -> None:
    assert prometheus(base_url).query_range("odd rate", 0, 60, 60) == []


def test_several_threads_may_query_at_once(base_url: str, prometheus: Client) -> None:
    client = prometheus(base_url)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(client.query_range, "over time", 60, 180, 60) for _ in range(40)]
        found = [each.result() for each in asked]

    assert all(each == found[0] != [] for each in found)


def test_credentials_are_sent(base_url: str, prometheus: Client) -> None:
    me = {"Authorization": "Basic bWU6czNjcmV0"}

    assert prometheus(base_url, me).query_range("mine", 0, 60, 60) == []
    with pytest.raises(PrometheusError, match=r"not let us in \(401, 'Unauth.*--http-config"):
        prometheus(base_url).query_range("mine", 0, 60, 60)


def test_credentials_are_not_sent_to_redirect_targets(base_url: str, prometheus: Client) -> None:
    me = {"Authorization": "Basic bWU6czNjcmV0", "X-Scope-OrgID": "me"}

    with pytest.raises(PrometheusError, match="does not let us in"):
        prometheus(f"{base_url}elsewhere", me).query_range("mine", 0, 60, 60)
    assert [tenant for _, _, tenant in Stub.asked] == [None]


@pytest.mark.usefixtures("base_url")
def test_tls_uses_the_given_context(
    prometheus: Client,
) -> None:
    with served(server_context()) as port:
        url = f"https://127.0.0.1:{port}"

        assert prometheus(url, tls=client_context()).query_samples("up[1m]", 90.5) == []
        with pytest.raises(PrometheusError, match="its certificate is not trusted"):
            prometheus(url).query_samples("up[1m]", 90.5)


def test_renewed_credentials_are_used(base_url: str, prometheus: Client) -> None:
    client = prometheus(base_url)
    with pytest.raises(PrometheusError, match="does not let us in"):
        client.query_range("mine", 0, 60, 60)

    client.renew({"Authorization": "Basic bWU6czNjcmV0"}, None)

    assert client.query_range("mine", 0, 60, 60) == []
