"""The Prometheus of the node: its config, how it is found and started, what it answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from disagg_cluster.prometheus import (
    HOW_TO_GET,
    Target,
    find_prometheus,
    prepare_prometheus,
    scrape_config,
)
from disagg_cluster.prometheus_api import PrometheusError, query


def test_cluster_and_node_are_labels_of_the_target() -> None:
    config = yaml.safe_load(
        scrape_config(
            [Target("127.0.0.1:9847", "gpu-7", "east"), Target("10.0.0.2:9847", "gpu-8")],
            interval_seconds=2,
            rule_files=["/r/*.yaml"],
        )
    )

    assert config["scrape_configs"] == [
        {
            "job_name": "disagg-node",
            "static_configs": [
                {"targets": ["127.0.0.1:9847"], "labels": {"node": "gpu-7", "cluster": "east"}},
                {"targets": ["10.0.0.2:9847"], "labels": {"node": "gpu-8"}},
            ],
        }
    ]
    assert config["rule_files"] == ["/r/*.yaml"]
    assert set(config["global"].values()) == {"2s"}


def test_an_interval_below_a_second_is_written_in_milliseconds() -> None:
    config = yaml.safe_load(scrape_config([], interval_seconds=0.25))

    assert config["global"]["scrape_interval"] == "250ms"


def test_a_name_that_yaml_would_misread_stays_text() -> None:
    config = yaml.safe_load(scrape_config([Target("h:1", "0123", "no")]))

    labels = config["scrape_configs"][0]["static_configs"][0]["labels"]
    assert labels == {"node": "0123", "cluster": "no"}


def test_the_named_prometheus_is_taken_before_the_one_on_the_path() -> None:
    installed = {"prometheus": "/usr/bin/prometheus", "/opt/p/prometheus": "/opt/p/prometheus"}.get

    assert find_prometheus({}, installed) == Path("/usr/bin/prometheus")
    assert find_prometheus({"DISAGG_PROMETHEUS": ""}, installed) == Path("/usr/bin/prometheus")
    named = {"DISAGG_PROMETHEUS": "/opt/p/prometheus"}
    assert find_prometheus(named, installed) == Path("/opt/p/prometheus")


def test_a_prometheus_that_is_not_there_is_none_and_never_another() -> None:
    installed = {"prometheus": "/usr/bin/prometheus"}.get

    assert find_prometheus({"DISAGG_PROMETHEUS": "/gone"}, installed) is None
    assert find_prometheus({}, {}.get) is None
    assert "apt-get install prometheus" in HOW_TO_GET


def test_all_that_a_launched_prometheus_writes_lies_in_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "prometheus"

    launch = prepare_prometheus(Path("/p"), folder, "global: {}\n", listen="127.0.0.1:9090")

    assert launch.argv == (
        "/p",
        f"--config.file={folder}/prometheus.yaml",
        f"--storage.tsdb.path={folder}/data",
        "--storage.tsdb.retention.time=1d",
        "--web.listen-address=127.0.0.1:9090",
        "--log.level=warn",
    )
    assert launch.url == "http://127.0.0.1:9090"
    assert launch.config_file.read_text() == "global: {}\n"


class Stub(BaseHTTPRequestHandler):
    """Answers each expression with the status and body that `answers` has for it."""

    answers: ClassVar[dict[str, tuple[int, str]]] = {}

    def do_GET(self) -> None:
        expr = parse_qs(urlsplit(self.path).query)["query"][0]
        status, body = self.answers[expr]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


def success(kind: str, result: object) -> tuple[int, str]:
    return 200, json.dumps({"status": "success", "data": {"resultType": kind, "result": result}})


@pytest.fixture
def base_url() -> Iterator[str]:
    Stub.answers = {
        "up": success("vector", [{"metric": {"job": "a"}, "value": [1.5, "1"]}]),
        "none": success("vector", []),
        "1 + 1": success("scalar", [1.5, "2"]),
        "up[1m]": success("matrix", []),
        "sum(": (400, '{"status":"error","errorType":"bad_data","error":"parse error: unclosed"}'),
        "html": (200, "<html>"),
        "odd": success("vector", [{"metric": {}}]),
    }
    server = HTTPServer(("127.0.0.1", 0), Stub)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_query_gives_labels_and_values(base_url: str) -> None:
    assert query(base_url, "up") == [({"job": "a"}, 1.0)]
    assert query(base_url, "none") == []
    assert query(base_url, "1 + 1") == [({}, 2.0)]


@pytest.mark.parametrize(
    ("expr", "said"),
    [
        ("sum(", "refuses: parse error: unclosed"),
        ("up[1m]", "is a matrix"),
        ("html", "does not answer like a Prometheus"),
        ("odd", "does not answer like a Prometheus"),
    ],
)
def test_an_answer_without_values_says_why(base_url: str, expr: str, said: str) -> None:
    with pytest.raises(PrometheusError, match=said):
        query(base_url, expr)


def test_nobody_at_the_address_is_said_with_the_address() -> None:
    with pytest.raises(PrometheusError, match=r"no answer from http://127.0.0.1:1: .*refused"):
        query("http://127.0.0.1:1", "up", deadline_seconds=1)


def test_a_base_url_that_is_none_is_an_error_of_ours() -> None:
    with pytest.raises(PrometheusError, match="no answer from"):
        query("localhost", "up")
