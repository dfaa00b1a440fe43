from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_exporter.engine_pages.window import CumulativeCounts, window
from disagg_exporter.model import EnginePage, Histogram, ServingCounts, Total


def page(finished: float, queue_seconds: float = 0.0, t_ns: int = 0) -> EnginePage:
    """Requests that all had their first token within a second."""
    return EnginePage(
        "vllm",
        t_ns,
        "m",
        serving=ServingCounts(
            {Total.FINISHED_REQUESTS: finished, Total.QUEUE_SECONDS: queue_seconds},
            Histogram((1.0,), (finished, finished), finished / 2),
        ),
    )


def counted(*pages: EnginePage | None) -> ServingCounts:
    """What is counted after these pages; None is a restart that was seen."""
    tally = CumulativeCounts()
    for one in pages:
        if one is None:
            tally.restart()
        else:
            tally.ingest(one)
    assert tally.counts is not None
    return tally.counts


def test_counts_from_before_the_first_page_are_left_out() -> None:
    counts = counted(page(100))

    assert counts.totals[Total.FINISHED_REQUESTS] == 0
    assert counts.time_to_first_token == Histogram((1.0,), (0, 0), 0)


def test_increases_on_later_pages_are_counted() -> None:
    counts = counted(page(100, 5.0), page(103, 7.0), page(110, 7.0))

    assert counts.totals == {Total.FINISHED_REQUESTS: 10, Total.QUEUE_SECONDS: 2.0}
    assert counts.time_to_first_token == Histogram((1.0,), (10, 10), 5)


def test_a_restart_subtracts_nothing() -> None:
    counts = counted(page(100), page(110), page(4), page(5))

    assert counts.totals[Total.FINISHED_REQUESTS] == 15


def test_a_second_model_on_the_page_is_no_restart() -> None:
    """Otherwise existing counts would be counted a second time."""
    one, two, other = page(100), replace(page(103), model_name=None), page(4)

    counts = counted(one, two, page(105))

    assert counts.totals[Total.FINISHED_REQUESTS] == 5
    assert counted(one, two, replace(other, model_name="n")).totals[Total.FINISHED_REQUESTS] == 7


def test_an_observed_restart_counts_even_if_the_new_counter_is_higher() -> None:
    counts = counted(page(100), page(110), None, page(200))

    assert counts.totals[Total.FINISHED_REQUESTS] == 210


def test_a_restart_before_the_first_page_is_not_counted() -> None:
    assert counted(None, page(100), page(101)).totals[Total.FINISHED_REQUESTS] == 1


def test_a_negative_duration_is_no_restart() -> None:
    """A sum of durations that falls would otherwise count all requests once more."""
    counts = counted(page(100, 5.0), page(101, 4.5), page(102, 6.0))

    assert counts.totals == {Total.FINISHED_REQUESTS: 2, Total.QUEUE_SECONDS: 1.5}
    assert not window(page(100, 5.0), page(101, 4.5, t_ns=1)).reset


def test_a_series_that_appears_later_began_at_zero() -> None:
    later = replace(page(3), serving=ServingCounts({Total.TRANSFERS: 2}))

    assert counted(page(3), later).totals[Total.TRANSFERS] == 2


def test_a_series_that_disappears_keeps_its_count() -> None:
    gone = replace(page(3), serving=ServingCounts())

    counts = counted(page(1), page(3), gone)

    assert counts.totals[Total.FINISHED_REQUESTS] == 2
    assert counts.time_to_first_token == Histogram((1.0,), (2, 2), 1)


def test_a_series_that_disappears_and_returns_continues_its_count() -> None:
    gone = replace(page(3), serving=ServingCounts())

    counts = counted(page(1), page(3), gone, gone, page(8))

    assert counts.totals[Total.FINISHED_REQUESTS] == 7
    assert counts.time_to_first_token == Histogram((1.0,), (7, 7), 3.5)


def test_a_series_that_returns_lower_is_a_restart() -> None:
    gone = replace(page(3), serving=ServingCounts())

    assert counted(page(1), page(3), gone, page(2)).totals[Total.FINISHED_REQUESTS] == 4


@pytest.mark.parametrize("name", ["duration", "inter_token_latency", "output_tokens"])
def test_a_restart_is_detected_by_any_histogram(name: str) -> None:
    """A router counts nothing but how long requests took."""

    def told(count: float) -> EnginePage:
        histogram = Histogram((1.0,), (count, count), count)
        serving = replace(ServingCounts(), **{name: histogram})
        return EnginePage("vllm_router", 0, "", serving=serving)

    counts = counted(told(100), told(110), told(4), told(5))

    assert getattr(counts, name) == Histogram((1.0,), (15, 15), 15)


def test_a_change_from_worker_page_to_engine_page_counts_nothing_twice() -> None:
    """A Dynamo worker counts the requests too, until its engine writes its own series."""
    worker = replace(page(50), kind="dynamo")

    assert counted(worker, page(50), page(52)).totals[Total.FINISHED_REQUESTS] == 2


