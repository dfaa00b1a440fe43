"""Waits before the engines, from two pages that report the same requests at different times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.diagnose.causes.router_queue import bins_late, router_waits
from disagg_cluster.planner.diagnose.evidence.engine_changes import engine_changes
from disagg_cluster.planner.diagnose.evidence.fleet import read_fleet
from disagg_cluster.planner.diagnose.evidence.model_view import model_views
from disagg_cluster.planner.diagnose.evidence.series_window import ScrapedSeries, SeriesWindow
from support.diagnosed_lines import DECODE, PREFILL, named
from support.diagnosis_windows import BEGIN_SECONDS, Line, WindowMaker

TIMES = BEGIN_SECONDS + np.arange(0.0, 601.0, 15.0)
COUNTS = np.random.default_rng(1).integers(2, 40, size=len(TIMES)).astype(float)
ENGINE = "disagg_engine_time_to_first_token_seconds"
FRONT = "disagg_request_time_to_first_token_seconds"


def burst(shown: int, front_seconds: float = 0.0, late_seconds: float = 0.0) -> SeriesWindow:
    """Requests delayed by a giant prompt, and a frontend that reports them some bins later."""
    window = WindowMaker(front_seconds=(0.0, 0.0)).make([Line("m0", "mixed")])
    waits = np.full(len(TIMES), 0.4)
    waits[-5:-1] = (13.0, 9.0, 4.0, 1.0)

    def told(name: str, gains: np.ndarray, times: np.ndarray) -> dict[str, tuple[ScrapedSeries]]:
        (old,) = window.families[name]
        return {name: (ScrapedSeries(old.labels, times, np.cumsum(gains)),)}

    counts, seconds = (
        np.roll(gains, shown) for gains in (COUNTS, COUNTS * (waits + front_seconds))
    )
    families = {
        **window.families,
        **told(f"{ENGINE}_count", COUNTS, TIMES),
        **told(f"{ENGINE}_sum", COUNTS * waits, TIMES),
        **told(f"{FRONT}_count", counts, TIMES - late_seconds),
        **told(f"{FRONT}_sum", seconds, TIMES - late_seconds),
    }
    return SeriesWindow(BEGIN_SECONDS, float(TIMES[-1]), families)


def waits_before(window: SeriesWindow) -> np.ndarray:
    fleet = read_fleet(window)
    assert fleet is not None
    (view,) = model_views(engine_changes(fleet), Targets(2.0, 0.05))
    found = router_waits(view)
    assert found is not None
    return found[1:]


def test_a_wait_before_the_engines_is_not_said_to_be_the_next_pools() -> None:
    (found,) = named(*PREFILL, *DECODE, front_seconds=(0.01, 1.5))

    assert found.text.startswith("before the engines: a latency floor")


@pytest.mark.parametrize("shown", [-1, 0, 1])
def test_a_page_lag_of_one_scrape_is_not_taken_for_a_wait(shown: int) -> None:
    assert np.abs(waits_before(burst(shown))).max() < 0.01
    assert waits_before(burst(shown, front_seconds=0.7)) == pytest.approx(0.7, abs=0.01)


@given(st.floats(-1.0, 1.0))
def test_the_lag_between_two_pages_is_estimated_from_their_counts(part: float) -> None:
    before = np.roll(COUNTS, 1)
    moved = (1 - abs(part)) * COUNTS + abs(part) * before
    front, engines = (moved, COUNTS) if part >= 0 else (COUNTS, moved)

    found = bins_late(front[1:], engines[1:])

    # A very small lag cannot be distinguished from none.
    assert found == pytest.approx(part, abs=0.01) or (found == 0 and abs(part) < 0.1)


def test_unrelated_counts_give_no_lag() -> None:
    others = np.random.default_rng(2).integers(2, 40, size=len(COUNTS)).astype(float)

    assert bins_late(COUNTS, others) == 0
    assert bins_late(np.full(9, 3.0), np.full(9, 3.0)) == 0
