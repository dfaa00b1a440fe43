"""Past load from a real Prometheus that is guarded, limited, slow or away: a load or a reason."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import requests

from disagg_cluster.cli.prometheus_access import access_of
from disagg_cluster.planner.history.history_request import HistoryRequest
from disagg_cluster.planner.history.load_history import LoadHistory
from disagg_cluster.planner.history.prometheus_history import NoPastLoadError, PrometheusHistory
from disagg_cluster.prometheus.prometheus_api import NoAnswerError, Prometheus, PrometheusError
from support.backfill import Past, openmetrics, prometheus_with
from support.certificates import server_context, write_files
from support.children import free_port
from support.guard import guard

pytestmark = pytest.mark.prometheus

HOUR = 3600
HOURS = 6
RECORDED = "cluster_model_namespace:disagg_phase_tokens:rate1m"
OWNER = {"cluster": "east", "model_name": "llama", "engine_namespace": ""}


@pytest.fixture(scope="module")
def start() -> int:
    """When the past begins."""
    return int(time.time()) // HOUR * HOUR - (HOURS + 2) * HOUR


@pytest.fixture(scope="module")
def past(start: int) -> str:
    """Six hours of what two nodes counted every six minutes, and of a load that was recorded."""
    seldom = [
        Past(
            "disagg_node_phase_tokens_total",
            {**OWNER, "cluster": "seldom", "node": name, "role": "mixed", "phase": "decode"},
            lambda t: float(t),
        )
        for name in ("a", "b")
    ]
    recorded = [
        Past(RECORDED, {**OWNER, "phase": phase}, lambda t, s=size: s * (1.0 + t % 7))
        for phase, size in (("prefill", 100.0), ("decode", 10.0))
    ]
    every_minute = openmetrics(recorded, range(start + 7, start + HOURS * HOUR, 60))
    every_six = openmetrics(seldom, range(start, start + HOURS * HOUR, 360))
    return every_minute.removesuffix("# EOF\n") + every_six


@pytest.fixture(scope="module")
def url(past: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with prometheus_with(past, tmp_path_factory.mktemp("limits")) as running:
        yield running


def read(url: str, request: HistoryRequest, config: Path | None = None) -> list[LoadHistory]:
    access = access_of(url, (), config)
    with closing(Prometheus(access.url, access.headers, access.tls)) as prometheus:
        return PrometheusHistory(prometheus).read(request)


def of_east(start: int) -> HistoryRequest:
    return HistoryRequest(start, start + HOURS * HOUR, cluster="east")


def test_a_query_over_the_sample_limit_is_split_into_parts(
    url: str, past: str, start: int, tmp_path: Path
) -> None:
    """A query may load 200 samples; the range has 360 steps of two series."""
    (whole,) = read(url, of_east(start))
    with prometheus_with(past, tmp_path, "--query.max-samples=200") as limited:
        (found,) = read(limited, of_east(start))

    assert whole.output_tokens.known == HOURS * 60
    np.testing.assert_array_equal(found.output_tokens.values, whole.output_tokens.values)
    np.testing.assert_array_equal(found.prompt_tokens.values, whole.prompt_tokens.values)


def test_a_sample_limit_too_small_for_any_part_is_reported(
    past: str, start: int, tmp_path: Path
) -> None:
    with (
        prometheus_with(past, tmp_path, "--query.max-samples=3") as limited,
        pytest.raises(PrometheusError, match="refuses: query processing would load too many"),
    ):
        read(limited, of_east(start))


def test_nodes_scraped_too_seldom_are_reported_and_not_taken_for_no_load(
    url: str, start: int
) -> None:
    request = HistoryRequest(start, start + HOURS * HOUR, cluster="seldom")

    with pytest.raises(NoPastLoadError, match="scrape the nodes at least every two minutes"):
        read(url, request)


@pytest.mark.parametrize(
    ("shown", "config"),
    [
        (
            "Basic " + base64.b64encode(b"planner:a word").decode(),
            "basic_auth: {username: planner, password_file: word}",
        ),
        ("Bearer a-token", "authorization: {credentials: a-token}"),
    ],
    ids=["basic", "bearer"],
)
def test_a_protected_prometheus_is_read_over_tls_with_credentials(
    url: str, start: int, shown: str, config: str, tmp_path: Path
) -> None:
    (whole,) = read(url, of_east(start))
    trust = "tls_config: {ca_file: ca.pem}\n"
    write_files(tmp_path, {"good.yml": trust + config, "bad.yml": trust, "word": "a word\n"})
    with guard(url, shown, server_context()) as guarded:
        (found,) = read(guarded, of_east(start), tmp_path / "good.yml")

        np.testing.assert_array_equal(found.output_tokens.values, whole.output_tokens.values)
        with pytest.raises(PrometheusError, match=r"does not let us in \(401.*--http-config"):
            read(guarded, of_east(start), tmp_path / "bad.yml")


def test_a_refused_connection_is_reported_with_its_address(start: int) -> None:
    address = f"http://127.0.0.1:{free_port()}"

    with pytest.raises(NoAnswerError, match=f"no answer from {address}: Connection refused"):
        read(address, of_east(start))


def test_a_hanging_server_is_waited_for_no_longer_than_the_deadline(url: str, start: int) -> None:
    at_last = Event()
    with guard(url, hold=at_last) as hanging, closing(Prometheus(hanging)) as prometheus:
        history = PrometheusHistory(prometheus, deadline_seconds=0.2, read_seconds=0.6)
        with pytest.raises(NoAnswerError, match=r"no whole answer in 0\.\d+ s|within 0.6 s"):
            history.read(of_east(start))
        at_last.set()


def test_a_partial_answer_is_refused(url: str, start: int) -> None:
    """As Thanos answers while one of its stores is unavailable."""
    with (
        guard(url, warnings=["store 10.0.0.7:10901: connection refused"]) as partial,
        pytest.raises(PrometheusError, match=r"in part only.*store 10\.0\.0\.7:10901"),
    ):
        read(partial, of_east(start))


def test_the_test_proxy_passes_prometheus_answers_through(url: str) -> None:
    with guard(url) as through, requests.Session() as session:
        session.trust_env = False
        answer = session.get(f"{through}/api/v1/query", params={"query": "1"}, timeout=5).json()

    assert answer["status"] == "success"
