"""From a worker that crashes to a page on a webhook: real daemons, Prometheus and Alertmanager.

All times of the rules are divided by 30; their thresholds are as shipped.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from disagg_cluster.demo.nodefile import free_ports
from disagg_cluster.prometheus.local_server import ScrapeTarget
from disagg_cluster.prometheus.prometheus_api import PrometheusError
from disagg_exporter.errors import DisaggError
from disagg_exporter.http.client.scrape import fetch
from support.alerting import Inbox, alertmanager, alerts_of, inbox, paging_prometheus
from support.children import free_port
from support.prometheus_query import query
from support.running_demo import RunningDemo
from support.running_node import running_node, wait_for

pytestmark = pytest.mark.prometheus

DIVISOR = 30
CRASHING, CALM = "crashing-node", "calm-node"


def crashing_node(run_dir: Path, metrics: str) -> dict[str, Any]:
    """A node with one worker that is well and one that ends at once, over and over."""
    ports = free_ports(2)
    usual = {"engine": "standin", "model": "demo-8b"}
    return {
        "node": CRASHING,
        "devices": "sim",
        "sim_devices": 2,
        "run_dir": str(run_dir),
        "listen": {"metrics": metrics},
        "restart": {
            # Six or more restarts in ten minutes / 30, three of which are a crash loop.
            "backoff_first_seconds": 0.5,
            "backoff_max_seconds": 2.0,
            "crash_limit": 100000,
        },
        "workers": [
            {"name": "prefill-0", "role": "prefill", "gpus": [0], "port": ports[0], **usual},
            {"name": "decode-0", "role": "decode", "gpus": [1], "port": ports[1], **usual}
            | {"args": ["--no-such-argument"]},
        ],
    }


def answers(address: str) -> bool:
    try:
        return b"disagg_node_busy_window_seconds" in fetch(f"http://{address}/metrics", 5.0)
    except DisaggError:
        return False


def fires(url: str, alert: str) -> bool:
    try:
        return bool(query(url, f'ALERTS{{alertname="{alert}",alertstate="firing"}}'))
    except PrometheusError:
        return False  # it is still starting


@pytest.mark.usefixtures("alerting_programs")
def test_a_crash_loop_is_alerted_with_its_worker_and_a_calm_node_is_not(
    folder: Path, demo: RunningDemo
) -> None:
    """Alerts that follow from the crash loop are inhibited; a lost node becomes a ticket.

    The calm node is the demo: six stand-in engines under a load that swings.
    """
    run_dir = folder / "run"
    run_dir.mkdir()
    crashing, calm = f"127.0.0.1:{free_port()}", urlsplit(demo.page_url()).netloc
    targets = [ScrapeTarget(crashing, CRASHING, "test"), ScrapeTarget(calm, CALM, "test")]
    loop = ("DisaggWorkerCrashLoop", CRASHING, "decode-0")
    with contextlib.ExitStack() as stack:
        told = stack.enter_context(inbox())
        pager = stack.enter_context(alertmanager(folder, told.url))
        node = stack.enter_context(running_node(crashing_node(run_dir, crashing), run_dir))
        wait_for(lambda: answers(crashing) and answers(calm), "both pages")
        url = stack.enter_context(paging_prometheus(folder, targets, pager, DIVISOR))

        wait_for(lambda: loop in told.names("ticket"), "the ticket of the crash loop")
        # Not ready for 20 minutes / 30: until then no other alert may arrive, from either node.
        wait_for(lambda: fires(url, "DisaggWorkerDown"), "the worker to be down")
        wait_for(
            lambda: alerts_of(pager).get(("DisaggWorkerDown", "decode-0")) == "suppressed",
            "the worker's being down to be held back",
        )
        assert told.names("ticket") == {loop}, told.told
        assert told.names("page") == set(), told.told
        assert_calm(told, url)

        node.stop()
        gone = ("DisaggNodeDown", CRASHING, "")
        wait_for(lambda: gone in told.names("ticket"), "the ticket of the node that is gone")
        assert told.names("page") == set()
        assert_calm(told, url)


def assert_calm(told: Inbox, url: str) -> None:
    """The calm node was measured, did work, and nobody was told of it."""
    busy = query(url, f'max_over_time(disagg_node_busy_gpus{{node="{CALM}"}}[1m]) > 0')
    assert {labels["phase"] for labels, _ in busy} == {"prefill", "decode"}
    assert [labels for _, labels in told.told if labels.get("node") == CALM] == []
