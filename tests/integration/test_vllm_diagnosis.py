"""Real engines that hold first tokens back: the command names the engine and the cause.

Two prefill engines and one that decodes, on the CPU, joined by NIXL over TCP; a Prometheus scrapes
their node, and `disagg-node diagnose` asks it. What is done to the engines is done from outside.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from disagg_cluster.demo.disaggregated_client import NIXL
from support.children import free_port
from support.paired_users import (
    PairedUsers,
    crowd,
    slow_link,
    stuttering,
    warm_up,
    worker_below,
)
from support.running_node import (
    DISAGG_NODE,
    RunningNode,
    prometheus_beside,
    running_node,
    wait_for,
)
from support.vllm_nodes import nixl_engines_node
from support.vllm_session import Say, make_model

pytestmark = pytest.mark.vllm_long

ENGINES = {"prefill-0": "prefill", "prefill-1": "prefill", "decode-0": "decode"}
MODEL = ("--hidden", "128", "--layers", "8")
# Prompts of some 100 to 400 tokens in several steps, none of which is known from before.
ARGS = ("--max-num-batched-tokens", "128", "--no-enable-prefix-caching")
SCRAPE_SECONDS = 2.0
# What users were promised is what an engine in trouble cannot keep, and one at rest does.
TTFT_SECONDS = 1.0
HEALTHY_SECONDS = 180.0
# What a test before did to the engines is no past to be held against.
SINCE = "5m"
PATIENCE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Watched:
    """The engines under users' steady load, and the Prometheus that scrapes their node."""

    node: RunningNode
    prometheus_url: str
    folder: Path

    def link_file(self, engine: str) -> Path:
        """Who writes a number there says at how many bytes a second KV may leave an engine."""
        return _link_file(self.folder, engine)

    def pid(self, engine: str) -> int:
        """The process of an engine that computes."""
        journal = json.loads((self.node.folder / "journal.json").read_text(encoding="utf-8"))
        pids = {each["worker"]: int(each["pid"]) for each in journal["workers"]}
        return worker_below(pids[engine])

    def ask(self, *options: str) -> str:
        """What the command says now."""
        asked = ("diagnose", "--prometheus", self.prometheus_url, "--since", SINCE, *options)
        argv = [*DISAGG_NODE, *asked, "-c", str(self.folder / "planner.yaml")]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
        return done.stdout

    def verdict(self) -> tuple[str, str, tuple[str, ...]]:
        """Outcome, and cause and engines of what costs most; empty where nothing is found."""
        [model] = json.loads(self.ask("--json"))["models"]
        first: dict[str, Any] = next(iter(model["findings"]), {"cause": "", "engines": []})
        engines = tuple(each["engine"] for each in first["engines"])
        return model["outcome"], first["cause"], engines


@pytest.fixture(scope="module")
def watched(vllm_python: Path, short_folder: Path) -> Iterator[Watched]:
    """The engines, warmed up; their KV goes over a link that a test can make slow."""
    folder = short_folder / "blame"
    folder.mkdir()
    shim = folder / "link_shim.so"
    source = Path(__file__).parents[1] / "support" / "link_shim.c"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    node_file = nixl_engines_node(
        ENGINES,
        python=vllm_python,
        model=make_model(vllm_python, short_folder / "blame-model", MODEL),
        run_dir=folder / "run",
        metrics_port=free_port(),
        ports=[free_port() for _ in ENGINES],
        side_channel_ports=[free_port() for _ in ENGINES],
        args=ARGS,
    )
    (folder / "run").mkdir()
    targets = {"ttft_seconds": TTFT_SECONDS, "itl_seconds": 1.0}
    (folder / "planner.yaml").write_text(yaml.safe_dump({"targets": targets}), encoding="utf-8")
    for worker in node_file["workers"]:
        link = str(_link_file(folder, worker["name"]))
        worker["env"] = worker["env"] | {"LD_PRELOAD": str(shim), "LINK_SHIM_FILE": link}
    with running_node(node_file, folder / "run") as node:
        node.wait_ready(600)
        urls = [node.url(name) for name, role in ENGINES.items() if role == "prefill"]
        for url in urls:
            warm_up(url, node.url("decode-0"), NIXL)
        with (
            prometheus_beside(node, folder, SCRAPE_SECONDS) as prometheus_url,
            PairedUsers(urls, node.url("decode-0"), NIXL).asking(),
        ):
            yield Watched(node, prometheus_url, folder)


def _link_file(folder: Path, engine: str) -> Path:
    return folder / f"{engine}.link"


def _blamed(
    watched: Watched,
    fault: AbstractContextManager[None],
    say: Say,
    cause: str,
    engines: tuple[str, ...],
) -> None:
    """Nobody is blamed before; who is blamed while it lasts is whom it was done to."""
    time.sleep(HEALTHY_SECONDS)
    outcome, *blamed = watched.verdict()
    say(f"before: {outcome}, {blamed}")
    assert outcome != "found", watched.ask()
    with fault:
        began = time.monotonic()
        try:
            wait_for(
                lambda: watched.verdict() == ("found", cause, engines),
                f"{cause} of {engines}",
                PATIENCE_SECONDS,
            )
        finally:
            say(f"{cause} of {engines}, {time.monotonic() - began:.0f} s after it began:")
            say(watched.ask().replace("\n", "\n    "))


def test_a_repeatedly_stopped_engine_is_diagnosed_as_slow(watched: Watched, say: Say) -> None:
    """Its worker is stopped for 95 % of the time, and the other one is not."""
    fault = stuttering(watched.pid("prefill-0"), 0.95, 0.05)
    _blamed(watched, fault, say, "slow_gpu", ("prefill-0",))


def test_an_engine_with_more_requests_is_diagnosed_as_unbalanced_routing(
    watched: Watched, say: Say
) -> None:
    fault = crowd(watched.node.url("prefill-1"), 12)
    _blamed(watched, fault, say, "unbalanced_routing", ("prefill-1",))


def test_a_slow_link_is_diagnosed_as_kv_transfer_of_the_sending_engine(
    watched: Watched, say: Say
) -> None:
    """One prefill engine sends slowly, so requests wait for its KV at the decode engine."""
    fault = slow_link(watched.link_file("prefill-1"), 1_000_000)
    _blamed(watched, fault, say, "kv_transfer", ("prefill-1",))
