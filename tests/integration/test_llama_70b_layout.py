"""The two node files of Llama-70B in examples/, played on two machines with stand-in engines.

Both files as they are, but for the programs: the engines' interpreter is a stand-in that takes
vLLM's command, GPUs are simulated, and the router is the real one of this machine. Addresses,
ports, GPUs, sizes and the router's engines are the files' own.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripts.local_cluster.plan import ClusterPlan, Door, Machine, Program
from scripts.local_cluster.sandbox import NoNamespacesError, Sandbox, running, usable_flags

from disagg_cluster.host.files.package_data import asset_dir
from disagg_cluster.prometheus.local_server import (
    CONFIG_FILE,
    ScrapeTarget,
    prometheus_argv,
    scrape_config,
)
from disagg_exporter.errors import DisaggError
from support import vllm_standin
from support.prometheus_query import query
from support.running_node import DISAGG_NODE, wait_for

ROUTER_PYTHON = os.environ.get("DISAGG_ROUTER_PYTHON", "")
pytestmark = [
    pytest.mark.long,
    pytest.mark.prometheus,
    pytest.mark.skipif(not ROUTER_PYTHON, reason="DISAGG_ROUTER_PYTHON names no environment"),
]

MACHINES = (Machine("prefill-7", "10.0.0.7"), Machine("decode-8", "10.0.0.8"))
MODEL = "llama-3.3-70b"
GPUS = 8
REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 24, 2000, 30


@dataclass(frozen=True, slots=True)
class Layout:
    """Both nodes, and where Prometheus and router answer here."""

    sandbox: Sandbox
    folder: Path

    def ask(self, expr: str) -> list[tuple[dict[str, str], float]]:
        """Ask Prometheus."""
        return query(self.sandbox.url("prometheus"), expr)

    def by_node(self, expr: str) -> dict[str, float]:
        """Ask Prometheus for one value of each node."""
        return {labels["node"]: value for labels, value in self.ask(f"sum by (node) ({expr})")}

    def complete(self, number: int) -> dict[str, Any]:
        """Send a request to the router, as a user of the cluster does."""
        # Four characters are a token to a stand-in.
        prompt = f"{number:<8}" + "word" * (PROMPT_TOKENS - 2)
        body = json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": OUTPUT_TOKENS})
        headers = {"Content-Type": "application/json"}
        url = self.sandbox.url("router") + "/v1/completions"
        with urllib.request.urlopen(
            urllib.request.Request(url, body.encode(), headers), timeout=60
        ) as answer:
            read: dict[str, Any] = json.load(answer)
        return read


def node_file(machine: Machine, interpreter: Path, folder: Path) -> dict[str, Any]:
    """An example's node file with programs that there are here."""
    role = machine.name.partition("-")[0]
    path = Path(str(asset_dir("examples"))) / f"llama-70b-{role}-node.yaml"
    read: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert read["node"] == machine.name
    for worker in read["workers"]:
        worker["python"] = str(interpreter)
        worker["env"] = {vllm_standin.GPUS_VARIABLE: ",".join(map(str, worker["gpus"]))}
    if "router" in read:
        read["router"]["python"] = str(Path(ROUTER_PYTHON).absolute())
    simulated = {"devices": "sim", "sim_devices": GPUS, "run_dir": str(folder / machine.name)}
    return read | simulated


def layout_plan(folder: Path) -> ClusterPlan:
    """Both nodes and a Prometheus that scrapes them."""
    interpreter = folder / "python"
    interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} {vllm_standin.__file__} "$@"\n')
    interpreter.chmod(0o755)
    prometheus = shutil.which("prometheus")
    assert prometheus is not None
    targets = [ScrapeTarget(f"{each.address}:9847", each.name, "production") for each in MACHINES]
    rules = [f"{asset_dir('alerts')}/rules/*.yaml"]
    files = {
        f"{folder}/{each.name}.yaml": yaml.safe_dump(node_file(each, interpreter, folder))
        for each in MACHINES
    }
    config = scrape_config(targets, interval_seconds=1.0, rule_files=rules)
    return ClusterPlan(
        MACHINES,
        (
            *(
                Program(
                    each.name,
                    (*DISAGG_NODE, "start", "-c", f"{folder}/{each.name}.yaml", "--json"),
                    each.name,
                )
                for each in MACHINES
            ),
            Program(
                "prometheus",
                prometheus_argv(Path(prometheus), folder / "prometheus", listen="0.0.0.0:9090"),
            ),
        ),
        (
            Door("router", 0, "10.0.0.8", 8000),
            Door("prometheus", 0, "10.0.0.254", 9090),
        ),
        files | {f"{folder}/prometheus/{CONFIG_FILE}": config},
        str(folder / "logs"),
    )


@pytest.fixture
def layout(folder: Path) -> Iterator[Layout]:
    try:
        usable_flags()
    except NoNamespacesError as error:
        pytest.skip(str(error))
    with running(layout_plan(folder)) as sandbox:
        yield Layout(sandbox, folder)
    # Where a test has failed, pytest shows it.
    for path in (*folder.glob("logs/*.log"), *folder.glob("*/logs/*.log")):
        sys.stderr.write(f"--- {path}\n{path.read_text(errors='replace')[-2000:]}\n")


def test_requests_cross_from_node_to_node_and_both_pools_are_metered(
    layout: Layout,
) -> None:
    def all_ready() -> bool:
        try:
            ready = layout.by_node('disagg_worker_state{state="ready"}')
        except DisaggError:
            return False
        return ready == {"prefill-7": 2, "decode-8": 3}

    wait_for(all_ready, "two engines on each node, and the router, to be ready")
    roles = layout.ask("sum by (node, role) (disagg_gpu_assignment_info)")
    assert {(of["node"], of["role"]): gpus for of, gpus in roles} == {
        ("prefill-7", "prefill"): GPUS,
        ("decode-8", "decode"): GPUS,
    }

    with ThreadPoolExecutor(8) as users:
        answers = list(users.map(layout.complete, range(REQUESTS)))
    done = time.time()
    assert {each["usage"]["completion_tokens"] for each in answers} == {OUTPUT_TOKENS}

    def committed() -> bool:
        marks = layout.ask("min by (node) (disagg_gpu_watermark_timestamp_seconds)")
        return len(marks) == 2 and all(value > done for _, value in marks)

    wait_for(committed, "all of it to be accounted for")
    tokens = layout.ask("sum by (node, role, phase) (disagg_node_phase_tokens_total) > 0")
    assert {(of["node"], of["role"], of["phase"]): value for of, value in tokens} == {
        ("prefill-7", "prefill", "prefill"): REQUESTS * PROMPT_TOKENS,
        ("decode-8", "decode", "decode"): REQUESTS * OUTPUT_TOKENS,
    }
    prefill = layout.by_node('disagg_node_phase_seconds_total{phase="prefill"} > 0')
    decode = layout.by_node('disagg_node_phase_seconds_total{phase="decode"} > 0')
    assert (set(prefill), set(decode)) == ({"prefill-7"}, {"decode-8"})
    ratio = f'cluster_model:disagg_prefill_decode_ratio:ratio_rate5m{{model_name="{MODEL}"}}'
    expected = pytest.approx(prefill["prefill-7"] / decode["decode-8"], rel=0.1)
    wait_for(lambda: [value for _, value in layout.ask(ratio)] == [expected], "the ratio", 15)
    [[_, answered]] = layout.ask("disagg_router_requests_total")
    assert answered == REQUESTS
