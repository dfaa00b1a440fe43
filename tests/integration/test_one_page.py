"""What of one event is heard: alerts as rules write them, a real Alertmanager on our example."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from support.alerting import alertmanager
from support.running_node import wait_for

pytestmark = pytest.mark.prometheus

Alert = dict[str, str]
M = {"model_name": "m", "engine_namespace": "prod"}
OTHER = {"model_name": "other", "engine_namespace": "prod"}


def page(name: str, **labels: str) -> Alert:
    return {"alertname": f"Disagg{name}", "severity": "page", **labels}


def ticket(name: str, **labels: str) -> Alert:
    return {"alertname": f"Disagg{name}", "severity": "ticket", **labels}


def reduced(role: str) -> Alert:
    return {"alertname": "DisaggPoolReduced", "severity": "info", "role": role, **M}


def engine(name: str, role: str) -> Alert:
    return {"node": "a", "engine": name, "worker": name, "role": role, **M}


# An event, who is heard of it, and what is held back.
EVENTS: dict[str, tuple[list[Alert], list[Alert]]] = {
    "both pools gone": (
        [page("PoolVanished", **M)],
        [
            page("EngineDown", **engine("prefill-0", "prefill")),
            page("EngineDown", **engine("decode-0", "decode")),
            page("RouterErrors", node="a", worker="prefill-0", phase="prefill", **M),
            page("TtftBurnFast", **M),
            ticket("TtftBurnSlow", **M),
            reduced("prefill"),
        ],
    ),
    "one of two engines hangs": (
        [page("EngineStalled", **engine("decode-0", "decode")), reduced("decode")],
        [
            page("RouterErrors", node="a", worker="decode-0", phase="decode"),
            page("PoolFull", role="decode", gpu_name="H", **M),
            page("ItlBurnFast", **M),
            ticket("PoolAtCapacity", role="decode", gpu_name="H", **M),
        ],
    ),
    "one of fifty engines is down, and users wait": (
        [
            page("EngineDown", **engine("decode-0", "decode")),
            page("ItlBurnFast", **M),
        ],
        [ticket("ItlBurnSlow", **M)],
    ),
    "one of fifty engines hangs, and its pool is full": (
        [
            page("EngineStalled", **engine("decode-0", "decode")),
            page("PoolFull", role="decode", gpu_name="H", **M),
        ],
        [page("ItlBurnFast", **M)],
    ),
    "half of a pool is down, and the other pool is full": (
        [
            page("EngineDown", **engine("decode-0", "decode")),
            page("PoolFull", role="prefill", gpu_name="H", **M),
            reduced("decode"),
        ],
        [page("TtftBurnFast", **M)],
    ),
    "a pool is full": (
        [page("PoolFull", role="prefill", gpu_name="H", **M)],
        [
            page("TtftBurnFast", **M),
            ticket("TtftBurnSlow", **M),
            ticket("PoolFilling", role="prefill", gpu_name="H", **M),
        ],
    ),
    "models, namespaces and engines apart": (
        [
            page("PoolVanished", **M),
            page("TtftBurnFast", model_name="third", engine_namespace="prod"),
            page("ItlBurnFast", model_name="m", engine_namespace="test"),
            page("EngineDown", **{**engine("d", "decode"), **OTHER}),
            page("RouterErrors", node="a", worker="e", phase="decode", **OTHER),
        ],
        [],
    ),
    "a worker was given up, and users ask for its engine": (
        [
            ticket("WorkerFailed", node="a", worker="decode-0", state="failed"),
            page("EngineDown", **engine("decode-0", "decode")),
        ],
        [
            ticket(
                "EnginePageUnreadable", node="a", worker="decode-0", collector="engine:decode-0"
            ),
            ticket("RouterWorkerUnhealthy", node="a", worker="decode-0"),
        ],
    ),
    "a worker crashes over and over, and its engine hangs in between": (
        [
            ticket("WorkerCrashLoop", node="a", worker="decode-0"),
            page("EngineStalled", **engine("decode-0", "decode")),
        ],
        [
            ticket("WorkerDown", node="a", worker="decode-0"),
            ticket("StepsUnheard", **engine("decode-0", "decode"), collector="steps:decode-0"),
        ],
    ),
    "a node lost one GPU of eight, and another's worker is given up": (
        [
            ticket("GpuLost", node="a"),
            ticket("WorkerFailed", node="a", worker="decode-5", state="failed"),
        ],
        [ticket("DevicesUnreadable", node="a", collector="nvml")],
    ),
    "a node is gone, and all pools go on": (
        [ticket("NodeDown", node="a")],
        [ticket("NodeOffMedian", node="a"), ticket("GpuLost", node="a")],
    ),
    "many nodes are gone": (
        [page("GpusMissing"), page("PoolVanished", **M)],
        [ticket("NodeDown", node="a"), ticket("NodeDown", node="b"), ticket("NodesGone")],
    ),
}


def states(pager: str) -> dict[str, str]:
    """What the Alertmanager does with each alert, by its labels."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{pager}/api/v2/alerts", timeout=5) as answer:
        return {
            json.dumps(alert["labels"], sort_keys=True): alert["status"]["state"]
            for alert in json.load(answer)
        }


