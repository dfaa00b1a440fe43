from __future__ import annotations

import math

from disagg_cluster.planner.advice.interference import read_interference
from disagg_cluster.planner.capacity.learned.cost_families import FAMILIES, CostFamilies, CostKey
from disagg_cluster.planner.separation.verdict import InterferenceSeconds
from disagg_cluster.prometheus.prometheus_api import Samples
from disagg_exporter.metrics.reference import reference
from disagg_exporter.model import Role

KIND = CostKey("llama", "chat", Role.MIXED, "GPU", 1)
LOSS = {"effect": "loss"}
GAIN = {"effect": "gain"}


def on(node: str) -> dict[str, str]:
    return {"cluster": "c", "node": node, "engine": "e"}


class Increases:
    """Answers with the growth of two families in a day."""

    def __init__(self, seconds: list[Samples], steps: list[Samples]) -> None:
        self._of = {"seconds": seconds, "step_seconds": steps}
        self.asked: list[str] = []

    def query_range(
        self,
        expr: str,
        start_seconds: float,
        end_seconds: float,
        step_seconds: float,
        deadline_seconds: float = 60.0,
    ) -> list[Samples]:
        """As the real client, at one instant."""
        assert start_seconds == end_seconds
        assert step_seconds > 0 < deadline_seconds
        self.asked.append(expr)
        return self._of["step_seconds" if "interference_step_seconds" in expr else "seconds"]


def families(*nodes: str) -> CostFamilies:
    """A mixed engine on each node."""
    return CostFamilies(
        {name: [] for name in FAMILIES}
        | {
            "disagg_engine_info": [
                ({**on(node), "role": "mixed", "model_name": "llama"}, 1.0) for node in nodes
            ],
            "disagg_gpu_assignment_info": [
                ({**on(node), "gpu": "g", "engine_namespace": "chat"}, 1.0) for node in nodes
            ],
            "disagg_gpu_info": [
                ({"cluster": "c", "node": node, "gpu": "g", "gpu_name": "GPU"}, 1.0)
                for node in nodes
            ],
        }
    )


def sample(labels: dict[str, str], value: float) -> Samples:
    return Samples(labels, ((0.0, value),))


def test_engines_of_a_kind_are_added_up_and_unknown_ones_left_out() -> None:
    prometheus = Increases(
        [
            sample({**on("n1"), **LOSS}, 30.0),
            sample({**on("n1"), **GAIN}, 2.0),
            sample({**on("n2"), **LOSS}, 10.0),
            sample({**on("n2"), **GAIN}, math.nan),
            sample({**on("gone"), **LOSS}, 500.0),
        ],
        [sample(on("n1"), 100.0), sample(on("n2"), 60.0), sample(on("gone"), 900.0)],
    )

    found = read_interference(prometheus, families("n1", "n2"), "c", 1e9)

    assert found == {KIND: InterferenceSeconds(40.0, 2.0, 160.0)}
    assert all('cluster="c"' in expr and "[1d]" in expr for expr in prometheus.asked)


def test_engines_without_mixed_steps_have_no_interference() -> None:
    prometheus = Increases([sample({**on("n1"), **LOSS}, 0.0)], [sample(on("n1"), 0.0)])

    assert read_interference(prometheus, families("n1"), None, 1e9) == {}


def test_the_families_that_are_read_are_exported() -> None:
    prometheus = Increases([], [])
    read_interference(prometheus, families("n1"), None, 1e9)

    for expr in prometheus.asked:
        assert expr.removeprefix("increase(").partition("[")[0] in reference()
