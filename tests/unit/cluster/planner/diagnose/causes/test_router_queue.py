"""Waits before the engines, from two pages that report the same requests at different times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.diagnose.causes.router_queue import (
    FrontWait,
    bins_late,
    passing_queue,
    router_waits,
)
from disagg_cluster.planner.diagnose.evidence.engine_changes import engine_changes
from disagg_cluster.planner.diagnose.evidence.fleet import read_fleet
from disagg_cluster.planner.diagnose.evidence.model_view import ModelView, model_views
from disagg_cluster.planner.diagnose.evidence.series_window import ScrapedSeries, SeriesWindow
from support.diagnosed_lines import DECODE, PREFILL, named
from support.diagnosis_windows import BEGIN_SECONDS, Line, WindowMaker

TIMES = BEGIN_SECONDS + np.arange(0.0, 601.0, 15.0)
COUNTS = np.random.default_rng(1).integers(2, 40, size=len(TIMES)).astype(float)
ENGINE = "disagg_engine_time_to_first_token_seconds"
FRONT = "disagg_request_time_to_first_token_seconds"


def told(name: str, gains: np.ndarray, times: np.ndarray) -> dict[str, tuple[ScrapedSeries]]:
    window = WindowMaker(front_seconds=(0.0, 0.0)).make([Line("m0", "mixed")])
    (old,) = window.families[name]
    return {name: (ScrapedSeries(old.labels, times, np.cumsum(gains)),)}


def burst(shown: int, front_seconds: float = 0.0, late_seconds: float = 0.0) -> SeriesWindow:
    """Requests delayed by a giant prompt, and a frontend that reports them some bins later."""
    window = WindowMaker(front_seconds=(0.0, 0.0)).make([Line("m0", "mixed")])
    waits = np.full(len(TIMES), 0.4)
    waits[-5:-1] = (13.0, 9.0, 4.0, 1.0)
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


def view_of(window: SeriesWindow) -> ModelView:
    fleet = read_fleet(window)
    assert fleet is not None
    (view,) = model_views(engine_changes(fleet), Targets(2.0, 0.05))
    return view


def waits_before(window: SeriesWindow) -> np.ndarray:
    found = router_waits(view_of(window))
    assert found is not None
    return found[1:]


def queue_of(*block_seconds: float) -> FrontWait | None:
    """A queue before the engines, by the waits there in the last blocks of two scrapes."""
    window, waits = burst(0), np.zeros(len(TIMES))
    waits[-2 * len(block_seconds) :] = np.repeat(block_seconds, 2)
    counts = np.full(len(TIMES), 20.0)
    families = {
        **window.families,
        **told(f"{ENGINE}_count", counts, TIMES),
        **told(f"{ENGINE}_sum", counts * 2.0, TIMES),
        **told(f"{FRONT}_count", counts, TIMES),
        **told(f"{FRONT}_sum", counts * (2.0 + waits), TIMES),
    }
    view = view_of(SeriesWindow(BEGIN_SECONDS, float(TIMES[-1]), families))
    router = router_waits(view)
    assert router is not None
    return passing_queue(view, router)


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


def test_a_queue_of_one_block_is_real_if_no_block_beside_it_lacks_its_waits() -> None:
    assert queue_of(0.0, 0.9, 0.0, 0.0) is not None


def test_a_queue_of_one_block_counts_from_four_standard_errors_of_all_requests_since() -> None:
    found = queue_of(0.0, 0.2, 0.0, 0.0)

    assert found is not None
    assert found.z == pytest.approx(5.5, abs=0.2)
    assert queue_of(0.0, 0.1, 0.0, 0.0) is None


@pytest.mark.parametrize("block_seconds", [(-0.4, 0.9, 0.0, 0.0), (0.0, 0.9, -0.4), (0.0, 0.9)])
def test_a_wait_of_one_block_may_be_missing_beside_it(block_seconds: tuple[float, ...]) -> None:
    assert queue_of(*block_seconds) is None
