"""Engines among the pods of a node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from disagg_cluster.discovery.finders.pods import PodFinder, pod_observations
from disagg_cluster.discovery.kubernetes.pods import Container, GpuHolder, Pod
from disagg_cluster.discovery.observations.merge import merge_observations
from disagg_cluster.discovery.observations.types import Endpoint, Finder, Leader, Observation
from disagg_exporter.model import Device, Role
from disagg_exporter.roles.judge import explain

UUID = "GPU-11111111-2222-3333-4444-555555555555"
VLLM = Container("main", image="vllm/vllm-openai:v1", argv=("vllm", "serve", "m"), ports=(8000,))
SIDECAR = Container("proxy", image="ghcr.io/llm-d/llm-d-routing-sidecar:v1", ports=(8001,))
POD = Pod(
    uid="uid",
    name="llama-prefill-0",
    namespace="team",
    labels={"llm-d.ai/role": "prefill"},
    phase="Running",
    pod_ip="10.0.0.9",
    containers=(VLLM,),
)


def observations(pod: Pod) -> list[Observation]:
    return list(pod_observations(pod))


def test_a_pod_with_an_engine_is_one_with_its_labels_and_address() -> None:
    [seen] = observations(replace(POD, containers=(SIDECAR, VLLM)))

    assert (seen.sure, seen.kind, seen.endpoints) == (True, "vllm", (Endpoint("10.0.0.9", 8000),))
    assert (seen.pod, seen.namespace, seen.container) == ("llama-prefill-0", "team", "")
    assert explain(seen.markers).role is Role.PREFILL


@pytest.mark.parametrize(
    ("image", "kind"),
    [
        ("vllm/vllm-openai:v0.33", "vllm"),
        ("lmsysorg/sglang:latest", "sglang"),
        ("nvcr.io/nvidia/tensorrt-llm/release:1.0", "trtllm"),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.6", "dynamo"),
        ("ghcr.io/vllm-project/vllm-router:1", ""),
        ("postgres:16", ""),
    ],
)
def test_the_image_gives_the_kind_if_arguments_do_not(image: str, kind: str) -> None:
    container = Container("c", image=image, argv=("--model", "m"), ports=(8000,))

    [seen] = observations(replace(POD, labels={}, containers=(container,)))

    assert (seen.sure, seen.kind) == (bool(kind), kind)


def test_an_engine_process_in_a_pod_has_the_pods_labels() -> None:
    [lends] = observations(replace(POD, containers=(Container("c", image="own/image"),)))
    process = Observation(
        finder=Finder.PROCESSES,
        kind="vllm",
        leader=Leader(7, 1),
        pids=frozenset({7}),
        pod_uid="uid",
    )

    assert merge_observations([lends]) == ()
    [engine] = merge_observations([lends, process])
    assert engine.markers.labels == {"llm-d.ai/role": "prefill"}
    assert engine.pod == "llama-prefill-0"


def test_two_engines_of_one_pod_are_two() -> None:
    other = replace(VLLM, name="second", ports=(8100,), argv=(*VLLM.argv, "--port", "8100"))

    found = merge_observations(observations(replace(POD, containers=(VLLM, other))))

    assert {engine.proposed_name for engine in found} == {
        "llama-prefill-0-main",
        "llama-prefill-0-second",
    }


def test_a_deleted_pod_drains_and_a_finished_one_is_ignored() -> None:
    leaving, finished = replace(POD, deleted=True), replace(POD, phase="Succeeded")

    [seen] = PodFinder(lambda: [leaving, finished], tuple, ()).scan().observations

    assert seen.draining


def test_the_gpus_are_those_that_the_kubelet_allocated() -> None:
    holder = GpuHolder(UUID, "llama-prefill-0", "team", "main", share_of=1)
    finder = PodFinder(lambda: [POD], lambda: [holder], [Device(UUID, 0, "H100", "nvidia0")])

    assert [seen.gpus for seen in finder.scan().observations] == [(UUID,)]


def test_missing_pod_data_is_reported() -> None:
    finder = PodFinder(tuple, tuple, (), lambda: ("no RBAC", "", "no socket"))

    assert finder.scan().lost == "no RBAC; no socket"


@pytest.mark.parametrize(
    ("changes", "ports"),
    [
        ({"argv": ("vllm", "serve", "m", "--port", "9000"), "ports": ()}, [9000]),
        ({"argv": ("vllm", "serve", "m", "--port", "9000"), "ports": (5600, 9000)}, [9000]),
        ({"argv": ("vllm", "serve", "m", "--port", "9000"), "ports": (8000,)}, [8000]),
        ({"env": {"DYN_SYSTEM_PORT": "9090"}}, [9090, 8000]),
        ({"env": {"DYN_SYSTEM_PORT": "99999999999"}}, [8000]),
        ({"ports": tuple(range(1, 100))}, [1, 2, 3, 4]),
        ({"ports": ()}, [8000]),
    ],
)
def test_only_ports_that_may_have_a_page_are_asked(
    changes: dict[str, Any], ports: list[int]
) -> None:
    """A GET on a side channel could disturb it."""
    [seen] = observations(replace(POD, containers=(replace(VLLM, **changes),)))

    assert [endpoint.port for endpoint in seen.endpoints] == ports


TLS_ARGV = ("vllm", "serve", "m", "--ssl-certfile", "/tls/tls.crt")


@pytest.mark.parametrize(
    ("changes", "tls", "file"),
    [
        ({}, False, None),
        ({"argv": TLS_ARGV}, True, "/tls/tls.crt"),
        (
            {"argv": ("sh", "-c", "vllm serve m --ssl-certfile=/tls/tls.crt $MORE")},
            True,
            "/tls/tls.crt",
        ),
        ({"argv": ("sh", "-c", "vllm serve m --ssl-certfile $CERT")}, True, ""),
        ({"argv": ("--ssl-certfile", "/tls/tls.crt")}, True, "/tls/tls.crt"),
        ({"tls_ports": (8000,)}, True, None),
        ({"tls_ports": (9000,)}, False, None),
    ],
)
def test_an_engine_that_serves_tls_is_asked_by_it(
    changes: dict[str, Any], tls: bool, file: str | None
) -> None:
    [seen] = observations(replace(POD, containers=(replace(VLLM, **changes),)))

    assert [endpoint.tls for endpoint in seen.endpoints] == [tls]
    assert seen.endpoints[0].url == f"http{'s' if tls else ''}://10.0.0.9:8000"
    assert seen.certificate_file == file


@pytest.mark.parametrize(("index", "follows"), [("0", False), ("1", True)])
def test_a_pod_of_a_group_leads_or_follows_by_its_number(index: str, follows: bool) -> None:
    script = (
        "python3 -m sglang.launch_server --model-path m --dist-init-addr $LWS_LEADER_ADDRESS:20000 "
        "--nnodes $LWS_GROUP_SIZE --node-rank $LWS_WORKER_INDEX --port 8000"
    )
    container = replace(VLLM, argv=("sh", "-c", script))
    labels = {"leaderworkerset.sigs.k8s.io/worker-index": index}

    [seen] = observations(replace(POD, labels=labels, containers=(container,)))

    assert seen.part is not None
    assert seen.part.follows is follows
    assert bool(seen.endpoints) is not follows
