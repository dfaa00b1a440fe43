"""From a fault to a name on a webhook: simulated engines, real pages, Prometheus and Alertmanager.

All times of the rules are divided by 30; their thresholds are as shipped. What a crash loop and a
node that goes away do is shown with real daemons in demo/test_alerting.py.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from disagg_cluster.simulator.engine_faults import Slow
from disagg_cluster.simulator.gpu_faults import Throttled
from disagg_cluster.simulator.load import Mix
from disagg_cluster.simulator.network_faults import FailingTransfer
from disagg_exporter.model import Role
from support.alerting import Inbox, alertmanager, inbox, paging_prometheus
from support.prometheus_query import query
from support.running_node import wait_for
from support.simulated_fleet import Scene, engine_of, fleet, gpu_of

pytestmark = pytest.mark.prometheus

DIVISOR = 30
EVER = 1e6
PATIENCE_SECONDS = 240.0


def _nodes(cluster: str, prefill: int, decode: int) -> tuple[tuple[str, Role], ...]:
    names = [(f"{cluster}-p{number}", Role.PREFILL) for number in range(prefill)]
    return (*names, *((f"{cluster}-d{number}", Role.DECODE) for number in range(decode)))


SCENES = (
    Scene("calm", _nodes("calm", 1, 1), Mix(3, 1500, 100)),
    Scene("uneven", _nodes("uneven", 1, 2), Mix(7, 3000, 40)),
    Scene(
        "hot",
        _nodes("hot", 1, 1),
        Mix(2, 1500, 100),
        (Throttled(0, EVER, gpu_of("hot-d0"), 0.6),),
    ),
    Scene("leaky", _nodes("leaky", 1, 1), Mix(2, 3000, 60), (FailingTransfer(0, EVER, 0.9),)),
    Scene(
        "sick",
        _nodes("sick", 4, 1),
        # Loaded to a quarter where nothing is wrong: below a fifth nothing is compared.
        Mix(20, 2250, 40),
        (Slow(0, EVER, engine_of("sick-p3"), 3.0),),
    ),
)
# Who must be told of, and by which label: nobody else.
CULPRITS = {
    ("uneven", "DisaggImbalance", "role", "prefill"),
    ("hot", "DisaggGpuThrottled", "gpu", gpu_of("hot-d0")),
    ("leaky", "DisaggDecodeLeakage", "engine", engine_of("leaky-d0")),
    ("leaky", "DisaggKvTransferFailing", "engine", engine_of("leaky-d0")),
    # What was not fetched, and expires where it was computed.
    ("leaky", "DisaggKvTransferFailing", "engine", engine_of("leaky-p0")),
    ("sick", "DisaggNodeOffMedian", "node", "sick-p3"),
}


def named(told: Inbox) -> set[tuple[str, str, str, str]]:
    """What was told to somebody who must act, by the label that names the culprit."""
    label_of = {alert: label for _, alert, label, _ in CULPRITS}
    return {
        (
            labels.get("cluster", ""),
            labels["alertname"],
            label_of.get(labels["alertname"], ""),
            labels.get(label_of.get(labels["alertname"], ""), ""),
        )
        for receiver, labels in list(told.told)
        if receiver != "info"
    }


@pytest.mark.usefixtures("alerting_programs")
def test_each_fault_is_alerted_with_its_culprit_and_nothing_else_is(folder: Path) -> None:
    with contextlib.ExitStack() as stack:
        told = stack.enter_context(inbox())
        pager = stack.enter_context(alertmanager(folder, told.url))
        targets = stack.enter_context(fleet(SCENES))
        url = stack.enter_context(paging_prometheus(folder, targets, pager, DIVISOR))

        try:
            wait_for(lambda: named(told) >= CULPRITS, "all culprits", PATIENCE_SECONDS)
        except AssertionError as late:
            raise AssertionError(
                f"not told: {CULPRITS - named(told)}; told: {named(told)}"
            ) from late

        assert named(told) - CULPRITS == set()
        assert told.names("page") == set()
        # The calm cluster was scraped and did work.
        busy = query(url, 'avg_over_time(disagg_node_busy_gpus{cluster="calm"}[30s]) > 0')
        assert {labels["phase"] for labels, _ in busy} == {"prefill", "decode"}
        capacity = query(url, 'cluster_role:disagg_capacity_used:ratio{cluster="calm"}')
        assert capacity
