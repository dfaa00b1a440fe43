"""An engine in another pod reports its steps, which are attributed to that pod's GPU."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from disagg_cluster.config import Attach
from disagg_cluster.discovery.attach_mode import AttachMode
from disagg_cluster.discovery.kubernetes.api_server import ApiServer
from disagg_cluster.discovery.kubernetes_discovery import KubernetesDiscovery
from disagg_cluster.discovery.observations.types import EngineNames
from disagg_cluster.host.run_dir.layout import RunFolder
from disagg_cluster.telemetry.engine_registry import EngineRegistry
from disagg_exporter.accounting import Ledger
from disagg_exporter.capacity import CapacityModel
from disagg_exporter.inside_engine.disagg_steps.sender import Facts, Sender
from disagg_exporter.model import Device, EngineAccount, Role
from support.async_tests import async_test, running, until
from support.fake_api_server import NODE, FakeApiServer, fake_api_server, pod_json, uid_of
from support.fake_kubelet import FakeKubelet, Given, fake_kubelet

UUIDS = [f"GPU-8f2c1d90-3e5a-4b17-9c2e-5da9abb5176{at}" for at in range(2)]
DEVICES = [Device(uuid, at, "H100", f"nvidia{at}") for at, uuid in enumerate(UUIDS)]
STEP_NS = 5_000_000
DECODE_STEP = Facts(elapsed_ns=STEP_NS, generation_requests=1, generation_tokens=1, running=1)
NO_PAGE = "192.0.2.1"


@dataclass
class Node:
    """A node with attach mode on, its cluster, and its accounting."""

    api: FakeApiServer
    kubelet: FakeKubelet
    folder: RunFolder
    ledger: Ledger
    attaching: AttachMode
    registry: EngineRegistry

    def pod(self, name: str, gpu: int, *, proposed_name: str = "true") -> None:
        """Start a pod with an engine on a GPU."""
        annotations = {"disagg-node/steps": proposed_name, "disagg-node/role": "decode"}
        args = ("vllm", "serve", "m")
        self.api.put(pod_json(name, annotations=annotations, args=args, ip=NO_PAGE))
        self.kubelet.given = [*self.kubelet.given, Given(name, [UUIDS[gpu]])]

    def socket(self, pod: str) -> Path:
        """Return where a pod finds its socket."""
        return self.folder.pods / uid_of(pod) / "steps.sock"

    def account(self, engine: str) -> EngineAccount | None:
        """Return an engine's current account."""
        now_ns = time.monotonic_ns()
        self.ledger.advance(now_ns)
        accounts = self.ledger.engine_accounts(now_ns)
        return next((account for account in accounts if account.engine == engine), None)

    def told_steps(self, engine: str) -> int:
        """Return how many steps an engine has reported."""
        account = self.account(engine)
        return sum(account.reported.steps) if account else 0


@pytest.fixture
def node() -> Iterator[Node]:
    short = Path(tempfile.mkdtemp(prefix="dn-"))
    with fake_api_server() as (api, url), fake_kubelet(short / "k.sock") as kubelet:
        folder, ledger = RunFolder(short / "run"), Ledger()
        for device in DEVICES:
            ledger.add_device(device, time.monotonic_ns())
        registry = EngineRegistry(ledger, 1.0)
        attaching = AttachMode(
            Attach(processes=False),
            registry,
            EngineNames(),
            folder,
            ledger,
            CapacityModel(1.0),
            DEVICES,
            tuple,
            kubernetes=KubernetesDiscovery(ApiServer(url), NODE, short / "k.sock", folder.pods),
            interval_seconds=0.1,
        )
        yield Node(api, kubelet, folder, ledger, attaching, registry)
    shutil.rmtree(short)


@async_test
async def test_steps_of_an_annotated_pod_are_attributed_to_its_gpu(node: Node) -> None:
    node.pod("decode-0", 0)
    async with running(node.attaching.run()):
        await until(lambda: node.socket("decode-0").exists() and bool(node.account("decode-0")))
        sender = Sender(str(node.socket("decode-0")))
        sender.beat()
        for _ in range(10):
            sender.step(DECODE_STEP, time.monotonic_ns())
        sender.beat()
        await until(lambda: node.told_steps("decode-0") >= 9)
        sender.close()

        (status,) = node.registry.statuses()
    assert (status.engine, status.devices) == ("decode-0", (UUIDS[0],))
    assert status.role is Role.DECODE


@async_test
async def test_a_pod_cannot_report_steps_of_another(node: Node) -> None:
    """Bar 5 of the attach issue: a step belongs to the pod of the socket it arrives on."""
    node.pod("victim", 0)
    node.pod("hostile", 1)
    async with running(node.attaching.run()):
        await until(lambda: node.socket("hostile").exists() and bool(node.account("hostile")))
        await until(lambda: bool(node.account("victim")))
        sender = Sender(str(node.socket("hostile")), getpid=lambda: 1)
        sender.beat()
        for _ in range(10):
            sender.step(DECODE_STEP, time.monotonic_ns())
        sender.beat()
        await until(lambda: node.told_steps("hostile") >= 9)
        sender.close()

        assert node.told_steps("victim") == 0


@async_test
async def test_a_pod_without_the_annotation_has_no_socket(node: Node) -> None:
    node.pod("quiet", 0, proposed_name="no")
    async with running(node.attaching.run()):
        await until(lambda: bool(node.account("quiet")))

        assert not node.socket("quiet").parent.exists()
