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


def test_a_socket_needs_nothing_and_a_port_a_web_config() -> None:
    for grpc in ({}, {"listen": PORT, "web_config": "/w.yml", "token_file": "/t"}):
        config = from_mapping({"control": {"grpc": grpc}}, "test", HAS_ALL)
        assert config.control.grpc is not None
    assert from_mapping({"workers": []}, "test", HAS_ALL).control.grpc is None


def test_a_port_without_tls_is_refused_with_the_way_out() -> None:
    for beside in ({}, {"token_file": "/t"}):
        [(path, said)] = problems({"listen": PORT, **beside}).items()
        assert path == "control.grpc.listen"
        assert "client_auth_type: RequireAndVerifyClientCert" in said


def test_files_that_are_not_there_or_mean_nothing_are_named() -> None:
    said = {"listen": PORT, "web_config": "/w.yml", "token_file": "/t"}
    assert set(problems(said, HAS_NOTHING)) == {
        "control.grpc.web_config",
        "control.grpc.token_file",
    }
    assert set(problems({"token_file": "/t"})) == {"control.grpc.token_file"}


def test_what_is_not_installed_is_named_with_the_command_that_installs_it() -> None:
    bare = replace(HAS_ALL, installed=lambda package: package != "grpc_health")

    assert "pip install 'disagg-node[grpc]'" in problems({}, bare)["control.grpc"]


def test_the_port_is_no_other_parts() -> None:
    control = {"grpc": {"listen": PORT, "web_config": "/w.yml"}}
    said = {"control": control, "workers": [worker("w", port=9849)]}
    with pytest.raises(ConfigError) as refused:
        from_mapping(said, "test", HAS_ALL)

    assert "control over gRPC" in str(refused.value)
