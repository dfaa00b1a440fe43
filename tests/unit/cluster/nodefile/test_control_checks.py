"""No port that lets everybody steer the workers: what a node file may say of control."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from disagg_cluster.config.problems import ConfigError
from disagg_cluster.nodefile import from_mapping
from support.node_files import HAS_ALL, HAS_NOTHING, worker

PORT = "0.0.0.0:9849"


def problems(grpc: dict[str, Any], host: Any = HAS_ALL) -> dict[str, str]:
    with pytest.raises(ConfigError) as refused:
        from_mapping({"control": {"grpc": grpc}}, "test", host)
    return {
        problem.path: f"{problem.message}; {problem.hint}" for problem in refused.value.problems
    }


def test_grpc_on_a_socket_or_on_a_port_with_a_web_config_is_valid() -> None:
    for grpc in ({}, {"listen": PORT, "web_config": "/w.yml", "token_file": "/t"}):
        config = from_mapping({"control": {"grpc": grpc}}, "test", HAS_ALL)
        assert config.control.grpc is not None
    assert from_mapping({"workers": []}, "test", HAS_ALL).control.grpc is None


def test_a_grpc_port_without_tls_is_refused_with_a_remedy() -> None:
    for beside in ({}, {"token_file": "/t"}):
        [(path, said)] = problems({"listen": PORT, **beside}).items()
        assert path == "control.grpc.listen"
        assert "client_auth_type: RequireAndVerifyClientCert" in said


def test_missing_files_and_a_token_without_a_port_are_reported() -> None:
    said = {"listen": PORT, "web_config": "/w.yml", "token_file": "/t"}
    assert set(problems(said, HAS_NOTHING)) == {
        "control.grpc.web_config",
        "control.grpc.token_file",
    }
    assert set(problems({"token_file": "/t"})) == {"control.grpc.token_file"}


def test_missing_grpc_packages_are_reported_with_the_install_command() -> None:
    bare = replace(HAS_ALL, installed=lambda package: package != "grpc_health")

    assert "pip install 'disagg-node[grpc]'" in problems({}, bare)["control.grpc"]


def test_a_grpc_port_that_a_worker_uses_is_refused() -> None:
    control = {"grpc": {"listen": PORT, "web_config": "/w.yml"}}
    said = {"control": control, "workers": [worker("w", port=9849)]}
    with pytest.raises(ConfigError) as refused:
        from_mapping(said, "test", HAS_ALL)

    assert "control over gRPC" in str(refused.value)
