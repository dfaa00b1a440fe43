"""What a frontend has counted, whichever of its processes served the page."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_cluster.telemetry.pages.front_tally import STALE_SECONDS, TURNS_SECONDS, FrontTally
from disagg_exporter.engine_pages.fronts import MOST_MODELS, FrontPage
from disagg_exporter.model import (
    SECOND_NS,
    EnginePage,
    Histogram,
    RequestSource,
    ServingCounts,
    Total,
)


def page(ended: float = 0, failed: float = 0, *models: str) -> FrontPage:
    """A page on which each model (m, unless others are named) has ended so many requests."""
    first = Histogram((1.0,), (ended, ended), ended)
    serving = ServingCounts({Total.ENDED_SUCCESS: ended, Total.ENDED_ERROR: failed}, first)
    pages = (EnginePage("dynamo_frontend", 0, name, serving=serving) for name in models or "m")
    return FrontPage(RequestSource.FRONTEND, tuple(pages))


def tallied(*pages: FrontPage, first_pages: int = 1) -> FrontTally:
    """The tally after a page a second."""
    tally = FrontTally("f", first_pages=first_pages)
    for second, each in enumerate(pages, 1):
        tally.ingest(each, second * SECOND_NS)
    return tally


def ended(tally: FrontTally, model: str = "m") -> float:
    counts = tally.counts(0).by_model[model]
    assert counts.time_to_first_token is not None
    assert counts.time_to_first_token.total == counts.totals[Total.ENDED_SUCCESS]
    return counts.totals[Total.ENDED_SUCCESS]


def test_replicas_at_one_address_are_each_counted_from_their_own_last_page() -> None:
    """Otherwise each turn of a load balancer would count the whole history of a replica."""
    turns = (page(9000), page(400), page(9003), page(404), page(405), page(9010))

    assert ended(tallied(*turns)) == 10 + 5


def test_the_first_pages_set_the_baseline_of_each_replica() -> None:
    """The first page of a replica with higher counts looks like growth, but must count nothing."""
    turns = (page(400), page(9000), page(403), page(9003), page(404))

    assert ended(tallied(*turns, first_pages=3)) == 3 + 1


def test_alternating_replicas_are_detected_once_two_have_answered_again() -> None:
    tally = tallied(page(9000), page(400), page(9003))

    assert not tally.answers_in_turn(3 * SECOND_NS)
    tally.ingest(page(404), 4 * SECOND_NS)
    assert tally.answers_in_turn(5 * SECOND_NS)
    assert not tally.answers_in_turn(round((5 + TURNS_SECONDS) * SECOND_NS))


def test_repeated_restarts_are_not_taken_for_alternating_replicas() -> None:
    """When a process counted what its first page shows is unknown."""
    tally = tallied(page(100), page(110), page(4), page(7), page(2), page(3))

    assert ended(tally) == 10 + 3 + 1
    assert not tally.answers_in_turn(6 * SECOND_NS)


def test_a_process_with_an_empty_page_is_counted_from_its_first_request() -> None:
    empty = FrontPage(RequestSource.FRONTEND, ())

    assert ended(tallied(page(100), empty, page(5), page(7))) == 7


def test_after_an_observed_restart_counting_starts_from_zero_even_if_counts_are_higher() -> None:
    tally = tallied(page(100))
    tally.restart()
    tally.ingest(page(150), 2 * SECOND_NS)

    assert ended(tally) == 150


@settings(deadline=None)
@given(
    st.integers(2000, 20_000),
    st.integers(2, 4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 30)), max_size=40),
)
def test_requests_of_replicas_are_counted_exactly_once_in_any_order_of_answers(
    apart: int, replicas: int, turns: list[tuple[int, int, int]]
) -> None:
    """If the counts of the replicas differ by more than each of them gains meanwhile."""
    start = [number * apart for number in range(replicas, 0, -1)]
    now = [(count, 0) for count in start]
    tally = tallied(*(page(count) for count in start))
    for number, (turn, more, failures) in enumerate(turns, 10):
        which = turn % replicas
        now[which] = now[which][0] + more, now[which][1] + failures
        tally.ingest(page(*now[which]), number * SECOND_NS)

    assert ended(tally) == sum(count for count, _ in now) - sum(start)
    failed = tally.counts(0).by_model["m"].totals[Total.ENDED_ERROR]
    assert failed == sum(count for _, count in now)


def test_beyond_the_model_limit_models_no_longer_served_are_dropped() -> None:
    many = [f"model-{number}" for number in range(MOST_MODELS)]
    tally = tallied(page(1, 0, *many), page(5, 0, "new", *many[1:]))

    by_model = tally.counts(0).by_model
    assert by_model.keys() == {"new", *many[1:]}


@pytest.mark.parametrize(
    ("seconds", "is_stale"), [(STALE_SECONDS, False), (STALE_SECONDS + 1, True)]
)
def test_a_frontend_not_scraped_for_long_is_stale(seconds: float, is_stale: bool) -> None:
    counts = tallied(page(1), page(3)).counts(round((2 + seconds) * SECOND_NS))

    assert counts.is_stale is is_stale
    assert counts.by_model["m"].totals[Total.ENDED_SUCCESS] == 2


def test_waiting_requests_are_those_of_the_latest_page() -> None:
    def waiting(requests: float | None) -> FrontPage:
        model = EnginePage("dynamo_frontend", 0, "m", waiting=requests)
        return FrontPage(RequestSource.FRONTEND, (model,))

    tally, seen = FrontTally("f"), []
    for second, requests in enumerate((3.0, 5.0, None)):
        tally.ingest(waiting(requests), second * SECOND_NS)
        seen.append(dict(tally.counts(0).waiting))

    assert seen == [{"m": 3.0}, {"m": 5.0}, {}]
