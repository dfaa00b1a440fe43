"""Bar 2 of the attach issue, its Kubernetes half: holders of GPUs, through every change.

A kubelet over gRPC and an API server over HTTP, both fakes; 8 GPUs, 5 engines in three stacks.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from disagg_cluster.discovery.finders.pods import PodFinder
from disagg_cluster.discovery.kubernetes.api_server import ApiServer
from disagg_cluster.discovery.kubernetes.pod_watch import PodWatch
from disagg_cluster.discovery.kubernetes.pods import read_pod
from disagg_exporter.devices.pod_resources.client import PodResources
from disagg_exporter.model import Device
from disagg_exporter.roles.judge import explain
from support.async_tests import async_test, running, until
from support.fake_api_server import (
    NODE,
    ApiObject,
    FakeApiServer,
    fake_api_server,
    pod_json,
    uid_of,
)
from support.fake_kubelet import FakeKubelet, Given, fake_kubelet

UUIDS = [f"GPU-8f2c1d90-3e5a-4b17-9c2e-5da9abb5176{at}" for at in range(8)]
DEVICES = [Device(uuid, at, "H100", f"nvidia{at}") for at, uuid in enumerate(UUIDS)]

LLM_D_PREFILL = {"llm-d.ai/role": "prefill"}
STORM_DECODE = {"role-name": "decode", "roleset-name": "set"}
PREFILL_ARGS = ("--model", "m", "--kv-transfer-config", '{"kv_role":"kv_producer"}')
DECODE_ARGS = ("--model", "m", "--kv-transfer-config", '{"kv_role":"kv_consumer"}')


class Node:
    """A node of a cluster: the reports of its kubelet and its API server, and our result."""

    def __init__(self, api: FakeApiServer, kubelet: FakeKubelet, url: str, socket: Path) -> None:
        self.api = api
        self.kubelet = kubelet
        self.watch = PodWatch(ApiServer(url), NODE)
        self.resources = PodResources(socket, 0.05)

    def runs(self, pod: ApiObject, *gpus: int) -> None:
        """Start a pod, as a kubelet does: it is reported, and then has its devices."""
        self.api.put(pod)
        name = pod["metadata"]["name"]
        self.kubelet.given = [
            *(each for each in self.kubelet.given if each.pod != name),
            Given(name, [UUIDS[gpu] for gpu in gpus]),
        ]

    def ends(self, name: str) -> None:
        """End a pod."""
        self.kubelet.given = [each for each in self.kubelet.given if each.pod != name]
        self.api.delete(name)

    def table(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return role and GPUs of every engine in a pod, joined from both reports."""
        finder = PodFinder(self.watch.pods, self.resources.holders, DEVICES)
        return {
            seen.pod: (
                explain(seen.markers).role.value,
                tuple(UUIDS.index(gpu) for gpu in seen.gpus or ()),
            )
            for seen in finder.scan().observations
        }


@pytest.fixture
def node() -> Iterator[Node]:
    folder = Path(tempfile.mkdtemp(prefix="dn-"))
    socket = folder / "kubelet.sock"
    with fake_api_server() as (api, url), fake_kubelet(socket) as kubelet:
        yield Node(api, kubelet, url, socket)
    shutil.rmtree(folder)


def start_all(node: Node) -> None:
    node.runs(pod_json("pd-prefill-0", labels=LLM_D_PREFILL, args=PREFILL_ARGS), 0)
    node.runs(pod_json("pd-decode-0", args=DECODE_ARGS), 1, 2, 3, 4)
    dynamo = {"nvidia.com/dynamo-component-type": "prefill"}
    node.runs(pod_json("dynamo-worker-0", labels=dynamo), 5)
    dynamo = {"nvidia.com/dynamo-component-type": "decode"}
    node.runs(pod_json("dynamo-worker-1", labels=dynamo), 6)
    node.runs(pod_json("storm-decode-0", labels=STORM_DECODE), 7)


ALL = {
    "pd-prefill-0": ("prefill", (0,)),
    "pd-decode-0": ("decode", (1, 2, 3, 4)),
    "dynamo-worker-0": ("prefill", (5,)),
    "dynamo-worker-1": ("decode", (6,)),
    "storm-decode-0": ("decode", (7,)),
}


@async_test
async def test_five_engines_of_three_stacks_are_joined_to_their_gpus(node: Node) -> None:
    start_all(node)
    async with running(node.watch.run(), node.resources.run()):
        await until(lambda: node.table() == ALL)


@async_test
async def test_a_rolled_pod_passes_its_gpu_on(node: Node) -> None:
    start_all(node)
    async with running(node.watch.run(), node.resources.run()):
        await until(lambda: node.table() == ALL)
        node.ends("pd-prefill-0")
        await until(lambda: "pd-prefill-0" not in node.table())
        node.runs(pod_json("pd-prefill-1", labels=LLM_D_PREFILL, args=PREFILL_ARGS), 0)
        await until(lambda: node.table().get("pd-prefill-1") == ("prefill", (0,)))


