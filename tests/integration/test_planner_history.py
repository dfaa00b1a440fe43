"""The load of models, read from a real Prometheus whose past was written by hand."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from disagg_cluster.planner.history.history_request import HistoryRequest
from disagg_cluster.planner.history.load_history import LoadHistory, LoadKey
from disagg_cluster.planner.history.prometheus_history import PrometheusHistory
from disagg_cluster.prometheus.prometheus_api import Prometheus
from support.backfill import At, Past, openmetrics, prometheus_with

pytestmark = pytest.mark.prometheus

MINUTE, HOUR = 60, 3600
SINCE = 3 * HOUR
FULL_MINUTES = 20
GAP_MINUTES = 30


@pytest.fixture(scope="module")
def start() -> int:
    """When the past begins."""
    return int(time.time()) // HOUR * HOUR - 2 * SINCE


@pytest.fixture(scope="module")
def found(start: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[LoadHistory]]:
    """Two nodes of a pair, one of which restarts its counters; a gap; at the end decode is full."""
    gap = range(start + HOUR + 1, start + HOUR + GAP_MINUTES * MINUTE)
    full = start + SINCE - FULL_MINUTES * MINUTE

    def counter(per_second: float, restart: int = 0) -> At:
        def value(instant: int) -> float | None:
            since = instant - start if not restart or instant < restart else instant - restart
            return None if instant in gap else per_second * since

        return value

    def node(name: str) -> dict[str, str]:
        return {"cluster": "east", "node": name}

    whose = {"model_name": "llama", "engine_namespace": "search"}
    past = []
    for name, role, phase, restart in (
        ("p1", "prefill", "prefill", 0),
        ("d1", "decode", "decode", start + 2 * HOUR + 7),
    ):
        of = node(name) | {"role": role}
        spent = of | whose | {"phase": phase}
        past += [
            Past("disagg_node_phase_tokens_total", spent, counter(600.0, restart)),
            Past(
                "disagg_node_phase_seconds_total",
                spent | {"gpu_name": "H100"},
                counter(0.5, restart),
            ),
        ]
    seen = node("d1") | whose
    past += [
        Past(
            "disagg_request_arrivals_total",
            seen | {"source": "engine"},
            lambda t: 2.0 * (t - start) + max(0, t - full),
        ),
        Past(
            "disagg_request_ends_total",
            seen | {"source": "engine", "reason": "stop"},
            counter(2.0, start + 2 * HOUR + 7),
        ),
        Past(
            "disagg_node_capacity_used_gpus",
            seen | {"role": "decode", "gpu_name": "H100"},
            lambda t: 2.1 if t > full else 1.4,
        ),
        Past(
            "disagg_node_capacity_known_gpus",
            seen | {"role": "decode", "gpu_name": "H100"},
            lambda _t: 2.0,
        ),
    ]
    text = openmetrics(past, range(start, start + SINCE + 1, 15))
    with (
        prometheus_with(text, tmp_path_factory.mktemp("planner")) as url,
        closing(Prometheus(url)) as prometheus,
    ):
        request = HistoryRequest(start, start + SINCE, cluster="east")
        yield PrometheusHistory(prometheus).read(request)


def test_rates_survive_restarts_and_gaps_stay_gaps(found: list[LoadHistory]) -> None:
    (only,) = found
    prompt = only.prompt_tokens.values

    assert only.key == LoadKey("east", "llama", "search")
    assert len(prompt) == SINCE // MINUTE
    np.testing.assert_allclose(prompt[1:60], 600.0, rtol=0.01)
    # Prometheus uses a sample as the latest for five minutes.
    assert np.isnan(prompt[66:89]).all()
    np.testing.assert_allclose(prompt[91:], 600.0, rtol=0.01)
    assert only.decode_gpus is not None
    restarted = only.decode_gpus.values[118:123]
    assert np.isfinite(restarted).all()
    assert (restarted >= 0).all()
    assert (restarted <= 0.51).all()


def test_arrivals_are_derived_where_they_are_not_recorded(found: list[LoadHistory]) -> None:
    """Two requests a second end; in the last minutes one more a second arrives than ends."""
    (only,) = found
    assert only.requests is not None

    np.testing.assert_allclose(only.requests.values[2:60], 2.0, rtol=0.01)
    np.testing.assert_allclose(only.requests.values[-FULL_MINUTES + 2 :], 3.0, rtol=0.01)


def test_the_throughput_of_a_full_pool_is_not_taken_for_demand(found: list[LoadHistory]) -> None:
    (only,) = found

    np.testing.assert_allclose(only.output_tokens.values[2:60], 600.0, rtol=0.01)
    np.testing.assert_allclose(only.output_tokens.values[-FULL_MINUTES + 2 :], 900.0, rtol=0.01)
    np.testing.assert_allclose(only.prompt_tokens.values[-FULL_MINUTES + 2 :], 600.0, rtol=0.01)
