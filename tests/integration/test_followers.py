"""Followers of engines that span nodes: a real daemon over eight GPUs of a stub driver.

Real processes with the command lines of followers: one's activity is the phase of its role, one's
role does not say which phase, and one ends while its GPUs go on. The daemon finds engines among
these processes only, so that other runs on the same host do not matter.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.children import free_port
from support.fake_engines import FakeEngine, install
from support.nvml_stub import STATE_ENVIRONMENT
from support.nvml_stub.state import State, new_state
from support.running_node import Page, RunningNode, running_node, wait_for
from support.secluded_node import let_see, seclude
from support.vllm_session import Say

pytest_plugins = ["support.nvml_stub.fixtures"]

PRODUCER = ("--kv-transfer-config", '{"kv_role": "kv_producer"}')


def gpu(number: int) -> str:
    return f"GPU-57ab0000-0000-0000-0000-{number:012x}"


@dataclass
class Host:
    """A node with its daemon, and what is started on it."""

    node: RunningNode
    state: State
    folder: Path
    stack: ExitStack

    def start(self, kind: str, percent: int, *gpus: int, arguments: tuple[str, ...]) -> FakeEngine:
        """Start a part of an engine that keeps some GPUs busy, for so many percent of the time."""
        engine = self.stack.enter_context(FakeEngine(kind, self.folder, arguments))
        for number in gpus:
            self.state.gpus[number].utilization_percent = percent
            self.state.gpus[number].run(engine.process.pid)
        let_see(self.folder / "proc", engine.process.pid)
        return engine

    def engine(self, page: Page, number: int) -> str:
        """Who is on a GPU; empty if nobody is."""
        rows = page.samples.get("disagg_gpu_assignment_info", [])
        return next((r["engine"] for r, _ in rows if r["gpu"] == gpu(number) and r["engine"]), "")

    def method(self, page: Page, engine: str) -> str:
        rows = page.samples.get("disagg_attribution_info", [])
        return next((r["method"] for r, _ in rows if r["engine"] == engine), "")

    def leader(self, page: Page, number: int) -> str | None:
        """Whom the engine on a GPU follows; None if it follows nobody."""
        rows = page.samples.get("disagg_engine_follower_info", [])
        name = self.engine(page, number)
        return next((r["leader"] for r, _ in rows if r["engine"] == name), None)

    def seconds(self, page: Page, number: int, **labels: str) -> float:
        return page.sum("disagg_gpu_phase_seconds_total", gpu=gpu(number), **labels)

    def unattributed(self, page: Page, number: int, reason: str) -> float:
        return page.sum("disagg_gpu_unattributed_seconds_total", gpu=gpu(number), reason=reason)

    def watermark(self, page: Page, number: int) -> float:
        return page.sum("disagg_gpu_watermark_timestamp_seconds", gpu=gpu(number))

    def after(self, seconds: float, *numbers: int) -> Page:
        """The page, as soon as the books of these GPUs are closed over that much from now on."""
        until = time.time() + seconds

        def closed() -> Page | None:
            page = self.node.page()
            return page if all(self.watermark(page, n) >= until for n in numbers) else None

        return wait_for(closed, "the watermarks to pass", seconds + 60)


@pytest.fixture
def host(stub_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A daemon that launches nothing, on a node with nobody on its GPUs."""
    install(tmp_path)
    state = new_state(tmp_path / "nvml")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stub_library))
    monkeypatch.setenv(STATE_ENVIRONMENT, str(tmp_path / "nvml"))
    with ExitStack() as stack:
        # Unix sockets allow 107 bytes.
        short = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dn-")))
        file = {
            "run_dir": str(short / "run"),
            "listen": {"metrics": f"127.0.0.1:{free_port()}"},
            "workers": [],
            "attach": {},
        }
        start = seclude(tmp_path / "proc")
        node = stack.enter_context(running_node(file, short, start))
        wait_for(lambda: "metrics page" in node.log(), "the daemon to serve")
        yield Host(node, state, tmp_path, stack)


def test_gpus_of_a_follower_are_attributed_by_activity_only_while_it_runs(
    host: Host, say: Say
) -> None:
    # A foreign engine, as of another run of this test, which must not be found.
    all_gpus = {"CUDA_VISIBLE_DEVICES": ",".join(map(gpu, range(8)))}
    host.stack.enter_context(FakeEngine("vllm", host.folder, environment=all_gpus))
    started, port = time.time(), free_port()
    spans = ("--tensor-parallel-size", "4", "--nnodes", "2", "--master-addr", "127.0.0.1")
    spans += ("--master-port", str(port))
    host.start("vllm", 70, 0, 1, arguments=(*spans, "--node-rank", "0", *PRODUCER))
    follower = host.start(
        "vllm", 60, 2, 3, arguments=(*spans, "--node-rank", "1", "--headless", *PRODUCER)
    )
    meets = ("--nnodes", "2", "--node-rank", "1", "--dist-init-addr", "10.0.0.7:20000")
    host.start("sglang", 50, 4, arguments=(*meets, "--disaggregation-mode", "decode"))
    host.start("sglang", 40, 5, arguments=meets)

    def found() -> Page | None:
        page = host.node.page()
        heads = [host.leader(page, number) for number in range(6)]
        here, there = f"127.0.0.1:{port}", "10.0.0.7:20000"
        methods = [host.method(page, host.engine(page, number)) for number in (2, 3, 4)]
        right = heads == [None, None, here, here, there, there] and methods == ["follower"] * 3
        return page if right else None

    wait_for(found, "the followers to be found")
    began = time.time()
    say(f"followers: found and booked {began - started:.1f} s after their start")
    page = host.after(0.0, 2)
    name = host.engine(page, 2)
    assert name not in [r["engine"] for r, _ in page.samples["disagg_engine_up"]]

    follower.stop()
    ended = time.time()
    wait_for(lambda: host.engine(host.node.page(), 2) == "", "the follower to be gone")
    gone = time.time()
    say(f"; gone {gone - ended:.1f} s after its end")
    page = host.after(2.0, 2, 3, 4, 5)

    used = page.sum("disagg_engine_gpu_seconds_total", engine=name)
    for number in (2, 3):
        prefill = host.seconds(page, number, phase="prefill")
        assert 0.6 * (ended - began) - 1 < prefill < 0.6 * (gone - started) + 1
        assert prefill == pytest.approx(used / 2, abs=0.01)
        # Its GPUs are still active: that activity is of a foreign process.
        assert host.unattributed(page, number, "stranger") > 0
    decode, until = host.seconds(page, 4, phase="decode"), host.watermark(page, 4)
    assert 0.5 * (until - began) - 1 < decode < 0.5 * (until - started) + 1
    # The phase of the last one is unknown: its activity is unattributed, and not lost.
    assert host.method(page, host.engine(page, 5)) == "none"
    active, until = host.unattributed(page, 5, "no_record"), host.watermark(page, 5)
    assert 0.4 * (until - began) - 1 < active < 0.4 * (until - started) + 1
    assert host.seconds(page, 5, phase="prefill") + host.seconds(page, 5, phase="decode") == 0
    followers = {name, *(host.engine(page, number) for number in (4, 5))}
    warnings = [line for line in host.node.log().splitlines() if "WARNING" in line]
    assert [line for line in warnings if any(each in line for each in followers)] == []
