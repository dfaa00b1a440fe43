"""Looks from a node's page and from a Prometheus."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from disagg_cluster.prometheus.http_client import Target, UnansweredError
from disagg_cluster.prometheus.prometheus_api import Samples
from disagg_cluster.top.readings.series import Series
from disagg_cluster.top.sources.node_source import ForeignPageError, NodeSource
from disagg_cluster.top.sources.prometheus_source import NoNodesError, PrometheusSource
from disagg_cluster.top.terminal.once import read_once
from disagg_cluster.top.view.troubles import troubles_of
from support import top_looks as looks
from support.children import free_port
from support.page_server import page_server

PAGE = (Path(__file__).parents[3] / "data" / "golden_page.prom").read_bytes()


def test_without_a_control_socket_a_node_is_read_from_its_page() -> None:
    with page_server(lambda path: PAGE if path == "/metrics" else b"") as root:
        source = NodeSource(lambda: Target(root), None)
        look = source.read()

    assert {gpu.role for gpu in look.gpus} == {"prefill", "decode", "none"}
    assert source.title == root.removeprefix("http://")
    assert source.links.metrics == f"{root}/metrics"


def test_with_a_closed_control_socket_a_node_is_read_from_its_page(tmp_path: Path) -> None:
    with page_server(lambda _: PAGE) as root:
        look = NodeSource(lambda: Target(root), tmp_path / "control.socket").read()

    assert [worker.worker for worker in look.workers] == ["prefill-0", "decode-0"]
    assert look.workers[0].pid is None


@pytest.mark.parametrize("value", ["NaN", "+Inf"])
def test_values_that_are_no_finite_numbers_are_unknown(value: str) -> None:
    names = "engine_requests|engine_kv_cache_usage_ratio|worker_restarts_total|gpu_power_watts"
    page = re.sub(rf"(?m)^(disagg_(?:{names})\{{.*) \S+$", rf"\1 {value}", PAGE.decode())
    with page_server(lambda path: page.encode() if path == "/metrics" else b"") as root:
        look = NodeSource(lambda: Target(root), None).read()

    assert {each.running for each in look.engines} == {None}
    assert {each.kv_used_ratio for each in look.engines} == {None}
    assert {each.power_watts for each in look.gpus} == {None}
    assert {each.restarts for each in look.workers} == {0}


def test_a_bucket_without_a_bound_is_left_out() -> None:
    bad = b'disagg_request_time_to_first_token_seconds_bucket{le="soon",source="engine"} 1\n'
    with page_server(lambda path: PAGE + bad if path == "/metrics" else b"") as root:
        look = NodeSource(lambda: Target(root), None).read()

    assert look.engines


def test_another_programs_page_is_refused() -> None:
    with page_server(lambda _: b"up 1\n") as root, pytest.raises(ForeignPageError, match="--url"):
        NodeSource(lambda: Target(root), None).read()


def test_a_node_that_does_not_answer_is_reported() -> None:
    with pytest.raises(UnansweredError):
        NodeSource(lambda: Target(f"http://127.0.0.1:{free_port()}"), None).read()


class ScriptedPrometheus:
    """Holds the series of a minute ago and of now; remembers what it was asked."""

    def __init__(self, ago: Series, now: Series, seen: Sequence[str] = ()) -> None:
        self._series = {True: ago, False: now}
        self.seen = seen
        self.asked_lately = ""
        self.asked: list[str] = []

    def query_range(
        self, expr: str, start: float, end: float, step: float, deadline: float = 60.0
    ) -> list[Samples]:
        if expr.startswith("last_over_time("):
            self.asked_lately = expr
            places = (node.rpartition("/") for node in self.seen)
            return [
                Samples({"node": node, **({"cluster": cluster} if cluster else {})}, ((end, 1.0),))
                for cluster, _, node in places
            ]
        self.asked.append(expr)
        is_ago = len(self.asked) == 2
        if len(self.asked) == 1:
            return []
        return [
            Samples({"__name__": name, **each.labels}, ((end, each.value),))
            for name, samples in self._series[is_ago].items()
            for each in samples
        ]


def two_nodes(at: float) -> Series:
    return looks.together(*(looks.serving(4, 2, at, node=f"node-{n}") for n in range(2)))


def source_of(prometheus: ScriptedPrometheus, **chosen: str) -> PrometheusSource:
    return PrometheusSource(prometheus, "http://prom:9090", **chosen)  # type: ignore[arg-type] # asked likewise


def test_a_prometheus_gives_rates_and_time_without_a_wait() -> None:
    prometheus = ScriptedPrometheus(two_nodes(looks.AT - 60), two_nodes(looks.AT))
    slept: Sequence[float] = []

    view = read_once(source_of(prometheus), sleep=list(slept).append)

    assert [node.node for node in view.nodes] == ["node-0", "node-1"]
    assert view.engines[0].tokens_per_second == pytest.approx(900 * 1, rel=0.1)
    assert view.time is not None
    assert view.time.window_seconds == pytest.approx(60)
    assert slept == []


def test_queries_select_the_chosen_cluster_and_node() -> None:
    prometheus = ScriptedPrometheus({}, two_nodes(looks.AT))
    source = source_of(prometheus, cluster="blue\U0001f680", node='a"b')
    source.past()
    source.earlier()

    source.read()

    assert prometheus.asked[-1].count('cluster="blue\U0001f680"') == 3  # nodes, planner, alerts
    assert prometheus.asked[-1].count(r'node="a\"b"') == 2


def test_a_prometheus_without_nodes_is_reported() -> None:
    source = source_of(ScriptedPrometheus({}, {}), cluster="blue")

    with pytest.raises(NoNodesError, match='cluster="blue"'):
        source.read()


def test_recently_observed_nodes_without_data_are_reported_as_missing() -> None:
    """An outage, and not a Prometheus that scrapes nothing of ours."""
    some = ScriptedPrometheus({}, two_nodes(looks.AT), seen=("node-0", "node-1", "node-2"))
    none = ScriptedPrometheus({}, {}, seen=("node-1",))
    source = source_of(some, cluster="blue")
    source.past()
    source.earlier()

    missed = source.read()

    assert missed.missed_nodes == ("node-2",)
    assert "Node node-2 is not read any more" in troubles_of(missed)[0].text
    assert 'cluster="blue"' in some.asked_lately
    with pytest.raises(NoNodesError, match="had some of node-1 in the last 15 minutes"):
        source_of(none).read()


def test_a_missing_node_is_not_taken_for_its_namesake_in_another_cluster() -> None:
    now = {
        name: [each._replace(labels={**each.labels, "cluster": "blue"}) for each in samples]
        for name, samples in two_nodes(looks.AT).items()
    }
    source = source_of(ScriptedPrometheus({}, now, seen=("blue/node-0", "green/node-0", "node-1")))
    source.past()
    source.earlier()

    assert source.read().missed_nodes == ("green/node-0",)


def test_history_begins_with_the_recent_readings_of_the_daemon() -> None:
    recent = {
        "devices": [
            {
                "gpu": "GPU-0000",
                "at_seconds": [looks.AT - 14, looks.AT - 9],
                "seconds": {"prefill": [0.0, 5.0], "decode": [0.0, 0.0], "idle": [0.0, 0.0]},
            }
        ]
    }
    with page_server(
        lambda path: json.dumps(recent).encode() if "recent" in path else PAGE
    ) as root:
        past = NodeSource(lambda: Target(root), None).past()

    assert [look.gpus[0].watermark for look in past] == [looks.AT - 14, looks.AT - 9]
    assert past[-1].gpus[0].seconds["prefill"] == 5


def test_pool_verdicts_and_links_are_those_of_the_daemon() -> None:
    words = "both below 50 %, yet tokens are late"
    pools = [{"model_name": "llama-8b", "namespace": "prod", "verdicts": [words]}]
    links = {"prometheus": "http://prom:9090", "grafana": "", "planner": ""}
    told = json.dumps({"pools": pools, "links": links}).encode()
    with page_server(lambda path: told if path == "/view.json" else PAGE) as root:
        source = NodeSource(lambda: Target(root), None)
        look = source.read()

    assert (source.links.prometheus, source.links.grafana) == ("http://prom:9090", "")
    assert look.verdicts == {("", "llama-8b", "prod"): (words,)}


@pytest.mark.parametrize(
    "answer",
    [b"not json", b"[]", b"[" * 100_000, b'{"pools": [{}], "links": 1}', b'{"made_at": null}'],
    ids=["text", "list", "deep", "other types", "nothing"],
)
def test_an_invalid_view_answer_gives_no_verdicts(answer: bytes) -> None:
    with page_server(lambda path: answer if path == "/view.json" else PAGE) as root:
        assert NodeSource(lambda: Target(root), None).read().verdicts == {}


@pytest.mark.parametrize(
    "answer",
    [b"not json", b"[]", b"[" * 100_000, b'{"devices": [{"gpu": 1}]}', b"null"],
    ids=["text", "list", "deep", "other types", "null"],
)
def test_an_invalid_answer_about_recent_readings_gives_no_history(answer: bytes) -> None:
    with page_server(lambda path: answer if "recent" in path else PAGE) as root:
        assert NodeSource(lambda: Target(root), None).past() == ()
