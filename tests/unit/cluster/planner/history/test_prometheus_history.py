from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.planner.history.history_queries import (
    ARRIVALS,
    CACHED_TOKENS,
    CAPACITY_USED,
    DECODE_REJECTIONS,
    ENDS,
    GPU_SECONDS,
    REJECTIONS,
    TOKENS,
    HistoryQuery,
)
from disagg_cluster.planner.history.history_request import HistoryRequest
from disagg_cluster.planner.history.load_history import LoadKey, demanded
from disagg_cluster.planner.history.load_series import LoadSpanError
from disagg_cluster.planner.history.prometheus_history import (
    NoLoadYetError,
    NoPastLoadError,
    PrometheusHistory,
)
from disagg_cluster.planner.history.range_reader import IN_FLIGHT
from disagg_cluster.prometheus.prometheus_api import PrometheusError, Samples

_NAN = float("nan")
_PRESENT, _CLUSTERS = "count by (cluster) (disagg_node", "count by (cluster) (disagg_build"
_WORKED = "max by (cluster) (disagg_node_phase_seconds_total"
_NODES_TOKENS, _NODES_GPUS = "rate(disagg_node_phase_tokens", "rate(disagg_node_phase_seconds"
Value = Callable[[float], float | None]
Series = tuple[dict[str, str], Value]


class Scripted:
    """Answers queries by a part of the expression, with functions of time."""

    def __init__(
        self, series: Mapping[str | HistoryQuery, list[Series]], most_steps: int = 11_000
    ) -> None:
        self._series = {
            f"avg_over_time({about.record}" if isinstance(about, HistoryQuery) else about: several
            for about, several in series.items()
        }
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
        """Like the real client."""
        assert deadline_seconds > 0
        self.asked.append((expr, start_seconds, end_seconds))
        times = np.arange(start_seconds, end_seconds + 1e-6, step_seconds)
        if len(times) > self._most_steps:
            raise PrometheusError("refuses: exceeded maximum resolution of 11,000 points")
        wanted = re.search(r'cluster="([^"]*)"', expr)
        found = []
        for about, several in self._series.items():
            for labels, value in several if about in expr else ():
                if wanted is None or wanted[1] == labels.get("cluster", ""):
                    values = [(float(t), value(t)) for t in times]
                    kept = tuple((t, v) for t, v in values if v is not None)
                    if kept:
                        found.append(Samples(labels, kept))
        return found


def model(name: str = "llama", namespace: str = "", **more: str) -> dict[str, str]:
    return {"cluster": "c", "model_name": name, "engine_namespace": namespace, **more}


def constant(value: float, **labels: str) -> list[Series]:
    return [(model(**labels), lambda _t: value)]


def ten_minutes(cluster: str | None = None) -> HistoryRequest:
    return HistoryRequest(0.0, 600.0, cluster=cluster)


