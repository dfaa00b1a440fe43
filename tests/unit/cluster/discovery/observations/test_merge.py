"""Observations of several finders become engines."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from disagg_cluster.discovery.observations.merge import merge_observations
from disagg_cluster.discovery.observations.types import Endpoint, Finder, Leader, Observation
from disagg_exporter.model import Role
from disagg_exporter.roles.command_line.spanning import EnginePart
from disagg_exporter.roles.evidence.types import Markers

FOLLOWER = EnginePart("10.0.0.1:29501", 1, follows=True)
HERE = Endpoint("127.0.0.1", 8000)


def process(pid: int = 10, *endpoints: Endpoint, **more: Any) -> Observation:
    seen = {"kind": "vllm", "leader": Leader(pid, 1), "pids": frozenset({pid, pid + 1})}
    return Observation(finder=Finder.PROCESSES, endpoints=endpoints, **{**seen, **more})


def pod(uid: str = "u", *endpoints: Endpoint, **more: Any) -> Observation:
    seen = {"pod_uid": uid, "pod": f"pod-{uid}", "namespace": "ns"}
    return Observation(finder=Finder.PODS, endpoints=endpoints, **{**seen, **more})


def test_a_listed_address_and_the_process_behind_it_are_one_engine() -> None:
    listed = Observation(finder=Finder.LISTED, endpoints=(HERE,), name="mine", role=Role.DECODE)

    [engine] = merge_observations([process(10, HERE, Endpoint("127.0.0.1", 9000)), listed])

    assert (engine.proposed_name, engine.role, engine.kind) == ("mine", Role.DECODE, "vllm")
    assert engine.leader == Leader(10, 1)
    assert engine.endpoints == (HERE, Endpoint("127.0.0.1", 9000))
    assert engine.seen_by == (Finder.LISTED, Finder.PROCESSES)


@pytest.mark.parametrize(
    ("running", "expected"), [("trtllm", "trtllm"), ("engine", "vllm"), ("", "vllm")]
)
def test_the_running_process_determines_the_kind_before_the_list(
    running: str, expected: str
) -> None:
    """A listed address is a vLLM by default; a TensorRT-LLM must not be scraped like one."""
    listed = Observation(finder=Finder.LISTED, endpoints=(HERE,), kind="vllm")

    [engine] = merge_observations([listed, process(10, HERE, kind=running)])

    assert engine.kind == expected


def test_a_process_in_a_pod_is_the_pods_engine_with_its_labels_and_own_arguments() -> None:
    declared = Markers(argv=("sh", "-c", "$START"), labels={"llm-d.ai/role": "prefill"})
    running = Markers(argv=("vllm", "serve"), env={"ROLE_NAME": "prefill"})

    [engine] = merge_observations([pod(markers=declared), process(pod_uid="u", markers=running)])

    assert engine.markers == Markers(running.argv, running.env, declared.labels)
    assert (engine.pod, engine.namespace, engine.pod_uid) == ("pod-u", "ns", "u")


def test_two_servers_on_one_port_stay_two() -> None:
    """SO_REUSEPORT, or two network namespaces that cannot be distinguished."""
    assert len(merge_observations([process(10, HERE), process(20, HERE)])) == 2


def test_a_pod_that_claims_another_pods_address_gains_nothing() -> None:
    honest = pod("a", HERE, markers=Markers(labels={"llm-d.ai/role": "decode"}))
    hostile = pod("b", HERE, markers=Markers(labels={"disagg-node/role": "prefill"}))
    server = process(10, HERE, pod_uid="a")

    for order in permutations([honest, hostile, server]):
        engines = {engine.pod_uid: engine for engine in merge_observations(order)}
        assert engines["a"].markers.labels == {"llm-d.ai/role": "decode"}
        assert engines["a"].leader == Leader(10, 1)
        assert engines["b"].leader is None


def test_containers_of_one_pod_are_separate_engines() -> None:
    found = merge_observations([pod(container="prefill"), pod(container="decode")])

    assert {engine.proposed_name for engine in found} == {"pod-u-prefill", "pod-u-decode"}


@pytest.mark.parametrize(
    ("listed", "driver", "kubelet", "expected"),
    [
        (("GPU-a",), ("GPU-b",), ("GPU-c",), ("GPU-a",)),
        (None, ("GPU-b",), ("GPU-c",), ("GPU-b",)),
        (None, (), ("GPU-c",), ("GPU-c",)),
        (None, (), None, ()),
        (None, None, None, None),
    ],
)
def test_devices_are_those_of_the_most_reliable_finder(
    listed: Any, driver: Any, kubelet: Any, expected: Any
) -> None:
    """What a person listed, else what the driver reports, else what was allocated."""
    seen = [
        Observation(finder=Finder.LISTED, endpoints=(HERE,), gpus=listed),
        process(10, HERE, gpus=driver, pod_uid="u"),
        pod(gpus=kubelet),
    ]

    assert {engine.gpus for engine in merge_observations(seen)} == {expected}


def test_the_order_of_observations_does_not_matter() -> None:
    seen = [
        Observation(finder=Finder.LISTED, endpoints=(HERE,), name="mine"),
        process(10, HERE, pod_uid="u"),
        process(20, Endpoint("127.0.0.1", 8001)),
        pod(),
    ]

    assert all(
        merge_observations(order) == merge_observations(seen) for order in permutations(seen)
    )


def test_arguments_are_in_no_repr() -> None:
    secret = Markers(argv=("vllm", "serve", "--api-key", "s3cret"))
    seen = process(10, HERE, markers=secret)

    assert "s3cret" not in repr(seen)
    assert "s3cret" not in repr(merge_observations([seen]))


def test_an_engine_is_recognised_by_its_port_before_it_listens_there() -> None:
    """A restart is found long before the engine serves: its parts listen, it does not yet."""
    [before] = merge_observations([process(10, HERE, port_argument=8000)])
    [after] = merge_observations(
        [process(20, also_at=(Endpoint("127.0.0.1", 45678),), port_argument=8000)]
    )

    assert set(before.keys) & set(after.keys) == {"port 8000 vllm"}


def test_a_follower_is_recognised_by_its_leader_and_never_by_port() -> None:
    markers = Markers(argv=("vllm", "serve", "m", "--headless"))
    leader = process(10, HERE, port_argument=8000)
    follower = process(20, port_argument=8000, part=FOLLOWER, markers=markers)

    first, second = merge_observations([leader, follower])

    assert "port 8000 vllm" in first.keys
    assert (second.proposed_name, second.follows) == ("vllm-follower-1", True)
    assert second.keys[-1] == "follower vllm 10.0.0.1:29501 1"


def test_process_arguments_override_the_pods() -> None:
    argv = ("vllm", "serve")
    declared = pod("u", Endpoint("10.0.0.9", 8000), part=FOLLOWER, markers=Markers(argv=argv))
    running = process(10, HERE, pod_uid="u", markers=Markers(argv=argv))

    assert not merge_observations([declared, running])[0].follows

    declared = pod("u", Endpoint("10.0.0.9", 8000), markers=Markers(argv=argv))
    running = process(10, pod_uid="u", part=FOLLOWER, markers=Markers(argv=argv))
    [engine] = merge_observations([declared, running])
    assert (engine.follows, engine.endpoints) == (True, ())


def test_a_follower_beside_its_leader_has_none_of_the_leaders_gpus() -> None:
    markers = Markers(argv=("vllm", "serve", "m"))
    head = EnginePart(FOLLOWER.head, 0, follows=False)
    listed = Observation(finder=Finder.LISTED, endpoints=(HERE,), name="mine", gpus=("a", "b", "c"))
    leader = process(10, HERE, gpus=("a", "b"), part=head, markers=markers)
    follower = process(20, gpus=("c", "d"), part=FOLLOWER, markers=markers)
    other = process(30, gpus=("c",), part=replace(FOLLOWER, head="10.0.0.2:1"), markers=markers)

    gpus = {
        engine.leader: engine.gpus
        for engine in merge_observations([listed, leader, follower, other])
    }

    assert gpus == {
        Leader(10, 1): ("a", "b", "c"),
        Leader(20, 1): ("d",),
        Leader(30, 1): ("c",),
    }