@async_test
async def test_a_pod_with_a_reused_name_is_a_new_one(node: Node) -> None:
    """A StatefulSet's pod: the next of its name has another UID and other labels."""
    start_all(node)
    async with running(node.watch.run(), node.resources.run()):
        await until(lambda: node.table() == ALL)
        node.api.put(pod_json("storm-decode-0", labels=STORM_DECODE, deleting=True))
        assert node.table()["storm-decode-0"] == ("decode", (7,)), "it still drains"
        node.ends("storm-decode-0")
        labels = STORM_DECODE | {"role-name": "prefill"}
        node.runs(pod_json("storm-decode-0", uid=uid_of("next"), labels=labels), 7)
        await until(lambda: node.table().get("storm-decode-0") == ("prefill", (7,)))

    assert uid_of("storm-decode-0") not in {pod.uid for pod in node.watch.pods()}


@async_test
async def test_a_pod_that_is_relabelled_has_its_new_role(node: Node) -> None:
    start_all(node)
    async with running(node.watch.run(), node.resources.run()):
        await until(lambda: node.table() == ALL)
        labels = {"nvidia.com/dynamo-component-type": "decode"}
        node.api.put(pod_json("dynamo-worker-0", labels=labels))
        await until(lambda: node.table()["dynamo-worker-0"] == ("decode", (5,)))
        annotations = {"disagg-node/role": "mixed"}
        node.api.put(pod_json("dynamo-worker-0", labels=labels, annotations=annotations))
        await until(lambda: node.table()["dynamo-worker-0"] == ("mixed", (5,)))


@async_test
async def test_deleted_pods_are_gone_from_the_table(node: Node) -> None:
    start_all(node)
    async with running(node.watch.run(), node.resources.run()):
        await until(lambda: node.table() == ALL)
        for name in ALL:
            node.ends(name)
        await until(lambda: node.table() == {} and not node.resources.holders())


@async_test
async def test_while_the_api_server_restarts_nothing_is_lost(node: Node) -> None:
    start_all(node)
    async with running(node.watch.run(), node.resources.run()):
        await until(lambda: node.table() == ALL)
        node.api.status = 503
        node.api.hang_up()
        await until(lambda: not node.watch.status().success)
        assert node.table() == ALL
        node.api.status = 0
        await until(lambda: node.watch.status().success)
        assert node.table() == ALL


@async_test
async def test_a_gpu_with_an_unknown_name_is_reported_as_lost(node: Node) -> None:
    node.runs(pod_json("claimed", labels=LLM_D_PREFILL))
    node.kubelet.given = [Given("claimed", claimed=["gpu-0-mig-1g6gb-14-0"])]
    finder = PodFinder(node.watch.pods, node.resources.holders, DEVICES)
    async with running(node.watch.run(), node.resources.run()):
        await until(lambda: bool(node.watch.pods() and node.resources.holders()))

        assert finder.scan().lost == "llm/claimed holds gpu-0-mig-1g6gb-14-0: no GPU we know"
        assert [seen.gpus for seen in finder.scan().observations] == [None]


@async_test
async def test_without_the_kubelet_the_pods_are_known_and_their_gpus_are_not(node: Node) -> None:
    start_all(node)
    node.kubelet.refuses = "UNIMPLEMENTED"
    async with running(node.watch.run(), node.resources.run()):
        await until(lambda: len(node.table()) == len(ALL))

    assert node.table() == {name: (role, ()) for name, (role, _) in ALL.items()}


SECRET = "s3cr3t-value"


@pytest.mark.parametrize(
    "wrote",
    [
        {"args": ("--model", "m", "--api-key", SECRET)},
        {"args": ("--model", "m", "--kv-transfer-config", f'{{"kv_role":"{SECRET}"}}')},
        {"args": (f"\x1b[2J\n# HELP {SECRET} 1",)},
        {"labels": {"llm-d.ai/role": SECRET, "role-name": f'"}} {SECRET} 1'}},
        {"annotations": {"disagg-node/role": SECRET}},
    ],
)
def test_no_raw_text_of_a_pod_is_in_the_evidence_of_its_role(
    wrote: dict[str, Any],
) -> None:
    """Bar 5 of the attach issue, as far as pods go."""
    pod = read_pod(pod_json("a", **wrote))
    assert pod is not None
    seen = list(PodFinder(lambda: [pod], list, DEVICES).scan().observations)

    for each in (pod, *seen, *(explain(observation.markers) for observation in seen)):
        assert SECRET not in repr(each)
        assert "\x1b" not in repr(each)
