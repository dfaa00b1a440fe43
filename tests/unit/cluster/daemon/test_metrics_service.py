from __future__ import annotations

import contextlib
import http.client
from pathlib import Path

import pytest

from disagg_cluster.config import Bridges, Listen
from disagg_cluster.config.problems import ConfigError
from disagg_cluster.daemon.metrics_service import MetricsService, scheme_of
from support.certificates import client_context, write_files
from support.snapshots import golden_snapshot

TLS = "tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n"


def front(web_config: Path | None = None) -> MetricsService:
    told = {} if web_config is None else {"web_config": str(web_config)}
    made = MetricsService(Listen(metrics="127.0.0.1:0", **told), Bridges(), "gpu-7", lambda: 0.0)
    made.show(golden_snapshot())
    return made


def test_without_a_web_config_the_page_is_open_and_has_no_web_config_collector() -> None:
    serving = front()
    with serving.running() as address:
        connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=20)
        with contextlib.closing(connection):
            connection.request("GET", "/readyz")

            assert connection.getresponse().status == 200
        assert serving.collectors() == ()


def test_job_files_exist_while_the_service_runs(tmp_path: Path) -> None:
    bridges = Bridges(hpc_job_dir=str(tmp_path))
    serving = MetricsService(Listen(metrics="127.0.0.1:0"), bridges, "gpu-7", lambda: 0.0)
    with serving.running():
        serving.show(golden_snapshot())

        found = {path.name: path.read_text() for path in tmp_path.iterdir()}
        assert found["0"] == "prefill\n"
        assert [(c.collector, c.success) for c in serving.collectors()] == [("hpc_job", True)]
    assert list(tmp_path.iterdir()) == []


def test_with_a_tls_web_config_the_page_is_served_over_https(tmp_path: Path) -> None:
    write_files(tmp_path, {"web.yml": TLS})
    serving = front(tmp_path / "web.yml")
    with serving.running() as address:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", address.port, timeout=20, context=client_context()
        )
        with contextlib.closing(connection):
            connection.request("GET", "/metrics")

            assert connection.getresponse().status == 200
        assert [(c.collector, c.success) for c in serving.collectors()] == [("web_config", True)]


def test_an_invalid_web_config_is_refused(tmp_path: Path) -> None:
    write_files(tmp_path, {"web.yml": "tls_server_config: {cert_file: cert.pem}\n"})

    with pytest.raises(ConfigError), front(tmp_path / "web.yml").running():
        raise AssertionError("it served")


def test_the_scheme_is_that_of_the_web_config(tmp_path: Path) -> None:
    write_files(tmp_path, {"tls.yml": TLS, "plain.yml": ""})

    assert scheme_of(Listen()) == "http"
    assert scheme_of(Listen(web_config=str(tmp_path / "plain.yml"))) == "http"
    assert scheme_of(Listen(web_config=str(tmp_path / "tls.yml"))) == "https"