def test_a_value_at_the_end_of_a_step_belongs_to_it_and_gaps_remain() -> None:
    prometheus = Scripted(
        {
            TOKENS: [
                (model(phase="prefill"), lambda t: t if t != 180 else None),
                *constant(5.0, phase="decode"),
            ],
            GPU_SECONDS: constant(2.0, phase="decode"),
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
    assert (found.requests, found.rejections, found.cached_tokens) == (None, None, None)


@pytest.mark.parametrize("impossible", [-5.0, float("inf"), 1e308])
def test_a_value_that_no_rate_has_is_a_gap(impossible: float) -> None:
    prometheus = Scripted(
        {
            TOKENS: [
                (model(phase="prefill"), lambda t: impossible if t == 180 else 1.0),
                *constant(5.0, phase="decode"),
            ],
        }
    )
    (found,) = PrometheusHistory(prometheus).read(HistoryRequest(60.0, 300.0))

    np.testing.assert_array_equal(found.prompt_tokens.values, [1.0, _NAN, 1.0, 1.0])


@pytest.mark.parametrize(
    ("role", "prompt", "output"), [("decode", 1, 2), ("prefill", 2, 2), ("mixed", 2, 2)]
)
def test_demand_of_saturated_engines_and_of_those_behind_them_is_estimated_from_arrivals(
    role: str, prompt: float, output: float
) -> None:
    """Full mixed engines are full for both phases; half of the prompts, half of the outputs."""
    prometheus = Scripted(
        {
            TOKENS: [*constant(1.0, phase="prefill"), *constant(1.0, phase="decode")],
            ARRIVALS: [(model(), lambda t: 3.0 if t <= 300 else 6.0)],
            ENDS: constant(3.0),
            CAPACITY_USED: [(model(role=role), lambda t: 1.0 if t > 420 else 0.9)],
        }
    )
    (found,) = PrometheusHistory(prometheus).read(ten_minutes())

    assert found.requests is not None
    np.testing.assert_allclose(found.requests.values, [3] * 5 + [6] * 5)
    np.testing.assert_allclose(found.prompt_tokens.values, [1] * 7 + [prompt] * 3)
    np.testing.assert_allclose(found.output_tokens.values, [1] * 7 + [output] * 3)
    full = found.prefill_capacity_used or found.decode_capacity_used
    assert full is not None
    np.testing.assert_allclose(full.values, [0.9] * 7 + [1.0] * 3)


def test_rejected_requests_count_as_demand() -> None:
    prometheus = Scripted(
        {TOKENS: constant(90.0, phase="decode"), ARRIVALS: constant(4.0), REJECTIONS: constant(1.0)}
    )
    (found,) = PrometheusHistory(prometheus).read(ten_minutes())

    assert found.rejections is not None
    np.testing.assert_allclose(found.rejections.values, 1.0)
    np.testing.assert_allclose(found.output_tokens.values, 120.0)


def test_prompts_are_not_scaled_by_what_decode_engines_refused() -> None:
    """Of five arrivals a prefill engine refused one and a decode engine two that were prefilled."""
    prometheus = Scripted(
        {
            TOKENS: [*constant(400.0, phase="prefill"), *constant(20.0, phase="decode")],
            ARRIVALS: constant(5.0),
            REJECTIONS: constant(3.0),
            DECODE_REJECTIONS: constant(2.0),
        }
    )
    (found,) = PrometheusHistory(prometheus).read(ten_minutes())

    np.testing.assert_allclose(found.prompt_tokens.values, 500.0)
    np.testing.assert_allclose(found.output_tokens.values, 50.0)


@pytest.mark.parametrize(
    "short",
    [
        {REJECTIONS: constant(3.0)},
        {ENDS: constant(1.0), CAPACITY_USED: constant(1.1, role="prefill")},
    ],
)
def test_the_cached_part_of_each_prompt_does_not_depend_on_how_many_are_served(
    short: dict[str | HistoryQuery, list[Series]],
) -> None:
    """One request in four is served, of 100 computed and 300 cached tokens."""
    prometheus = Scripted(
        {
            TOKENS: constant(100.0, phase="prefill"),
            CACHED_TOKENS: constant(300.0),
            ARRIVALS: constant(4.0),
            **short,
        }
    )
    (found,) = PrometheusHistory(prometheus).read(ten_minutes())

    assert found.cached_tokens is not None
    np.testing.assert_allclose(found.prompt_tokens.values / 4.0, 100.0)
    np.testing.assert_allclose(found.cached_tokens.values / 4.0, 300.0)


def test_namespaces_of_one_model_have_separate_requests() -> None:
    prometheus = Scripted(
        {
            TOKENS: [s for n in ("a", "b") for s in constant(1.0, namespace=n, phase="decode")],
            ARRIVALS: [*constant(1.0, namespace="a"), *constant(2.0, namespace="b")],
            CACHED_TOKENS: constant(7.0, namespace="b"),
        }
    )
    one, other = PrometheusHistory(prometheus).read(ten_minutes())

    assert (one.key.engine_namespace, other.key.engine_namespace) == ("a", "b")
    assert one.requests is not None
    assert other.requests is not None
    assert (one.requests.values[0], other.requests.values[0]) == (1.0, 2.0)
    assert one.cached_tokens is None
    assert other.cached_tokens is not None


def test_unrecorded_load_is_read_from_the_nodes() -> None:
    """Rules were added five minutes ago: only older steps are read from the nodes."""
    prometheus = Scripted(
        {
            _PRESENT: [({"cluster": "c"}, lambda _t: 8.0)],
            TOKENS: [(model(phase="decode"), lambda t: 1.0 if t > 300 else None)],
            _NODES_TOKENS: constant(2.0, phase="decode"),
            _NODES_GPUS: constant(3.0, phase="decode"),
        }
    )
    (found,) = PrometheusHistory(prometheus).read(ten_minutes())

    np.testing.assert_array_equal(found.output_tokens.values, [2.0] * 5 + [1.0] * 5)
    assert found.decode_gpus is not None
    np.testing.assert_array_equal(found.decode_gpus.values, [3.0] * 5 + [_NAN] * 5)


def test_node_series_are_not_queried_where_all_is_recorded() -> None:
    prometheus = Scripted(
        {_PRESENT: [({"cluster": "c"}, lambda _t: 8.0)], TOKENS: constant(1.0, phase="decode")}
    )
    PrometheusHistory(prometheus).read(HistoryRequest(0.0, 3 * 86_400.0))

    assert not any("rate(" in expr for expr, _, _ in prometheus.asked)


def test_recording_is_checked_for_each_cluster() -> None:
    other = {**model(phase="decode"), "cluster": "d"}
    prometheus = Scripted(
        {
            _PRESENT: [({"cluster": name}, lambda _t: 8.0) for name in "cd"],
            TOKENS: constant(1.0, phase="decode"),
            _NODES_TOKENS: [*constant(9.0, phase="decode"), (other, lambda _t: 2.0)],
        }
    )
    found = PrometheusHistory(prometheus).read(ten_minutes())

    assert [(each.key.cluster, each.output_tokens.values[0]) for each in found] == [
        ("c", 1.0),
        ("d", 2.0),
    ]


@pytest.mark.parametrize("most_steps", [50, 11_000])
def test_a_long_range_is_read_in_parts_that_the_server_accepts(most_steps: int) -> None:
    prometheus = Scripted({TOKENS: [(model(phase="decode"), float)]}, most_steps)
    (found,) = PrometheusHistory(prometheus).read(HistoryRequest(0.0, 3 * 86_400.0))

    np.testing.assert_array_equal(found.output_tokens.values, np.arange(1, 3 * 1440 + 1) * 60.0)
    refused = [1 for _, start, end in prometheus.asked if (end - start) / 60 + 1 > most_steps]
    assert len(refused) <= 7 * IN_FLIGHT * 5


def test_errors_other_than_size_limits_are_raised() -> None:
    class Failing(Scripted):
        def query_range(self, *_args: object, **_more: object) -> list[Samples]:
            self.asked.append(("", 0.0, 0.0))
            raise PrometheusError("refuses: parse error")

    failing = Failing({})
    with pytest.raises(PrometheusError, match="parse error"):
        PrometheusHistory(failing).read(HistoryRequest(0.0, 30 * 86_400.0))

    assert len(failing.asked) <= IN_FLIGHT


def test_reading_from_a_server_that_is_too_slow_ends_in_time() -> None:
    class Slow(Scripted):
        def query_range(self, *_args: object, **_more: object) -> list[Samples]:
            raise PrometheusError("no answer from x: no whole answer in 60 s")

    with pytest.raises(PrometheusError, match="no whole answer"):
        PrometheusHistory(Slow({})).read(ten_minutes())
    with pytest.raises(PrometheusError, match=r"not read within 0 s: .*record it"):
        PrometheusHistory(Slow({}), read_seconds=0.0).read(ten_minutes())


def test_a_server_gets_at_most_four_concurrent_queries() -> None:
    class Counting(Scripted):
        under_way = most = 0
        lock = threading.Lock()

        def query_range(self, *args: float, **more: float) -> list[Samples]:
            with self.lock:
                self.under_way += 1
                self.most = max(self.most, self.under_way)
            try:
                return super().query_range(*args, **more)  # type: ignore[arg-type]
            finally:
                with self.lock:
                    self.under_way -= 1

    counting = Counting({TOKENS: constant(1.0, phase="decode")})
    PrometheusHistory(counting).read(HistoryRequest(0.0, 9 * 86_400.0))

    assert 1 <= counting.most <= 4


def test_an_interrupt_does_not_wait_for_queries_in_flight() -> None:
    answered = threading.Event()

    class Hanging(Scripted):
        def query_range(
            self,
            expr: str,
            start_seconds: float,
            end_seconds: float,
            step_seconds: float,
            deadline_seconds: float = 60.0,
        ) -> list[Samples]:
            if start_seconds > 86_400:
                answered.wait(10)
            return []

    def interrupt(_line: str) -> None:
        raise KeyboardInterrupt

    begun_seconds = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            PrometheusHistory(Hanging({}), interrupt).read(HistoryRequest(0.0, 9 * 86_400.0))
        assert time.monotonic() - begun_seconds < 5
    finally:
        answered.set()


@pytest.mark.parametrize(
    ("series", "cluster", "message"),
    [
        ({}, None, "no series of disagg-node in that time"),
        ({}, "east", "no series of disagg-node in that time"),
        (
            {_CLUSTERS: [({"cluster": name}, lambda _t: 1.0) for name in ("west", "north")]},
            "east",
            "there is no cluster 'east', only 'north', 'west'",
        ),
        (
            {_CLUSTERS: [({}, lambda _t: 1.0)], _WORKED: [({}, lambda _t: 9.0)]},
            None,
            "none reports tokens",
        ),
        (
            {_PRESENT: [({}, lambda _t: 8.0)]},
            None,
            "none has two samples within five minutes: scrape the nodes at least every two minutes",
        ),
    ],
)
def test_an_empty_history_is_an_error_with_its_reason(
    series: dict[str | HistoryQuery, list[Series]], cluster: str | None, message: str
) -> None:
    with pytest.raises(NoPastLoadError, match=message):
        PrometheusHistory(Scripted(series)).read(ten_minutes(cluster))


@pytest.mark.parametrize("cluster", [None, "east"])
def test_a_cluster_whose_engines_have_served_nothing_yet_lacks_nothing_but_load(
    cluster: str | None,
) -> None:
    """Another's engines may have."""
    prometheus = Scripted(
        {
            _CLUSTERS: [({"cluster": "east"}, lambda _t: 1.0)],
            _WORKED: [({"cluster": "west"}, lambda _t: 9.0)] if cluster else [],
        }
    )

    with pytest.raises(NoLoadYetError, match="no engine had served a request by 1970-01-01 00:10"):
        PrometheusHistory(prometheus).read(ten_minutes(cluster))


def test_nodes_that_are_scraped_for_minutes_are_seen_in_a_history_of_weeks() -> None:
    end = 14 * 86_400.0
    since = {_CLUSTERS: [({}, lambda t: 1.0 if t > end - 120 else None)]}

    with pytest.raises(NoLoadYetError):
        PrometheusHistory(Scripted(since, 40_000)).read(HistoryRequest(0.0, end))


def test_a_cluster_is_selected_by_its_quoted_name() -> None:
    prometheus = Scripted({})
    message: list[str] = []

    with pytest.raises(NoPastLoadError):
        PrometheusHistory(prometheus, message.append).read(ten_minutes('a"b'))

    *others, sparse, last = (expr for expr, _, _ in prometheus.asked)
    assert all('cluster="a\\"b"' in expr for expr in others)
    assert "cluster=" not in sparse + last
    assert message[0] == "reading what is recorded: 0 %"


@pytest.mark.parametrize(
    ("start", "end", "step", "message"),
    [
        (0.0, 59.0, 60.0, "no whole step of 60 s"),
        (600.0, 0.0, 60.0, "no whole step"),
        (0.0, 1e12, 60.0, "at most 5000000 are read: take longer steps, or fewer days"),
        (0.0, 1e300, 1e-300, "from 0.0 s to 1e\\+300 s in steps of 1e-300 s"),
        (0.0, _NAN, 60.0, "to nan s"),
        (0.0, 600.0, 0.0, "in steps of 0.0 s"),
    ],
)
def test_a_range_with_no_step_or_too_many_is_rejected(
    start: float, end: float, step: float, message: str
) -> None:
    with pytest.raises(LoadSpanError, match=message) as caught:
        HistoryRequest(start, end, step)

    assert caught.value.exit_code == 2


_RATES = st.lists(st.floats(0, 1e9) | st.just(_NAN), min_size=3, max_size=3).map(np.array)


@given(_RATES, _RATES, _RATES, _RATES, st.lists(st.booleans(), min_size=3, max_size=3))
def test_demand_never_lies_below_what_was_served_nor_above_tenfold(
    served: np.ndarray,
    arrived: np.ndarray,
    ended: np.ndarray,
    refused: np.ndarray,
    full: list[bool],
) -> None:
    found = demanded(served, arrived, ended, refused, np.array(full))

    known = np.isfinite(served)
    np.testing.assert_array_equal(np.isfinite(found), known)
    assert (found[known] >= served[known]).all()
    assert (found[known] <= 10 * served[known] * (1 + 1e-12)).all()


def test_requests_that_a_router_sends_on_after_a_refusal_are_not_demanded_twice() -> None:
    """Of 100 arrivals 30 are refused once and served elsewhere; or 20 by all of six engines."""
    served, arrived = np.array([100.0, 80.0]), np.array([100.0, 100.0])
    refused, ended = np.array([30.0, 120.0]), np.array([100.0, 80.0])

    found = demanded(served, arrived, ended, refused, np.array([False, False]))

    np.testing.assert_allclose(found, [100.0, 100.0])


def test_demand_is_what_was_served_where_requests_are_not_known() -> None:
    served, unknown = np.array([10.0, 10.0]), np.array([_NAN, _NAN])

    np.testing.assert_array_equal(
        demanded(served, unknown, unknown, unknown, np.array([True, False])), served
    )
