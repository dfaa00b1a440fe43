import pytest

from disagg_exporter.model import Histogram
from disagg_exporter.serving.pools import PATIENCE_SECONDS, PoolsWait

BOUNDS = (0.25, 1.0)


def waits(count: float, seconds: float = 0.5) -> Histogram:
    """So many waits of the same length."""
    counts = tuple(count * (seconds <= bound) for bound in BOUNDS)
    return Histogram(BOUNDS, (*counts, count), count * seconds)


def taken(*looks: tuple[float, Histogram | None, Histogram | None]) -> PoolsWait:
    """The result after these calls: (second, prefill, decode)."""
    pools = PoolsWait(BOUNDS)
    for seconds, prefill, decode in looks:
        pools.ingest(prefill, decode, round(seconds * 1e9))
    return pools


def test_each_decode_wait_gives_one_combined_wait() -> None:
    whole = taken((1, waits(10), waits(3)), (2, None, waits(4)), (3, waits(5), None)).whole

    assert whole is not None
    assert whole.total == 7


def test_a_count_once_made_never_changes() -> None:
    """The later waits, whose prompts are slow, are beyond the last bound; the earlier are not."""
    pools = taken((1, waits(10, 0.05), waits(3, 0.05)))
    before = pools.whole
    pools.ingest(waits(1e9, 2.0), None, 2_000_000_000)
    after_prompts = pools.whole
    pools.ingest(None, waits(5, 0.05), 3_000_000_000)

    assert before is not None
    assert before.counts == pytest.approx((3, 3, 3))
    assert after_prompts == before
    assert pools.whole is not None
    assert pools.whole.counts == pytest.approx((3, 3, 8))
    assert pools.whole.sum == pytest.approx(before.sum + 5 * 2.05)


@pytest.mark.parametrize(("seconds", "known"), [(PATIENCE_SECONDS, True), (61.1, False)])
def test_decode_observations_wait_a_minute_for_the_first_of_prefill(
    seconds: float, known: bool
) -> None:
    """Observations of an hour before would be a jump of the counter unrelated to the present."""
    looks = [(0.0, None, waits(4)), (seconds, None, waits(1)), (seconds + 0.5, waits(5), None)]
    whole = taken(*looks).whole

    assert (whole is not None) is known


def test_old_prompts_have_little_weight() -> None:
    slow_then_fast = taken((0, waits(100, 2.0), None), (60, waits(10, 0.1), waits(10, 0.1)))
    just_slow = taken((0, waits(100, 2.0), None), (60, None, waits(10, 0.1)))

    assert slow_then_fast.whole is not None
    assert slow_then_fast.whole.counts[1] > 9
    assert just_slow.whole is not None
    assert just_slow.whole.counts[1] == 0


@pytest.mark.parametrize(("seconds", "known"), [(PATIENCE_SECONDS, True), (60.1, False)])
def test_prompts_older_than_a_minute_have_no_weight(seconds: float, known: bool) -> None:
    """Prefill engines that are gone, or report nothing, must not affect today's waits."""
    whole = taken((1.0, waits(5), None), (1.0 + seconds, None, waits(4))).whole

    assert (whole is not None) is known


def test_after_a_pause_decode_waits_use_the_first_new_prompts() -> None:
    whole = taken((0, waits(5, 2.0), None), (100, None, waits(4)), (101, waits(9, 0.1), None)).whole

    assert whole is not None
    assert (whole.total, whole.sum) == (4, pytest.approx(4 * 0.6))
