"""What a node file may say of the TLS of engines."""

from __future__ import annotations

from typing import Any

import pytest

from disagg_cluster.config.problems import ConfigError
from disagg_cluster.nodefile import from_mapping
from support.node_files import HAS_ALL, HAS_NOTHING, worker

TLS_WORKER = worker("w", args=["--ssl-certfile", "/tls/cert.pem"])
LISTED = {"url": "https://gpu-7:8000", "tls": {"ca_file": "/tls/ca.pem", "server_name": "gpu-7"}}


def problems(mapping: dict[str, Any], host: Any = HAS_ALL) -> dict[str, str]:
    with pytest.raises(ConfigError) as refused:
        from_mapping(mapping, "test", host)
    return {problem.path: problem.message for problem in refused.value.problems}


def node(*workers: dict[str, Any]) -> dict[str, Any]:
    return {"workers": list(workers)}


def attach(**values: Any) -> dict[str, Any]:
    return {"attach": values}


def test_an_engine_behind_tls_may_be_listed_and_launched() -> None:
    config = from_mapping(node(TLS_WORKER) | attach(endpoints=[LISTED]), "test", HAS_ALL)

    assert config.workers[0].url.startswith("https://127.0.0.1:")
    assert config.attach is not None
    assert config.attach.endpoints[0].tls is not None


def test_a_worker_without_tls_has_an_http_url() -> None:
    assert from_mapping(node(worker("w")), "test", HAS_ALL).workers[0].url.startswith("http://")


@pytest.mark.parametrize(
    ("mapping", "path"),
    [
        (attach(tls={"key_file": "/k"}), "attach.tls.key_file"),
        (attach(tls={"insecure": True, "ca_file": "/c"}), "attach.tls.insecure"),
        (attach(tls={"server_name": "a b"}), "attach.tls.server_name"),
        (attach(tls={"ca": "/c"}), "attach.tls.ca"),
        (
            attach(endpoints=[{"url": "https://a:1", "tls": {"key_file": "/k"}}]),
            "attach.endpoints[0].tls.key_file",
        ),
        (
            attach(endpoints=[{"url": "http://a:1", "tls": {"ca_file": "/c"}}]),
            "attach.endpoints[0].tls",
        ),
        (attach(endpoints=[{"url": "https://a"}]), "attach.endpoints[0].url"),
        (attach(endpoints=[{"url": "ftp://a:1"}]), "attach.endpoints[0].url"),
        (node(worker("w", tls={"ca_file": "/c"})), "workers[0].tls"),
        (node(worker("w", args=["--ssl-certfile"])), "workers[0].args"),
    ],
)
def test_invalid_tls_settings_and_urls_are_refused(mapping: dict[str, Any], path: str) -> None:
    assert path in problems(mapping)


def test_all_missing_tls_files_are_reported() -> None:
    tls = {"ca_file": "/ca", "cert_file": "/cert", "key_file": "/key"}

    found = problems(attach(tls=tls), HAS_NOTHING)

    assert {"attach.tls.ca_file", "attach.tls.cert_file", "attach.tls.key_file"} <= found.keys()
