from __future__ import annotations

import re
from dataclasses import dataclass, field

from disagg_cluster.planner.advice.cluster_engines import engines_of
from disagg_cluster.planner.capacity.learned.cost_families import CostKey
from disagg_cluster.planner.capacity.learned.prometheus_costs import PrometheusCosts
from disagg_cluster.planner.capacity.learned.unseen_nodes import UNSEEN_SECONDS
from disagg_cluster.prometheus.prometheus_api import Samples
from disagg_exporter.model import Role

NOW = 10_000.0
KIND = CostKey("llama", "chat", Role.DECODE, "GPU", 1)


@dataclass
class Server:
    """Answers for nodes of one engine per name, each with the time at which it was seen last."""

    seen: dict[str, float]
    ended: dict[str, float] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def query_range(
        self,
        expr: str,
        start_seconds: float,
        end_seconds: float,
        step_seconds: float,
        deadline_seconds: float = 60.0,
    ) -> list[Samples]:
        """As the real client, of these three kinds of expressions."""
        self.asked.append(expr)
        if expr.startswith("count by (cluster, node) (last_over_time("):
            away = [node for node, at in self.seen.items() if NOW - UNSEEN_SECONDS < at < NOW]
            return [Samples({"cluster": "c", "node": node}, ((NOW, 1.0),)) for node in away]
        name, _, matchers = expr.partition("{")
        only = re.search('node=~"(.*?)"', matchers)
        found = []
        for node, last in self.seen.items():
            if only is not None and re.fullmatch(only[1].replace("\\\\", "\\"), node) is None:
                continue
            if name == "disagg_engine_info":
                last = min(last, self.ended.get(node, NOW))
            steps = int((end_seconds - start_seconds) / step_seconds) + 1
            times = [start_seconds + step * step_seconds for step in range(steps)]
            values = tuple((at, 1.0) for at in times if at <= last)
            labels = {
                "disagg_engine_info": {"engine": "e", "role": "decode", "model_name": "llama"},
                "disagg_gpu_assignment_info": {
                    "engine": "e",
                    "gpu": "0",
                    "engine_namespace": "chat",
                },
                "disagg_gpu_info": {"gpu": "0", "gpu_name": "GPU"},
            }.get(name)
            if labels is not None and values:
                found.append(Samples({"cluster": "c", "node": node, **labels}, values))
        return found


def running(server: Server) -> dict[CostKey, int]:
    return dict(engines_of(PrometheusCosts(server, "c").families(NOW)).running)


def test_engines_of_a_node_that_was_seen_minutes_ago_are_counted_and_named() -> None:
    server = Server({"a": NOW, "b.x": NOW - 300.0})

    found = engines_of(PrometheusCosts(server, "c").families(NOW))

    assert found.running == {KIND: 2}
    assert {each.node: each.is_seen for each in found.workers} == {"a": True, "b.x": False}
    said = {(Role.DECODE, "GPU"): "1 engine on b.x, not seen for some minutes"}
    assert found.unseen("llama", "chat") == said


def test_engines_are_forgotten_a_quarter_of_an_hour_after_their_node_was_seen() -> None:
    assert running(Server({"a": NOW, "b": NOW - UNSEEN_SECONDS - 1.0})) == {KIND: 1}


def test_an_engine_that_its_node_had_ended_before_it_went_is_not_counted() -> None:
    assert running(Server({"a": NOW, "b": NOW - 300.0}, ended={"b": NOW - 400.0})) == {KIND: 1}


def test_while_all_nodes_are_seen_one_query_asks_for_others() -> None:
    server = Server({"a": NOW})

    assert running(server) == {KIND: 1}
    assert [expr for expr in server.asked if "last_over_time" in expr] == [server.asked[-1]]
