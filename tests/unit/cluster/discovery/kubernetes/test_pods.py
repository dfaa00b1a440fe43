"""What is kept of a pod, whatever its manifest contains."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.discovery.kubernetes.pods import MAX_ARGV_CHARACTERS, Pod, read_pod
from support.fake_api_server import pod_json, uid_of

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def read(told: object) -> Pod:
    pod = read_pod(told)
    assert pod is not None
    return pod


def test_only_used_fields_of_a_pod_are_kept() -> None:
    told = pod_json(
        "decode-0",
        labels={"llm-d.ai/role": "decode"},
        annotations={"disagg-node/steps": "true", "kubectl.kubernetes.io/last": "{}"},
        args=("--model", "m"),
    )

    pod = read(told)

    assert (pod.uid, pod.name, pod.node) == (uid_of("decode-0"), "decode-0", "gpu-7")
    assert pod.annotations == {"disagg-node/steps": "true"}
    assert pod.containers[0].argv == ("--model", "m")
    assert pod.containers[0].ports == (8000,)
    assert pod.containers[0].env == {}
    assert (pod.pod_ip, pod.deleted, pod.lives) == ("10.0.0.7", False, True)


@pytest.mark.parametrize(
    ("container", "annotations", "ports"),
    [
        ({}, {}, ()),
        ({"readinessProbe": {"httpGet": {"port": 8000, "scheme": "HTTPS"}}}, {}, (8000,)),
        ({"livenessProbe": {"httpGet": {"port": "web", "scheme": "HTTPS"}}}, {}, (8000,)),
        ({"startupProbe": {"httpGet": {"port": 8000, "scheme": "HTTP"}}}, {}, ()),
        ({"startupProbe": {"httpGet": {"port": "none", "scheme": "HTTPS"}}}, {}, ()),
        ({"startupProbe": {"httpGet": {"port": True, "scheme": "HTTPS"}}}, {}, ()),
        ({"readinessProbe": {"httpGet": 7}, "livenessProbe": []}, {}, ()),
        ({"ports": [{"name": "https", "containerPort": 8443}]}, {}, (8443,)),
        ({}, {"prometheus.io/scheme": "https", "prometheus.io/port": "8000"}, (8000,)),
        ({}, {"prometheus.io/scheme": "https"}, ()),
        ({}, {"prometheus.io/scheme": "http", "prometheus.io/port": "8000"}, ()),
        ({}, {"prometheus.io/scheme": "https", "prometheus.io/port": "9" * 5000}, ()),
    ],
)
def test_ports_at_which_https_is_spoken_are_known(
    container: dict[str, Any], annotations: dict[str, str], ports: tuple[int, ...]
) -> None:
    told = pod_json("a", annotations=annotations)
    declared = [{"name": "web", "containerPort": 8000}]
    told["spec"]["containers"][0] |= {"ports": declared, **container}

    pod = read_pod(told)

    assert pod is not None
    assert pod.containers[0].tls_ports == ports


def test_only_listed_variables_with_a_written_value_are_kept() -> None:
    told = pod_json("a")
    told["spec"]["containers"][0]["env"] = [
        {"name": "ROLE_NAME", "value": "prefill"},
        {"name": "DYN_SYSTEM_PORT", "value": "9090"},
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "OPENAI_API_KEY", "value": "k-123"},
    ]

    assert read(told).containers[0].env == {"ROLE_NAME": "prefill", "DYN_SYSTEM_PORT": "9090"}


@pytest.mark.parametrize(
    "ip", ["127.0.0.1", "::1", "169.254.169.254", "0.0.0.0", "224.0.0.1", "::ffff:127.0.0.1", "x"]
)
def test_an_impossible_pod_address_is_ignored(ip: str) -> None:
    assert read(pod_json("a", ip=ip)).pod_ip == ""


@pytest.mark.parametrize("port", [0, -1, 70000, "8000", True, 8000.5, None])
def test_an_invalid_port_is_ignored(port: object) -> None:
    told = pod_json("a")
    told["spec"]["containers"][0]["ports"] = [{"containerPort": port}]

    assert read(told).containers[0].ports == ()


def test_a_too_long_command_line_is_dropped_whole() -> None:
    told = pod_json("a", args=("--model", "x" * MAX_ARGV_CHARACTERS))

    assert read(told).containers[0].argv == ()


def test_a_pod_of_any_size_is_kept_small() -> None:
    told = pod_json("a", labels={f"k{at}": "v" * 9999 for at in range(9999)})
    container = told["spec"]["containers"][0]
    container["args"] = ["x" * 100] * 99999
    container["env"] = [{"name": "ROLE_NAME", "value": "v" * 10**6}] * 9999
    container["ports"] = [{"containerPort": 1}] * 99999
    told["spec"]["containers"] = [container] * 9999

    assert len(json.dumps(dataclasses.asdict(read(told)))) < 1_000_000


@pytest.mark.parametrize("field", ["uid", "name", "namespace"])
@pytest.mark.parametrize("value", [None, "", "a\nb", "../x", "é", "x" * 300, 7])
def test_a_pod_with_invalid_names_is_ignored(field: str, value: object) -> None:
    told: dict[str, Any] = pod_json("a")
    told["metadata"][field] = value

    assert read_pod(told) is None


@given(ANYTHING, st.sampled_from(["metadata", "spec", "status"]))
def test_any_json_is_handled(anything: object, part: str) -> None:
    read_pod(anything)
    told: dict[str, Any] = pod_json("a")
    told[part] = anything
    read_pod(told)
    told = pod_json("a")
    for key in ("labels", "annotations", "uid"):
        told["metadata"][key] = anything
    for key in ("containers", "nodeName"):
        told["spec"][key] = anything
    read_pod(told)
    told = pod_json("a")
    for key in ("name", "args", "env", "ports", "image"):
        told["spec"]["containers"][0][key] = anything
    read_pod(told)
