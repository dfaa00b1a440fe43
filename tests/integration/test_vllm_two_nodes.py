"""Real vLLM over two nodes: prefill in one network namespace, decode in another, KV between them.

NIXL over TCP through the link of two nodes, each under a daemon of its own; one Prometheus.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripts.local_cluster.plan import ClusterPlan, Door, Machine, Program
from scripts.local_cluster.sandbox import NoNamespacesError, Sandbox, running, usable_flags

from disagg_cluster.demo.disaggregated_client import NIXL, complete
from disagg_cluster.host.files.package_data import asset_dir
from disagg_cluster.prometheus.local_server import (
    CONFIG_FILE,
    ScrapeTarget,
    prometheus_argv,
    scrape_config,
)
from disagg_exporter.errors import DisaggError
from support.paired_users import REQUEST_SECONDS, warm_up
from support.prometheus_query import query
from support.running_node import DISAGG_NODE, wait_for
from support.vllm_nodes import MODEL_NAME, nixl_engines_node
from support.vllm_session import Say

pytestmark = pytest.mark.vllm_long

MACHINES = {"prefill": Machine("prefill", "10.0.0.7"), "decode": Machine("decode", "10.0.0.8")}
ENGINE_PORT, SIDE_CHANNEL_PORT, PAGE_PORT, PROMETHEUS_PORT = 8100, 5600, 9847, 9090
PROMPTS = [f"{number} tells of keys and values " * (2 + number) for number in range(8)]
OUTPUT_TOKENS = 12
INTERVAL_SECONDS = 2.0
TRANSFERS = "disagg_engine_kv_transfers_total"
COUNTERS = {
    "transfers": TRANSFERS,
    "failed transfers": "disagg_engine_kv_transfer_failures_total",
    "bytes told": "disagg_engine_kv_transfer_bytes_total",
    "computed": 'disagg_node_prompt_tokens_total{origin="computed"}',
    "transferred": 'disagg_node_prompt_tokens_total{origin="transferred"}',
    "prefill seconds": 'disagg_node_phase_seconds_total{phase="prefill"}',
    "decode seconds": 'disagg_node_phase_seconds_total{phase="decode"}',
}


@dataclass(frozen=True, slots=True)
class TwoNodes:
    """Both nodes, seen from outside."""

    sandbox: Sandbox

    def ask(self, expr: str) -> dict[str, float]:
        """Ask Prometheus for one value of each node."""
        rows = query(self.sandbox.url("prometheus"), f"sum by (node) ({expr})")
        return {labels["node"]: value for labels, value in rows}

    def counts(self) -> dict[str, dict[str, float]]:
        """What the nodes' pages have counted, and their links."""
        told = {name: self.ask(expr) for name, expr in COUNTERS.items()}
        return told | {"bytes received": {role: self._received_bytes(role) for role in MACHINES}}

    def counts_since(
        self, before: dict[str, dict[str, float]], done: float
    ) -> dict[str, dict[str, float]]:
        """By what they have grown when all until a moment (Unix seconds) is accounted for."""
        # Of the links now: later there are only scrapes on them.
        received = self.counts()["bytes received"]
        self.wait_accounted(done)
        now = self.counts() | {"bytes received": received}
        return {
            name: {role: now[name][role] - before[name][role] for role in MACHINES} for name in now
        }

    def wait_accounted(self, until: float) -> None:
        """Wait until both nodes show all that was done before a moment (Unix seconds)."""

        def accounted() -> bool:
            marks = self.ask("min by (node) (disagg_engine_watermark_timestamp_seconds)")
            return len(marks) == len(MACHINES) and min(marks.values()) > until

        wait_for(accounted, "all of it to be accounted for")

    def _received_bytes(self, node: str) -> int:
        counter = "/sys/class/net/eth0/statistics/rx_bytes"
        argv = self.sandbox.within("cat", counter, machine=node)
        return int(subprocess.run(argv, check=True, capture_output=True, timeout=30).stdout)

    def complete(self, prompt: str) -> int:
        """Complete a prompt over both nodes; how many tokens it had."""
        urls = self.sandbox.url("prefill"), self.sandbox.url("decode")
        done = complete(*urls, MODEL_NAME, prompt, OUTPUT_TOKENS, NIXL, REQUEST_SECONDS)
        assert done.completion_tokens == OUTPUT_TOKENS
        return done.prompt_tokens


def _grown_in_five_minutes(counter: str) -> str:
    """The growth of a counter; on a busy machine the first requests are longer ago."""
    return f"{counter} - ({counter} offset 5m or 0 * {counter})"


def node_file(role: str, python: Path, model: Path, folder: Path) -> dict[str, Any]:
    """One engine of a role, which its peer reaches by the node's address."""
    machine = MACHINES[role]
    read = nixl_engines_node(
        {f"{role}-0": role},
        python=python,
        model=model,
        run_dir=folder / role,
        metrics_port=PAGE_PORT,
        ports=[ENGINE_PORT],
        side_channel_ports=[SIDE_CHANNEL_PORT],
    )
    [worker] = read["workers"]
    worker["host"] = machine.address
    worker["env"] |= {"UCX_NET_DEVICES": "eth0"}
    # What it tells its peers follows from `host`.
    del worker["env"]["VLLM_NIXL_SIDE_CHANNEL_HOST"]
    listen = {"metrics": f"{machine.address}:{PAGE_PORT}"}
    return read | {"node": machine.name, "peers": "elsewhere", "listen": listen}