def test_removed_ranks_are_no_restart_of_the_remaining_ones() -> None:
    """Two of four ranks less is no restart of the others; what they did meanwhile is not known."""
    four, two = replace(page(400), ranks=4), replace(page(210), ranks=2)

    assert counted(four, two, replace(page(215), ranks=2)).totals[Total.FINISHED_REQUESTS] == 5
    assert window(four, replace(two, t_ns=1)).finished_requests is None


@settings(deadline=None)
@given(st.lists(st.none() | st.tuples(st.integers(0, 50), st.floats(0, 50)), max_size=30))
def test_no_count_ever_goes_down(looks: list[tuple[int, float] | None]) -> None:
    tally = CumulativeCounts()
    tally.ingest(page(0))
    before = tally.counts
    assert before is not None
    for look in looks:
        if look is None:
            tally.restart()
            continue
        tally.ingest(page(*look))
        after = tally.counts
        assert after is not None
        assert all(after.totals[total] >= count for total, count in before.totals.items())
        old, new = before.time_to_first_token, after.time_to_first_token
        assert old is not None
        assert new is not None
        assert all(b >= a for a, b in zip(old.counts, new.counts, strict=True))
        assert list(new.counts) == sorted(new.counts)
        assert new.sum >= old.sum
        before = after


def arrived(*levels: tuple[float, float] | None) -> float:
    """What is counted as arrived after pages of (finished, inside); None is a restart seen."""
    pages = [
        None
        if level is None
        else EnginePage(
            "vllm",
            0,
            "m",
            serving=ServingCounts(
                {Total.FINISHED_REQUESTS: level[0], Total.ARRIVED_REQUESTS: sum(level)}
            ),
        )
        for level in levels
    ]
    return counted(*pages).totals[Total.ARRIVED_REQUESTS]


def test_arrivals_include_finished_and_unfinished_requests() -> None:
    assert arrived((100, 5), (103, 9)) == 7


def test_a_lagging_gauge_does_not_count_arrivals_twice() -> None:
    """An engine that updates its gauges late: requests are in both counts, or in neither."""
    assert arrived((100, 5), (100, 3), (102, 3), (102, 3)) == 0
    assert arrived((100, 5), (102, 5), (102, 3), (104, 3)) == 2


def test_requests_lost_in_a_restart_are_counted_as_arrived() -> None:
    assert arrived((100, 5), (101, 8), None, (0, 2)) == 4 + 2
    assert arrived((100, 5), (101, 8), (1, 2)) == 4 + 3


def arrived_over(
    *levels: tuple[float, float] | None, every_seconds: int = 1, kind: str = "vllm"
) -> float:
    """The same for pages read one after another; None is a page that lacks the gauges."""
    pages = []
    for number, level in enumerate(levels):
        totals = {} if level is None else dict(zip(_BOTH, (level[0], sum(level)), strict=True))
        at_ns = number * every_seconds * 10**9
        pages.append(EnginePage(kind, at_ns, "m", serving=ServingCounts(totals)))
    return counted(*pages).totals[Total.ARRIVED_REQUESTS]


_BOTH = (Total.FINISHED_REQUESTS, Total.ARRIVED_REQUESTS)


def test_requests_that_arrive_after_many_gave_up_are_counted() -> None:
    """2,000 waiting requests vanish with their client, and vLLM counts none of them.

    It would take a quarter of an hour until as many had arrived again.
    """
    queued = [(10.0 * second, 2000.0) for second in range(20)]
    after = [(200.0 + 2.0 * second, 2.0) for second in range(120)]

    before_they_gave_up = 190.0
    found = arrived_over(*queued, *after) - before_they_gave_up

    # What finished within the time that gauges may lag cannot be told from requests counted twice.
    assert 2.0 * 120 - 160 <= found <= 2.0 * 120


@pytest.mark.parametrize("every_seconds", [1, 5, 15, 60])
@pytest.mark.parametrize("rest", [3, 30, 300])
@pytest.mark.parametrize("lag", [1, 3])
@pytest.mark.parametrize("twice", [True, False])
def test_a_gauge_that_lags_counts_each_of_few_requests_once(
    every_seconds: int, rest: int, lag: int, twice: bool
) -> None:
    """For some pages a request is in both counts, or in neither."""
    levels: list[tuple[float, float]] = [(0.0, 0.0)]
    for number in range(5):
        levels += [(number, 1.0)] * 4
        between = (number + 1.0, 1.0) if twice else (float(number), 0.0)
        levels += [between] * (lag if every_seconds <= 3 else 1)
        levels += [(number + 1.0, 0.0)] * rest

    assert 4 <= arrived_over(*levels, every_seconds=every_seconds) <= 6


def test_pages_that_lack_the_gauges_for_a_while_count_nothing_twice() -> None:
    steady = [(float(second), 5.0) for second in range(200)]
    lacking = [None if 50 <= second < 100 else level for second, level in enumerate(steady)]

    assert arrived_over(*lacking) == arrived_over(*steady) == 199


def test_a_prompt_that_is_in_no_gauge_while_it_is_computed_arrives_once() -> None:
    """At an engine that counts every request when it ends: none has vanished."""
    computed = [(0.0, 0.0), (0.0, 5.0), *[(0.0, 4.0)] * 30, *[(5.0, 0.0)] * 30]

    assert arrived_over(*computed, kind="sglang") == 5
