"""A real router before a real NIXL pair, all three kept by one daemon."""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.children import free_port
from support.running_node import RunningNode, running_node, wait_for
from support.vllm_nodes import MODEL_NAME, TINY_MODEL, nixl_node
from support.vllm_session import Say, make_model

pytestmark = pytest.mark.vllm_long

ROUTER_PYTHON = os.environ.get("DISAGG_ROUTER_PYTHON", "")
REQUESTS = 100


@pytest.fixture(scope="module")
def routed_pair(vllm_python: Path, short_folder: Path) -> Iterator[RunningNode]:
    """A NIXL pair and a router under a daemon; the first requests are behind it."""
    if not ROUTER_PYTHON:
        pytest.skip("DISAGG_ROUTER_PYTHON names no environment; `make test-vllm` makes one")
    folder = short_folder / "routed"
    folder.mkdir()
    node_file = nixl_node(
        python=vllm_python,
        model=make_model(vllm_python, short_folder / "tiny-model", TINY_MODEL),
        run_dir=folder,
        metrics_port=free_port(),
        ports=(free_port(), free_port()),
        side_channel_ports=(free_port(), free_port()),
    )
    node_file["router"] = {
        "python": str(Path(ROUTER_PYTHON).absolute()),
        "port": free_port(),
        "metrics_port": free_port(),
    }
    with running_node(node_file, folder) as node:
        node.wait_ready()
        wait_for(
            lambda: _status(node.url("router"), "warm up") == 200, "a first routed request", 120
        )
        yield node


def _status(url: str, prompt: str) -> int:
    body = json.dumps({"model": MODEL_NAME, "prompt": prompt, "max_tokens": 8}).encode()
    request = urllib.request.Request(
        f"{url}/v1/completions", body, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except urllib.error.URLError as error:
        sys.stderr.write(f"{url}: {error.reason}\n")
        return 0


def test_a_hundred_requests_pass_the_router_without_a_failure(
    routed_pair: RunningNode, say: Say
) -> None:
    before = routed_pair.page().sum("disagg_router_requests_total")

    with ThreadPoolExecutor(4) as requests:
        answers = list(
            requests.map(
                lambda n: _status(routed_pair.url("router"), f"{n} and more words"), range(REQUESTS)
            )
        )

    assert answers == [200] * REQUESTS
    counted = wait_for(
        lambda: routed_pair.page().sum("disagg_router_requests_total") - before >= REQUESTS,
        "the router's page to count them",
        20,
    )
    say(f"{REQUESTS} of {REQUESTS} requests answered, counted: {counted}")
    assert routed_pair.page().sum("disagg_router_prefill_errors_total") == 0


def test_request_durations_of_both_pools_and_of_the_router_are_consistent(
    routed_pair: RunningNode, say: Say
) -> None:
    """The router includes its own waits, so the durations of the pools are at most as long."""

    def mean_seconds(name: str, source: str) -> float:
        page = routed_pair.page()
        total, count = (page.sum(f"{name}_{part}", source=source) for part in ("sum", "count"))
        return total / count

    first, duration = (
        "disagg_request_time_to_first_token_seconds",
        "disagg_request_duration_seconds",
    )

    def counts() -> list[float]:
        page = routed_pair.page()
        told = ((first, "pools"), (duration, "pools"), (duration, "router"))
        return [page.sum(f"{name}_count", source=source) for name, source in told]

    try:
        wait_for(lambda: min(counts()) >= REQUESTS, "all requests on the page, by all sources", 20)
    finally:
        say(f"requests on the page by pools, pools and router: {counts()}")

    users = mean_seconds(duration, "router")
    engines = mean_seconds(duration, "pools")
    say(f"mean duration: {users:.3f} s by the router, {engines:.3f} s by both pools")
    assert mean_seconds(first, "pools") < engines
    assert 0.3 * users < engines <= 1.1 * users
    page = routed_pair.page()
    assert page.sum("disagg_request_arrivals_total", source="engine") >= REQUESTS
    assert page.sum("disagg_request_ends_total", source="engine") >= REQUESTS
    assert page.sum("disagg_request_ends_total", source="engine", reason="error") == 0
    assert page.sum("disagg_node_prompt_tokens_total", role="decode", origin="transferred") > 0


def test_a_killed_router_is_restarted_and_reported(routed_pair: RunningNode) -> None:
    started = routed_pair.page().sum("disagg_worker_start_timestamp_seconds", worker="router")
    engines = routed_pair.page().sum("disagg_worker_restarts_total", worker="decode-0")
    os.kill(_router_pid(routed_pair), signal.SIGKILL)

    def again() -> bool:
        page = routed_pair.page()
        return (
            page.sum("disagg_worker_restarts_total", worker="router") == 1
            and page.sum("disagg_worker_state", worker="router", state="ready") == 1
            and page.sum("disagg_worker_start_timestamp_seconds", worker="router") > started
        )

    wait_for(again, "the router to be ready again", 60)
    wait_for(lambda: _status(routed_pair.url("router"), "after") == 200, "it to route again", 60)
    assert routed_pair.page().sum("disagg_worker_restarts_total", worker="decode-0") == engines


def _router_pid(node: RunningNode) -> int:
    journal = json.loads((node.folder / "journal.json").read_text(encoding="utf-8"))
    return next(int(e["pid"]) for e in journal["workers"] if e["worker"] == "router")
