"""The engines of a window and their GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations

import numpy as np
import pytest

from disagg_cluster.planner.diagnose.evidence.fleet import FleetEngine, read_fleet
from disagg_cluster.planner.diagnose.evidence.series_window import ScrapedSeries, SeriesWindow
from disagg_exporter.model import Role

NOW = 1_000_000.0
BEGIN, MOVED = NOW - 600, NOW - 300


def series(begin: float, end: float, **labels: str) -> ScrapedSeries:
    """A series of ones scraped every 15 s."""
    times = np.arange(begin, end + 1, 15.0)
    return ScrapedSeries(
        {"cluster": "c", "node": "n", "engine": "e", **labels}, times, np.ones(len(times))
    )


def engine(held: Iterable[ScrapedSeries]) -> FleetEngine:
    """The one engine of a fleet that held these GPUs."""
    window = SeriesWindow(
        BEGIN,
        NOW,
        {
            "disagg_engine_info": (
                series(BEGIN, MOVED, role="prefill", model_name="m"),
                series(MOVED + 15, NOW, role="decode", model_name="m"),
            ),
            "disagg_gpu_info": tuple(
                series(BEGIN, NOW, gpu=gpu, gpu_name=name)
                for gpu, name in (("g0", "A100"), ("g1", "H100"), ("g2", "H100"))
            ),
            "disagg_gpu_assignment_info": tuple(held),
        },
    )
    fleet = read_fleet(window)
    assert fleet is not None
    [found] = fleet.engines
    return found


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_an_engine_with_a_changed_role_has_its_current_gpus_and_namespace(
    order: tuple[int, ...],
) -> None:
    held = [
        series(BEGIN, MOVED, gpu="g1", role="prefill", engine_namespace="old"),
        series(BEGIN, MOVED, gpu="g2", role="prefill", engine_namespace="old"),
        series(MOVED + 15, NOW, gpu="g1", role="decode", engine_namespace="new"),
        series(MOVED + 15, NOW, gpu="g2", role="decode", engine_namespace="new"),
    ]

    found = engine(held[place] for place in order)

    assert (found.role, found.engine_namespace) == (Role.DECODE, "new")
    assert (found.gpu_name, found.gpus) == ("H100", (1, 2))


def test_a_released_gpu_does_not_determine_the_gpu_name_of_an_engine() -> None:
    """Otherwise it would have no peer among the engines on its present GPUs."""
    found = engine(
        [
            series(BEGIN, MOVED, gpu="g0", role="prefill", engine_namespace="n"),
            series(MOVED + 15, NOW, gpu="g1", role="decode", engine_namespace="n"),
        ]
    )

    assert (found.gpu_name, found.gpus) == ("H100", (1,))


def test_gauges_of_a_replaced_pod_or_a_former_role_are_not_added_to_the_present_ones() -> None:
    """For up to three scrapes after its last one a gauge's value holds."""
    router = {"source": "router", "model_name": "m"}
    window = SeriesWindow(
        BEGIN,
        NOW,
        {
            "disagg_engine_info": (series(BEGIN, NOW, role="decode", model_name="m"),),
            "disagg_engine_kv_cache_usage_ratio": (
                series(BEGIN, MOVED, pod="old", role="prefill"),
                series(MOVED + 15, NOW, pod="new", role="decode"),
            ),
            "disagg_request_waiting_requests": (
                series(BEGIN, MOVED, pod="old", **router),
                series(MOVED + 15, NOW, pod="new", **router),
                series(BEGIN, NOW, node="other", **router),
            ),
        },
    )

    fleet = read_fleet(window)

    assert fleet is not None
    assert set(fleet.readings.of("kv_usage")[0]) == {1.0}
    waiting = fleet.users["c", "", "m"].of("front_waiting")
    assert waiting is not None
    assert set(waiting) == {2.0}
