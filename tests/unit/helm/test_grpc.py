"""Control over gRPC in profile launch: who is let in, where, and by which Secrets."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import yaml

from disagg_cluster.nodefile.web.reading import read, understand
from support.chart import LAUNCH, Manifest, node_files, one, pods, render, values_of

CASE = "launch-strict"
FOLDER = "/etc/disagg-control"


def grpc_values(**changes: Any) -> dict[str, Any]:
    values = copy.deepcopy(values_of(CASE))
    values["launch"]["grpc"] |= changes
    return values


def control_file(manifests: list[Manifest]) -> str:
    [text] = [
        manifest["data"]["control.yaml"]
        for manifest in manifests
        if manifest["kind"] == "ConfigMap" and "control.yaml" in manifest["data"]
    ]
    return str(text)


def test_the_grpc_port_is_the_same_in_node_file_container_and_service() -> None:
    manifests = render(grpc_values(port=9000))

    [text] = node_files(manifests).values()
    assert yaml.safe_load(text)["control"] == {
        "grpc": {
            "listen": ":9000",
            "web_config": f"{FOLDER}/control.yaml",
            "token_file": f"{FOLDER}/token",
        }
    }
    [container] = pods(manifests)["rel-disagg-node-all"]["containers"]
    assert {"name": "control", "containerPort": 9000, "protocol": "TCP"} in container["ports"]
    of_service = one(manifests, "Service")["spec"]["ports"]
    assert [port["port"] for port in of_service if port["targetPort"] == "control"] == [9000]


def test_secrets_with_certificates_and_token_are_mounted_for_the_daemon(
    tmp_path: Path,
) -> None:
    """The daemon accepts the file if the files of the Secrets are beside it."""
    manifests = render(values_of(CASE))
    pod = pods(manifests)["rel-disagg-node-all"]

    [volume] = [volume for volume in pod["volumes"] if volume["name"] == "control"]
    brought = {
        item["path"]: (source["secret"]["name"], item["key"])
        for source in volume["projected"]["sources"]
        for item in source.get("secret", {}).get("items", ())
    }
    assert brought == {
        "tls.crt": ("disagg-node-control-tls", "tls.crt"),
        "tls.key": ("disagg-node-control-tls", "tls.key"),
        "client-ca.crt": ("operators", "ca.crt"),
        "token": ("disagg-node-control-token", "token"),
    }
    [container] = pod["containers"]
    [mount] = [mount for mount in container["volumeMounts"] if mount["name"] == "control"]
    assert mount == {"name": "control", "mountPath": FOLDER, "readOnly": True}
    (tmp_path / "control.yaml").write_text(control_file(manifests), encoding="utf-8")
    for name in brought:
        (tmp_path / name).touch()
    config, findings, _ = understand(read(tmp_path / "control.yaml"))
    assert findings == []
    assert config.tls_server_config is not None
    assert config.tls_server_config.client_allowed_sans == ("ops.example",)


def test_with_a_token_alone_no_client_certificate_is_required() -> None:
    values = grpc_values(clientCaSecret="", clientAllowedSans=[])

    told = yaml.safe_load(control_file(render(values)))["tls_server_config"]

    assert told == {"cert_file": "tls.crt", "key_file": "tls.key"}


def test_the_network_policy_admits_only_the_named_peers_to_grpc() -> None:
    named = values_of(CASE)["launch"]["grpc"]["from"]

    def rules(values: dict[str, Any]) -> list[Any]:
        guarded = values | {"networkPolicy": {"enabled": True}}
        ingress = one(render(guarded), "NetworkPolicy")["spec"]["ingress"]
        return [rule for rule in ingress if "control" in json.dumps(rule["ports"])]

    ports = [{"port": "control", "protocol": "TCP"}]
    assert rules(values_of(CASE)) == [{"ports": ports, "from": named}]
    assert rules(grpc_values(**{"from": []})) == []


def test_grpc_is_not_rendered_unless_enabled() -> None:
    others = [case for case in LAUNCH if case != CASE]

    assert others
    assert not [case for case in others if "disagg-control" in json.dumps(render(values_of(case)))]
