"""Bar 2 of the attach issue, its Kubernetes half: who holds which GPU, through every change.

A kubelet over gRPC and an API server over HTTP, both fakes; 8 GPUs, 5 engines in three stacks.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from disagg_cluster.kube.api_server import ApiServer
from disagg_cluster.kube.join import Tenant, tenants
from disagg_cluster.kube.pod_watch import PodWatch
from disagg_exporter.model import Device, Role
from disagg_exporter.podresources import PodResources
from disagg_exporter.roles import explain
from support.fake_api_server import NODE, FakeApiServer, Told, fake_api_server, pod_json, uid_of
from support.fake_kubelet import FakeKubelet, Given, fake_kubelet
from support.stories import running, told, until

UUIDS = [f"GPU-8f2c1d90-3e5a-4b17-9c2e-5da9abb5176{at}" for at in range(8)]
DEVICES = [Device(uuid, at, "H100", f"nvidia{at}") for at, uuid in enumerate(UUIDS)]

LLM_D_PREFILL = {"llm-d.ai/role": "prefill"}
PREFILL_ARGS = ("--model", "m", "--kv-transfer-config", '{"kv_role":"kv_producer"}')
DECODE_ARGS = ("--model", "m", "--kv-transfer-config", '{"kv_role":"kv_consumer"}')


class Node:
    """A node of a cluster: what its kubelet and its API server say, and what we make of it."""

    def __init__(self, api: FakeApiServer, kubelet: FakeKubelet, url: str, socket: Path) -> None:
        self.api = api
        self.kubelet = kubelet
        self.watch = PodWatch(ApiServer(url), NODE)
        self.resources = PodResources(socket, 0.05)

    def runs(self, pod: Told, *gpus: int) -> None:
        """Start a pod, as a kubelet does: it is told of, and then has its devices."""
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

    def tenants(self) -> tuple[Tenant, ...]:
        """The join of what both say now."""
        return tenants(self.watch.pods(), self.resources.holders(), DEVICES)

    def table(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Role and GPUs of every pod that both know."""
        return {
            tenant.pod_name: (
                explain(tenant.markers()).role.value,
                tuple(UUIDS.index(gpu) for gpu in tenant.gpus),
            )
            for tenant in self.tenants()
            if tenant.pod is not None
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
    aibrix = {"role-name": "decode", "roleset-name": "set"}
    node.runs(pod_json("storm-decode-0", labels=aibrix), 7)


ALL = {
    "pd-prefill-0": ("prefill", (0,)),
    "pd-decode-0": ("decode", (1, 2, 3, 4)),
    "dynamo-worker-0": ("prefill", (5,)),
    "dynamo-worker-1": ("decode", (6,)),
    "storm-decode-0": ("decode", (7,)),
}


@told
async def test_five_engines_of_three_stacks_are_joined_to_their_gpus(node: Node) -> None:
    start_all(node)
    async with running(node.watch.run(), node.resources.run()):
        await until(lambda: node.table() == ALL)


@told
async def test_a_pod_that_is_rolled_hands_its_gpu_on(node: Node) -> None:
    start_all(node)
    async with running(node.watch.run(), node.resources.run()):
        await until(lambda: node.table() == ALL)
        node.ends("pd-prefill-0")
        await until(lambda: "pd-prefill-0" not in node.table())
        node.runs(pod_json("pd-prefill-1", labels=LLM_D_PREFILL, args=PREFILL_ARGS), 0)
        await until(lambda: node.table().get("pd-prefill-1") == ("prefill", (0,)))


@told
async def test_a_pod_that_comes_back_under_its_name_is_the_new_one(node: Node) -> None:
    """A StatefulSet's pod: another UID, other labels; the old one may still be ending."""
    start_all(node)
    async with running(node.watch.run(), node.resources.run()):
        await until(lambda: node.table() == ALL)
        old = pod_json("storm-decode-0", deleting=True)
        node.api.put(old)
        labels = {"role-name": "prefill", "roleset-name": "set"}
        node.runs(pod_json("storm-decode-0", uid=uid_of("next"), labels=labels), 7)
        await until(lambda: node.table()["storm-decode-0"] == ("prefill", (7,)))
        node.api.delete("storm-decode-0")

        (tenant,) = (t for t in node.tenants() if t.pod_name == "storm-decode-0")
        assert tenant.pod is not None
        assert tenant.pod.uid == uid_of("next")


@told
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


@told
async def test_deleted_pods_are_gone_from_the_table(node: Node) -> None:
    start_all(node)
    async with running(node.watch.run(), node.resources.run()):
        await until(lambda: node.table() == ALL)
        for name in ALL:
            node.ends(name)
        await until(lambda: node.tenants() == ())


@told
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


@told
async def test_without_rights_at_the_api_server_the_kubelets_half_remains(node: Node) -> None:
    start_all(node)
    node.api.status = 403
    async with running(node.watch.run(), node.resources.run()):
        await until(lambda: len(node.tenants()) == len(ALL))

    roles = {t.pod_name: explain(t.markers()).role for t in node.tenants()}
    assert roles["pd-prefill-0"] is Role.PREFILL, "its name tells, weakly"
    assert {t.pod_name: t.pages for t in node.tenants()} == dict.fromkeys(ALL, ())