def send(pager: str, alerts: list[Alert]) -> None:
    post(f"{pager}/api/v2/alerts", [{"labels": labels} for labels in alerts])


def post(url: str, content: object) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    kind = {"Content-Type": "application/json"}
    body = json.dumps(content).encode()
    opener.open(urllib.request.Request(url, body, kind), timeout=5).close()


def answers(pager: str) -> bool:
    try:
        return states(pager) == {}
    except OSError:
        return False


@pytest.mark.usefixtures("alerting_programs")
def test_of_each_event_only_the_alert_nearest_to_the_cause_is_active(folder: Path) -> None:
    expected = {
        json.dumps({**labels, "cluster": event}, sort_keys=True): state
        for event, told in EVENTS.items()
        for state, alerts in zip(("active", "suppressed"), told, strict=True)
        for labels in alerts
    }
    with alertmanager(folder, "http://127.0.0.1:9") as pager:
        wait_for(lambda: answers(pager), "the Alertmanager")
        send(pager, [json.loads(labels) for labels in expected])

        with contextlib.suppress(AssertionError):
            wait_for(lambda: states(pager) == expected, "what is held back", 30)
        assert states(pager) == expected


@pytest.mark.usefixtures("alerting_programs")
def test_a_silenced_engine_of_a_large_pool_mutes_no_latency_page(folder: Path) -> None:
    down, slow = page("EngineDown", **engine("decode-0", "decode")), page("ItlBurnFast", **M)
    expected = {
        json.dumps(down, sort_keys=True): "suppressed",
        json.dumps(slow, sort_keys=True): "active",
    }
    with alertmanager(folder, "http://127.0.0.1:9") as pager:
        wait_for(lambda: answers(pager), "the Alertmanager")
        silence(pager, "DisaggEngineDown")
        send(pager, [down, slow])

        with contextlib.suppress(AssertionError):
            wait_for(lambda: states(pager) == expected, "the silence", 30)
        assert states(pager) == expected


def silence(pager: str, name: str) -> None:
    now = datetime.now(UTC)
    matcher = {"name": "alertname", "value": name, "isRegex": False, "isEqual": True}
    wanted = {
        "matchers": [matcher],
        "startsAt": now.isoformat(),
        "endsAt": (now + timedelta(hours=2)).isoformat(),
        "createdBy": "a test",
        "comment": "somebody works on it",
    }
    post(f"{pager}/api/v2/silences", wanted)


def together(pager: str) -> list[set[str]]:
    """The alerts that go out in one message each, by the parts of their labels that tell them."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{pager}/api/v2/alerts/groups", timeout=5) as answer:
        return [
            {
                f"{each['labels']['cluster']} {each['labels']['alertname']}"
                for each in group["alerts"]
            }
            for group in json.load(answer)
            if group["receiver"]["name"] == "page"
        ]


@pytest.mark.usefixtures("alerting_programs")
def test_missing_gpus_and_vanished_pools_of_a_cluster_are_grouped_in_one_message(
    folder: Path,
) -> None:
    gone = [
        {**page("GpusMissing"), "cluster": "east"},
        {**page("PoolVanished", **M), "cluster": "east"},
        {**page("PoolVanished", **OTHER), "cluster": "east"},
        {**page("PoolVanished", **M), "cluster": "west"},
        {**page("WorkerFailed", node="a", worker="w"), "cluster": "east"},
    ]
    expected = [
        {"east DisaggGpusMissing", "east DisaggPoolVanished"},
        {"east DisaggWorkerFailed"},
        {"west DisaggPoolVanished"},
    ]
    with alertmanager(folder, "http://127.0.0.1:9") as pager:
        wait_for(lambda: answers(pager), "the Alertmanager")
        send(pager, gone)

        with contextlib.suppress(AssertionError):
            wait_for(lambda: sorted(together(pager), key=min) == expected, "three messages", 30)
        assert sorted(together(pager), key=min) == expected
