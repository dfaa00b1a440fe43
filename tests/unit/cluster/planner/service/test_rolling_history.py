from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from disagg_cluster.planner.history.history_request import HistoryRequest
from disagg_cluster.planner.history.load_history import LoadHistory, LoadKey
from disagg_cluster.planner.history.load_series import LoadSeries
from disagg_cluster.planner.service.rolling_history import OVERLAP_STEPS, RollingHistory

WINDOW_SECONDS = 6000.0


@dataclass
class Past:
    """Has one load, whose value at a step is the step's number, up to a time."""

    known_until_seconds: float = np.inf
    asked: list[HistoryRequest] = field(default_factory=list)
    failing: bool = False
    models: tuple[str, ...] = ("a",)

    def read(self, request: HistoryRequest) -> list[LoadHistory]:
        if self.failing:
            raise OSError("down")
        self.asked.append(request)
        times = request.first_seconds + request.step_seconds * np.arange(request.steps)
        values = np.where(times < self.known_until_seconds, times / 60, np.nan)
        series = LoadSeries(request.first_seconds, request.step_seconds, values)
        return [LoadHistory(LoadKey("", name), series, series, series) for name in self.models]


def test_the_first_round_reads_the_window_and_later_ones_only_new_steps() -> None:
    past = Past()
    history = RollingHistory(past, WINDOW_SECONDS, 60.0)

    history.read(60_000.0)
    (found,) = history.read(60_300.0)

    assert [each.steps for each in past.asked] == [100, 5 + OVERLAP_STEPS]
    expected = np.arange(60_300 - WINDOW_SECONDS, 60_300, 60) / 60
    for series in (found.prompt_tokens, found.output_tokens, found.requests):
        assert series is not None
        assert series.start_seconds == 60_300 - WINDOW_SECONDS
        np.testing.assert_array_equal(series.values, expected)
    assert found.prefill_gpus is None


def test_late_samples_fill_a_gap() -> None:
    past = Past(known_until_seconds=59_800.0)
    history = RollingHistory(past, WINDOW_SECONDS, 60.0)
    (early,) = history.read(60_000.0)
    assert np.isnan(early.prompt_tokens.values[-3:]).all()

    past.known_until_seconds = np.inf
    (late,) = history.read(60_060.0)

    assert np.isfinite(late.prompt_tokens.values).all()


def test_the_round_after_a_failed_one_reads_what_it_missed() -> None:
    past = Past()
    history = RollingHistory(past, WINDOW_SECONDS, 60.0)
    history.read(60_000.0)
    past.failing = True
    with pytest.raises(OSError, match="down"):
        history.read(60_600.0)

    past.failing = False
    (found,) = history.read(61_200.0)

    assert past.asked[-1].steps == 20 + OVERLAP_STEPS
    assert np.isfinite(found.prompt_tokens.values).all()


def test_a_model_that_is_gone_has_a_gap_and_leaves_with_the_window() -> None:
    past = Past(models=("a", "b"))
    history = RollingHistory(past, WINDOW_SECONDS, 60.0)
    history.read(60_000.0)
    past.models = ("a",)

    gone = history.read(60_600.0)[1]

    assert gone.key.model_name == "b"
    assert np.isnan(gone.prompt_tokens.values[-10:]).all()
    names = [each.key.model_name for each in history.read(60_000.0 + 2 * WINDOW_SECONDS)]
    assert names == ["a"]


def test_an_hour_of_late_samples_is_read_again() -> None:
    """The server answers all the time, while samples wait in a queue for an hour."""
    past = Past(known_until_seconds=60_000.0)
    history = RollingHistory(past, WINDOW_SECONDS, 60.0)
    for now in range(60_000, 63_601, 300):
        history.read(float(now))

    past.known_until_seconds = np.inf
    (found,) = history.read(63_900.0)

    assert np.isfinite(found.prompt_tokens.values).all()
    history.read(64_200.0)
    assert past.asked[-1].steps == 5 + OVERLAP_STEPS


def test_a_clock_may_go_back() -> None:
    past = Past()
    history = RollingHistory(past, WINDOW_SECONDS, 60.0)
    history.read(60_000.0)

    (found,) = history.read(57_000.0)

    assert found.prompt_tokens.start_seconds == 57_000 - WINDOW_SECONDS
    assert np.isfinite(found.prompt_tokens.values).all()


def test_the_window_is_read_whole_after_a_clock_was_far_ahead() -> None:
    """A computer starts with a wrong clock, and learns the time a moment later."""
    past = Past(known_until_seconds=60_000.0)
    history = RollingHistory(past, WINDOW_SECONDS, 60.0)
    assert history.read(60_000.0 + 2 * WINDOW_SECONDS) == []

    (found,) = history.read(60_000.0)

    assert np.isfinite(found.prompt_tokens.values).all()
