"""An engine is drained when nothing runs, nothing is on its way, and nobody fetches from it."""

from dataclasses import replace

import pytest

from disagg_cluster.switching.drained import UNKNOWN_ROUTE, has_fetched, remaining_text
from disagg_exporter.model import EnginePage, Histogram, ServingCounts

S = 1_000_000_000
IDLE = EnginePage("vllm", 2 * S, running=0.0, waiting=0.0)
UNREAD = "requests may still run (its page was not read since)"
UNTOLD = "requests may still run (its page does not tell)"


def test_an_engine_is_idle_by_an_idle_page_scraped_well_after_it_was_removed() -> None:
    assert remaining_text(IDLE, S, None, 0) == ""
    assert remaining_text(IDLE, S, 0.0, 2 * S) == ""


@pytest.mark.parametrize(
    ("page", "pending", "pending_ns", "remaining"),
    [
        (None, 0.0, 2 * S, UNREAD),
        (replace(IDLE, t_ns=S + S // 4), 0.0, 2 * S, UNREAD),
        (replace(IDLE, running=1.0), 0.0, 2 * S, "1 request still runs"),
        (replace(IDLE, running=None), 0.0, 2 * S, UNTOLD),
        (replace(IDLE, running=2.0, waiting=1.0), 0.0, 2 * S, "3 requests still run"),
        (IDLE, 1.0, 2 * S, "the router still has 1 request for it"),
        (IDLE, 0.0, S, UNKNOWN_ROUTE),
        (IDLE, float("inf"), 0, UNKNOWN_ROUTE),
    ],
)
def test_an_engine_is_not_idle_while_requests_are_running_waiting_pending_or_unknown(
    page: EnginePage | None, pending: float, pending_ns: int, remaining: str
) -> None:
    assert remaining_text(page, S, pending, pending_ns) == remaining


def decoding(running: float, waiting: float, ended: float, t_ns: int = S) -> EnginePage:
    counts = ServingCounts(duration=Histogram((1.0,), (ended, ended), 0.0))
    return EnginePage("vllm", t_ns, running=running, waiting=waiting, serving=counts)


def test_a_decode_engine_has_fetched_once_its_queue_was_empty_or_was_worked_off() -> None:
    then = decoding(4, 10, 100)

    assert not has_fetched(then, then)
    assert has_fetched(then, decoding(4, 0, 101, 2 * S))
    # Ten waited; nine of them, or of those before them, have begun.
    assert not has_fetched(then, decoding(4, 12, 109, 2 * S))
    assert has_fetched(then, decoding(4, 12, 110, 2 * S))
    assert not has_fetched(then, decoding(8, 12, 105, 2 * S))
    assert has_fetched(then, decoding(8, 12, 106, 2 * S))


def test_a_restarted_decode_engine_has_nothing_to_fetch() -> None:
    assert has_fetched(decoding(4, 10, 100), decoding(1, 3, 2, 2 * S))
