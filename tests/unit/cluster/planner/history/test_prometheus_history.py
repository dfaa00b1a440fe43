from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from disagg_cluster.planner.history.load_history import LoadKey, arriving, demanded
from disagg_cluster.planner.history.prometheus_history import HistoryRequest, PrometheusHistory
from disagg_cluster.prometheus.prometheus_api import PrometheusError, Samples

_NAN = float("nan")
_TOKENS, _SECONDS = "disagg_node_phase_tokens_total", "disagg_node_phase_seconds_total"
_FINISHED, _IN_FLIGHT = "disagg_engine_finished_requests_total", "(disagg_engine_requests"
_FULL = "disagg_capacity_used:ratio"
Value = Callable[[float], float | None]


class Scripted:
    """Answers by what an expression is about, with functions of time."""

    def __init__(
        self, series: Mapping[str, list[tuple[dict[str, str], Value]]], most_steps: int = 11_000
    ) -> None:
        self._series = series
        self._most_steps = most_steps
        self.asked: list[tuple[str, float, float]] = []

    def query_range(
        self,
        expr: str,
        start_seconds: float,
        end_seconds: float,
        step_seconds: float,
        deadline_seconds: float = 60.0,
    ) -> list[Samples]:
        """As the real one does."""
        assert deadline_seconds > 0
        self.asked.append((expr, start_seconds, end_seconds))
        times = np.arange(start_seconds, end_seconds + 1, step_seconds)
        if len(times) > self._most_steps:
            raise PrometheusError("refuses: exceeded maximum resolution of 11,000 points")
        found = []
        for about, several in self._series.items():
            if about in expr:
                for labels, value in several:
                    values = [(float(t), value(t)) for t in times]
                    kept = tuple((t, v) for t, v in values if v is not None)
                    if kept:
                        found.append(Samples(labels, kept))
        return found


def model(name: str = "llama", namespace: str = "", **more: str) -> dict[str, str]:
    return {"cluster": "c", "model_name": name, "engine_namespace": namespace, **more}


def read(prometheus: Scripted, end_seconds: float = 600.0) -> list[object]:
    return list(PrometheusHistory(prometheus).read(HistoryRequest(0.0, end_seconds)))


def test_a_value_at_the_end_of_a_step_is_the_steps_and_gaps_stay_gaps() -> None:
    prometheus = Scripted(
        {
            _TOKENS: [
                (model(phase="prefill"), lambda t: t if t != 180 else None),
                (model(phase="decode"), lambda _t: 5.0),
            ],
            _SECONDS: [(model(phase="decode"), lambda _t: 2.0)],
        }
    )
    (found,) = PrometheusHistory(prometheus).read(HistoryRequest(30.0, 330.0))

    assert found.key == LoadKey("c", "llama", "")
    assert found.prompt_tokens.start_seconds == 60.0
    np.testing.assert_array_equal(found.prompt_tokens.values, [120, _NAN, 240, 300])
    np.testing.assert_array_equal(found.output_tokens.values, [5.0] * 4)
    assert found.decode_gpus is not None
    np.testing.assert_array_equal(found.decode_gpus.values, [2.0] * 4)
    assert found.prefill_gpus is None
    assert found.requests is None


def test_requests_arrive_as_they_end_and_as_their_queue_grows() -> None:
    """Where engines are full, served tokens are a ceiling: arrivals say by how much."""
    labels = {"cluster": "c", "model_name": "llama"}
    prometheus = Scripted(
        {
            _TOKENS: [(model(phase=phase), lambda _t: 100.0) for phase in ("prefill", "decode")],
            _FINISHED: [(labels, lambda _t: 1.0)],
            _IN_FLIGHT: [(labels, lambda t: 10.0 + max(0.0, t - 300.0))],
            _FULL: [({**labels, "phase": "decode"}, lambda t: 1.0 if t > 420 else None)],
        }
    )
    (found,) = PrometheusHistory(prometheus).read(HistoryRequest(0.0, 600.0))

    assert found.requests is not None
    np.testing.assert_allclose(found.requests.values, [1] * 5 + [2] * 5)
    np.testing.assert_allclose(found.output_tokens.values, [100] * 7 + [200] * 3)
    np.testing.assert_allclose(found.prompt_tokens.values, [100] * 10)


def test_requests_of_a_model_in_two_namespaces_are_nobodys() -> None:
    prometheus = Scripted(
        {
            _TOKENS: [
                (model(namespace=name, phase="decode"), lambda _t: 1.0) for name in ("a", "b")
            ],
            _FINISHED: [({"cluster": "c", "model_name": "llama"}, lambda _t: 1.0)],
            _IN_FLIGHT: [({"cluster": "c", "model_name": "llama"}, lambda _t: 1.0)],
        }
    )
    found = PrometheusHistory(prometheus).read(HistoryRequest(0.0, 600.0))

    assert [each.key.engine_namespace for each in found] == ["a", "b"]
    assert [each.requests for each in found] == [None, None]
    assert not np.isfinite(found[0].prompt_tokens.values).any()


@pytest.mark.parametrize("most_steps", [50, 11_000])
def test_a_long_range_is_asked_in_parts_that_the_server_takes(most_steps: int) -> None:
    prometheus = Scripted({_TOKENS: [(model(phase="decode"), float)]}, most_steps)
    (found,) = PrometheusHistory(prometheus).read(HistoryRequest(0.0, 3 * 86_400.0))

    np.testing.assert_array_equal(found.output_tokens.values, np.arange(1, 3 * 1440 + 1) * 60.0)


def test_a_refusal_for_another_reason_is_passed_on() -> None:
    class Failing(Scripted):
        def query_range(self, *_args: object, **_more: object) -> list[Samples]:
            raise PrometheusError("refuses: parse error")

    with pytest.raises(PrometheusError, match="parse error"):
        read(Failing({}))


def test_one_cluster_is_asked_for_by_its_quoted_name() -> None:
    prometheus = Scripted({})
    said: list[str] = []
    request = HistoryRequest(0.0, 600.0, cluster='a"b')

    assert PrometheusHistory(prometheus, said.append).read(request) == []
    assert all('cluster="a\\"b"' in expr for expr, _, _ in prometheus.asked)
    assert all("{matchers" not in expr for expr, _, _ in prometheus.asked)
    assert said[0] == "reading tokens: 0 %"


def test_a_range_shorter_than_a_step_holds_nothing() -> None:
    assert read(Scripted({}), end_seconds=59.0) == []


def test_a_queue_that_empties_takes_nothing_from_arrivals_below_zero() -> None:
    found = arriving(np.array([1.0, 1.0, 1.0]), np.array([100.0, 0.0, _NAN]), 60.0)

    np.testing.assert_allclose(found, [1.0, 0.0, 1.0])


def test_demand_never_lies_below_what_was_served() -> None:
    served, saturated = np.array([10.0, 10.0, 10.0]), np.array([True, True, True])
    found = demanded(served, np.array([0.5, 3.0, _NAN]), np.array([1.0, 1.0, 0.0]), saturated)

    np.testing.assert_allclose(found, [10.0, 30.0, 10.0])