def two_nodes_plan(python: Path, model: Path, folder: Path) -> ClusterPlan:
    """Both nodes and a Prometheus that scrapes them."""
    prometheus = shutil.which("prometheus")
    assert prometheus is not None
    targets = [
        ScrapeTarget(f"{each.address}:{PAGE_PORT}", each.name, "test") for each in MACHINES.values()
    ]
    rules = [f"{asset_dir('alerts')}/rules/*.yaml"]
    config = scrape_config(targets, interval_seconds=INTERVAL_SECONDS, rule_files=rules)
    files = {
        f"{folder}/{role}.yaml": yaml.safe_dump(node_file(role, python, model, folder))
        for role in MACHINES
    }
    daemons = [
        Program(role, (*DISAGG_NODE, "start", "-c", f"{folder}/{role}.yaml", "--json"), role)
        for role in MACHINES
    ]
    argv = prometheus_argv(
        Path(prometheus), folder / "prometheus", listen=f"0.0.0.0:{PROMETHEUS_PORT}"
    )
    return ClusterPlan(
        tuple(MACHINES.values()),
        (*daemons, Program("prometheus", argv)),
        (
            *(Door(role, 0, each.address, ENGINE_PORT) for role, each in MACHINES.items()),
            Door("prometheus", 0, "10.0.0.254", PROMETHEUS_PORT),
        ),
        files | {f"{folder}/prometheus/{CONFIG_FILE}": config},
        str(folder / "logs"),
    )


@pytest.fixture(scope="module")
def nodes(vllm_python: Path, slow_model: Path, short_folder: Path) -> Iterator[TwoNodes]:
    try:
        usable_flags()
    except NoNamespacesError as error:
        pytest.skip(str(error))
    folder = short_folder / "two"
    for role in MACHINES:
        (folder / role).mkdir(parents=True)
    with running(two_nodes_plan(vllm_python, slow_model, folder)) as sandbox:
        yield TwoNodes(sandbox)
    for path in (*folder.glob("logs/*.log"), *folder.glob("*/logs/*.log")):
        sys.stderr.write(f"--- {path}\n{path.read_text(errors='replace')[-3000:]}\n")


def test_kv_is_transferred_between_nodes_and_each_pool_is_metered_separately(
    nodes: TwoNodes, say: Say
) -> None:
    def ready() -> bool:
        try:
            return nodes.ask('disagg_worker_state{state="ready"} == 1') == {
                "prefill": 1,
                "decode": 1,
            }
        except DisaggError:
            return False

    wait_for(ready, "an engine on each node", 600)
    warm_up(nodes.sandbox.url("prefill"), nodes.sandbox.url("decode"), NIXL)
    wait_for(lambda: nodes.ask(TRANSFERS).get("decode"), "the transfer of the warm-up")
    # Each node's page is read at times of its own: the prompt may still be missing on the other.
    nodes.wait_accounted(time.time())
    before = nodes.counts()

    prompt_tokens = sum(nodes.complete(prompt) for prompt in PROMPTS)

    done = time.time()
    grown = nodes.counts_since(before, done)
    for name, by_node in grown.items():
        say(f"{name}: {by_node}")
    # The wire says what the engine says, give or take what is wrapped around KV.
    told = grown["bytes told"]["decode"]
    assert told <= grown["bytes received"]["decode"] <= 1.1 * told
    assert grown["bytes received"]["prefill"] < 0.1 * told
    assert grown["transfers"] == {"prefill": 0, "decode": len(PROMPTS)}
    assert grown["failed transfers"] == {"prefill": 0, "decode": 0}
    assert grown["computed"] == {"prefill": prompt_tokens, "decode": 0}
    assert grown["transferred"] == {"prefill": 0, "decode": prompt_tokens}
    prefill, decode = grown["prefill seconds"], grown["decode seconds"]
    assert prefill["prefill"] > 0
    assert decode["decode"] > 0
    assert prefill["decode"] <= 0.02 * decode["decode"]
    assert decode["prefill"] <= 0.02 * prefill["prefill"]

    ratio = f'cluster_model:disagg_prefill_decode_ratio:ratio_rate5m{{model_name="{MODEL_NAME}"}}'
    # Rules follow from rules: they are evaluated twice after the last scrape that counts.
    rules_ran = f"timestamp({ratio}) > {time.time() + 2 * INTERVAL_SECONDS}"
    wait_for(lambda: query(nodes.sandbox.url("prometheus"), rules_ran), "the rules to be evaluated")
    [[_, recorded]] = query(nodes.sandbox.url("prometheus"), ratio)
    in_prefill, in_decode = (
        sum(nodes.ask(_grown_in_five_minutes(COUNTERS[f"{phase} seconds"])).values())
        for phase in ("prefill", "decode")
    )
    expected = in_prefill / in_decode
    say(f"ratio recorded {recorded:.4f}, of the counters {expected:.4f}")
    assert recorded == pytest.approx(expected, rel=0.1)
