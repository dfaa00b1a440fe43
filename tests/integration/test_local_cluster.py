"""`make run-cluster` as a developer runs it: three nodes, one of which is cut off and comes back.

Its namespaces by themselves, too: machines that reach each other, and nothing left of them.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from scripts.local_cluster.plan import ClusterPlan, Door, Machine, Program
from scripts.local_cluster.sandbox import (
    ROOT,
    NoNamespacesError,
    PortTakenError,
    running,
    usable_flags,
)

from disagg_cluster.host.processes.procfs import children_of
from disagg_exporter.errors import DisaggError
from disagg_exporter.http.client.scrape import fetch
from support.children import PYTHON, is_gone
from support.prometheus_query import query
from support.running_node import wait_for

NODES = {"node-a", "node-b", "node-c"}
ACCOUNTED = '{__name__=~"disagg_gpu_(phase|unobserved)_seconds_total"}'
WATERMARKS = "disagg_gpu_watermark_timestamp_seconds"
STEPS = "sum by (node) (disagg_engine_steps_total)"


@pytest.fixture(scope="module", autouse=True)
def namespaces() -> None:
    """Skip where no namespace can be made; the reason says what would change that."""
    try:
        usable_flags()
    except NoNamespacesError as error:
        pytest.skip(str(error))


@dataclass(frozen=True, slots=True)
class RunCluster:
    """The running command, and what it has said."""

    process: subprocess.Popen[bytes]
    log: Path

    def said(self, pattern: str) -> str:
        """Wait for what it says."""

        def found() -> str | None:
            assert self.process.poll() is None, self.log.read_text()
            match = re.search(pattern, self.log.read_text())
            return match and match[1]

        return wait_for(found, f"the command to say {pattern}")

    def ask(self, expr: str) -> dict[str, float]:
        """Ask Prometheus; the answer by node."""
        rows = query(self.said(r"Prometheus: +(\S+)"), expr)
        return {labels.get("node", ""): value for labels, value in rows}

    def do(self, what: str) -> None:
        """Run a command that it has told."""
        subprocess.run(shlex.split(self.said(f"{what}: (nsenter .*)")), check=True, timeout=30)


@pytest.fixture
def cluster(folder: Path) -> Iterator[RunCluster]:
    log = folder / "said"
    with log.open("wb") as output:
        argv = [sys.executable, "-m", "scripts.local_cluster", "--port", "0"]
        process = subprocess.Popen(argv, stderr=output, cwd=ROOT)
    try:
        yield RunCluster(process, log)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, log.read_text()


@pytest.mark.prometheus
def test_only_a_disconnected_node_is_down_and_it_loses_no_gpu_seconds(cluster: RunCluster) -> None:
    inside = int(cluster.said(r"--target (\d+)"))
    wait_for(lambda: set(cluster.ask(f"{STEPS} > 0")) == NODES, "steps of all nodes")
    wait_for(
        lambda: cluster.ask("cluster_model:disagg_prefill_decode_ratio:ratio_rate1m > 0"), "a ratio"
    )

    began = time.monotonic()
    cluster.do("cut off node-b")
    wait_for(lambda: "node-b" in cluster.ask("up == 0"), "a scrape that failed")

    def known() -> dict[str, float] | None:
        steps = cluster.ask(STEPS)
        return steps if set(steps) == NODES - {"node-b"} else None

    steps = wait_for(known, "what is not known to be shown no longer")
    pending = 'ALERTS{alertname="DisaggNodeDown", alertstate="pending"}'
    wait_for(lambda: set(cluster.ask(pending)) == {"node-b"}, "the alert to be pending")

    def went_on() -> bool:
        now = cluster.ask(STEPS)
        return all(now.get(node, 0.0) > count + 10 for node, count in steps.items())

    wait_for(went_on, "the others to work on")
    up = {"node-a": 1.0, "node-b": 0.0, "node-c": 1.0}
    wait_for(lambda: cluster.ask("up") == up, "the one node to be down")

    cluster.do("heal node-b")
    wait_for(lambda: cluster.ask("up") == dict.fromkeys(NODES, 1.0), "the node to be back")
    # Some scrapes of before the cut belong to it, however long the questions take.
    seconds = 5 + round(time.monotonic() - began)
    # To the nanosecond, what passed meanwhile for its GPUs is accounted for, the cut included. Each
    # is asked in one question, so that all of it is of the same scrapes.
    passed = _grown(WATERMARKS, seconds)
    lost = cluster.ask(f"{passed} - ({_grown(ACCOUNTED, seconds)})")
    assert lost == pytest.approx(dict.fromkeys(NODES, 0.0), abs=1e-3)
    assert cluster.ask(passed)["node-b"] > 0
    # So for `increase`, but that Prometheus extends no counter to before it was zero, and a gauge
    # by up to 1.1 mean intervals: some three of twenty seconds, as scrapes of the cut are lacking.
    increase = f"sum by (node) (increase({ACCOUNTED}[{seconds}s]))"
    delta = f"sum by (node) (delta({WATERMARKS}[{seconds}s]))"
    assert cluster.ask(f"{increase} / {delta}")["node-b"] == pytest.approx(1.0, abs=0.3)

    cluster.process.send_signal(signal.SIGINT)
    # A second signal, the fixture's, would end an interpreter that is ending already.
    assert cluster.process.wait(60) == 0
    assert is_gone(inside)


def _grown(selector: str, seconds: int) -> str:
    """By how much a sum by node has grown in so long; a scrape that failed is looked past."""
    now, then = (
        f"sum by (node) (last_over_time({selector}[10s]{offset}))"
        for offset in ("", f" offset {seconds}s")
    )
    return f"{now} - {then}"


SERVER = """
import socket
listener = socket.create_server(("10.1.2.1", 80))
while True:
    connection = listener.accept()[0]
    connection.recv(4096)
    connection.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\nword")
    connection.close()
