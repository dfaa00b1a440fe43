"""How a leader's time divides, for its followers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.attribution.pages.sources import LEAST_SECONDS, LeaderShare
from disagg_exporter.model import Phase, Role


def used(prefill: float, decode: float) -> dict[tuple[Role, Phase], float]:
    return {(Role.MIXED, Phase.PREFILL): prefill, (Role.MIXED, Phase.DECODE): decode}


def test_the_share_is_that_of_recent_time_and_not_of_all_time() -> None:
    led = LeaderShare()
    led.ingest(used(1000.0, 0.0))
    assert led.prefill_share is None

    led.ingest(used(1001.0, 3.0))
    assert led.prefill_share is None
    led.ingest(used(1002.0, 6.0))
    assert led.prefill_share == 0.25
    led.ingest(used(1002.0 + LEAST_SECONDS, 6.0))
    assert led.prefill_share == 1.0


def test_the_share_is_kept_while_the_leader_is_idle_and_across_an_account_reset() -> None:
    led = LeaderShare()
    for prefill, decode in ((0.0, 0.0), (3.0, 9.0), (3.0, 9.0), (0.0, 0.0), (0.0, 1.0)):
        led.ingest(used(prefill, decode))

    assert led.prefill_share == 0.25


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), max_size=20))
def test_the_share_is_absent_or_between_0_and_1_for_any_accounts(
    books: list[tuple[float, float]],
) -> None:
    led = LeaderShare()
    for prefill, decode in books:
        led.ingest(used(prefill, decode))

    assert led.prefill_share is None or 0.0 <= led.prefill_share <= 1.0