"""


def small_plan() -> ClusterPlan:
    """Two machines; one serves a page."""
    serve = (*PYTHON, SERVER)
    return ClusterPlan(
        (Machine("one", "10.1.2.1"), Machine("two", "10.1.2.2")),
        (Program("server", serve, "one"),),
        (Door("server", 0, "10.1.2.1", 80),),
    )


def test_machines_reach_each_other_unless_one_is_disconnected() -> None:
    ask = "import socket; socket.create_connection(('10.1.2.1', 80), 1).close()"
    with running(small_plan()) as sandbox:
        wait_for(lambda: _page(sandbox.url("server")), "the page", 30)
        asked = sandbox.within(*PYTHON, ask, machine="two")
        subprocess.run(asked, check=True, timeout=30)
        with sandbox.cut_off("one"):
            assert subprocess.run(asked, stderr=subprocess.DEVNULL, timeout=30).returncode
        subprocess.run(asked, check=True, timeout=30)
    assert is_gone(sandbox.pid)


def test_two_sandboxes_are_isolated_except_for_host_ports() -> None:
    with running(small_plan()) as one, running(small_plan()) as other:
        assert one.url("server") != other.url("server")
        taken = one.plan.with_ports({"server": one.plan.doors[0].port})
        with pytest.raises(PortTakenError, match="Address already in use"), running(taken):
            pass


SLEEPER = """
from scripts.local_cluster.plan import ClusterPlan, Machine, Program
from scripts.local_cluster.sandbox import running
sleep = Program("sleep", ("sleep", "600"), "one")
with running(ClusterPlan((Machine("one", "10.1.2.1"),), (sleep,))) as sandbox:
    print(sandbox.process.pid, sandbox.pid, flush=True)
    sandbox.process.wait()
"""


@pytest.mark.parametrize("victim", ["command", "unshare", "inside"])
def test_no_process_is_left_whichever_process_is_killed(victim: str) -> None:
    argv = [sys.executable, "-c", SLEEPER]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        unshare, inside = map(int, command.stdout.readline().split())
        [sleeping] = children_of(inside)
        os.kill({"command": command.pid, "unshare": unshare, "inside": inside}[victim], 9)
        # The kernel removes the network namespaces, as no process is in them.
        assert is_gone(sleeping)
        assert is_gone(inside)


def _page(url: str) -> bytes:
    try:
        return fetch(url, 2.0)
    except DisaggError:
        return b""
