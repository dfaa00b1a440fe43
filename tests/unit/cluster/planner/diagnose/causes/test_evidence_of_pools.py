"""Causes found from several engines together, or from the limits that engines export."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.diagnose.diagnose import diagnose
from disagg_cluster.planner.diagnose.state import DiagnosisState, settled
from disagg_cluster.planner.diagnose.verdict.values import (
    BottleneckFinding,
    Cause,
    ModelKey,
    Remedy,
    RemedyKind,
)
from disagg_exporter.model import Role
from support.diagnosed_lines import DECODE, PREFILL, TARGETS, named
from support.diagnosis_windows import BEGIN_SECONDS, Line, WindowMaker

MIXED = tuple(Line(f"m{number}", role="mixed", mixed_slowness=1.0) for number in range(3))


def who(finding: BottleneckFinding) -> tuple[Cause, list[str]]:
    return finding.cause, [key.engine for key in finding.engines]


def test_slightly_longer_waits_at_each_engine_are_significant_for_the_pool() -> None:
    # None of the three waits is significantly longer by itself.
    lines = [replace(p, then={"wait_seconds": 0.65, "cached_share": 0.0}) for p in PREFILL]

    (found,) = named(*lines, *DECODE, noise=0.12)

    assert who(found) == (Cause.CACHE_COLLAPSE, [])


def test_a_few_prompts_of_unprecedented_length_are_giants() -> None:
    lines = [replace(p, then={"wait_seconds": 0.9, "prompt_spread": 0.25}) for p in PREFILL]

    (found,) = named(*lines, *DECODE)

    assert who(found) == (Cause.GIANTS, [])


def test_an_idle_engine_preferred_by_the_router_is_no_bottleneck() -> None:
    # Its prompts are longer by chance, so that its requests wait longer than those of its peers.
    lines = (
        replace(PREFILL[0], requests=0.5, wait_seconds=0.8, token_seconds=1e-5),
        *(replace(p, requests=0.1, wait_seconds=0.4, token_seconds=1e-5) for p in PREFILL[1:]),
    )

    assert named(*lines, *DECODE) == ()


def test_a_shrunk_cache_is_found_before_its_usage_looks_full() -> None:
    small = {"kv_tokens": 40_000.0, "kv_usage": 0.6, "waiting": 3.0, "wait_seconds": 1.6}

    (found,) = named(replace(MIXED[0], then=small), *MIXED[1:])

    assert who(found) == (Cause.KV_FULL, ["m0"])


def test_all_shrunk_caches_are_named_although_requests_wait_at_one_engine() -> None:
    small = {"kv_tokens": 40_000.0, "kv_usage": 0.6}
    full = {**small, "kv_usage": 0.95, "waiting": 3.0, "wait_seconds": 1.6}

    (found,) = named(
        replace(MIXED[0], then=full), *(replace(line, then=small) for line in MIXED[1:])
    )

    assert who(found) == (Cause.KV_FULL, [])


def test_a_cache_filled_after_the_queue_began_is_not_its_cause() -> None:
    crowd = replace(MIXED[0], then={"waiting": 3.0, "wait_seconds": 1.6})
    window = WindowMaker().make((crowd, *MIXED[1:]))
    name = "disagg_engine_kv_cache_usage_ratio"

    def filled(since_seconds: float) -> list[Cause]:
        first, *others = window.of(name)
        late = first.times_seconds >= BEGIN_SECONDS + since_seconds
        usage = replace(first, values=np.where(late, 0.95, 0.2))
        full = replace(window, families={**window.families, name: (usage, *others)})
        return [each.cause for each in diagnose(full, TARGETS)[0][0].findings]

    assert filled(450.0) == [Cause.KV_FULL]
    assert Cause.KV_FULL not in filled(530.0)


def test_an_engine_is_not_blamed_for_a_higher_hit_rate_of_its_only_peer() -> None:
    lucky = replace(PREFILL[0], then={"cached_share": 0.95, "wait_seconds": 0.05})

    assert named(lucky, PREFILL[1], *DECODE) == ()


def test_a_request_limit_that_was_always_too_low_is_found_by_its_queue() -> None:
    few = [replace(m, batch_limit=6.0, running=5.2, waiting=0.5, queue_seconds=0.5) for m in MIXED]

    (found,) = named(*few)

    assert who(found) == (Cause.UNDERFILLED, [])


def test_a_queue_below_the_request_limit_is_not_attributed_to_it() -> None:
    free = [replace(m, running=5.2, waiting=0.5, queue_seconds=0.5) for m in MIXED]

    assert named(*free) == ()


def queued_at_moments(batch_limit: float, **then: object) -> list[tuple[Cause, list[str]]]:
    """What is found where a queue is seen in two scrapes of many, in both with six running."""
    few = replace(MIXED[0], batch_limit=batch_limit, running=3.0, queue_seconds=0.5, then=then)
    window = WindowMaker().make((few, *MIXED[1:]))
    for series in window.of("disagg_engine_requests"):
        if series.labels["engine"] == "m0":
            at_moments = {"waiting": 2.0, "running": 6.0}.get(series.labels["state"], 0.0)
            series.values[[-12, -5]] = at_moments
    (diagnosis,), _ = diagnose(window, TARGETS)
    return [who(each) for each in diagnosis.findings]


def test_a_queue_seen_only_while_all_slots_are_taken_is_attributed_to_their_number() -> None:
    assert queued_at_moments(6.0) == [(Cause.UNDERFILLED, ["m0"])]
    assert queued_at_moments(9.0) == []


def test_fewer_slots_cost_no_more_than_requests_wait_in_the_queue() -> None:
    fewer = {"batch_limit": 4.0, "running": 4.0, "waiting": 1.0, "wait_seconds": 1.2}

    def found(queue_seconds: float) -> tuple[BottleneckFinding, ...]:
        few = replace(MIXED[0], queue_seconds=0.0, then={**fewer, "queue_seconds": queue_seconds})
        return named(few, *MIXED[1:])

    assert found(0.02) == ()
    assert [who(each) for each in found(0.7)] == [(Cause.UNDERFILLED, ["m0"])]


def test_an_engine_is_not_underfilled_because_its_only_peer_has_huge_steps() -> None:
    waits = {"wait_seconds": 1.6, "waiting": 5.0}
    usual = replace(PREFILL[0], step_limit=2048.0, step_tokens=2000.0, then=waits)
    huge = replace(PREFILL[1], step_limit=100_000.0)

    found = named(usual, huge, *DECODE)

    assert Cause.UNDERFILLED not in {each.cause for each in found}


def test_a_cache_made_too_small_is_sure_once_requests_wait_for_room() -> None:
    small = {"kv_tokens": 40_000.0, "kv_usage": 0.97, "waiting": 3.0, "wait_seconds": 1.6}

    def first_round(**then: object) -> list[Cause]:
        window = WindowMaker(noise=0.5).make((replace(MIXED[0], then=then), *MIXED[1:]))
        (diagnosis,), _ = diagnose(window, TARGETS, DiagnosisState())
        return [each.cause for each in diagnosis.findings]

    assert first_round(**small) == [Cause.KV_FULL]


def test_expired_kv_names_the_prefill_engine_that_kept_it() -> None:
    failing = {"transfers": 2.0, "transfer_failures": 1.0, "wait_seconds": 1.6}
    sender = replace(PREFILL[1], then={"transfer_failures": 0.5})

    (found,) = named(
        PREFILL[0], sender, PREFILL[2], *(replace(line, then=failing) for line in DECODE)
    )

    assert who(found) == (Cause.KV_TRANSFER, ["p1"])


SLOW = {"transfer_seconds": 0.7, "wait_seconds": 1.6}
FAILING = {"transfers": 2.0, "transfer_failures": 1.0, "wait_seconds": 1.6}


def late_transfers(
    usages: tuple[float, ...],
    then: dict[str, float] = SLOW,
    *,
    is_uneven: bool = True,
    noise: float = 0.0,
    late_noise: float = 0.0,
) -> BottleneckFinding:
    """The finding where transfers are late and caches of senders hold so much afterwards."""
    senders = [
        replace(line, then={"kv_usage": usage}) for line, usage in zip(PREFILL, usages, strict=True)
    ]
    window = WindowMaker().make((*senders, *(replace(line, then=then) for line in DECODE)))
    rng = np.random.default_rng(1)
    for series in window.of("disagg_engine_kv_cache_usage_ratio"):
        series.values[:] += noise * rng.standard_normal(len(series.values))
        is_late = series.times_seconds > BEGIN_SECONDS + 450.0
        series.values[is_late] += late_noise * rng.standard_normal(int(is_late.sum()))
    for series in window.of("disagg_engine_kv_transfer_seconds_total") if is_uneven else ():
        gained = np.diff(series.values, prepend=0.0)
        late = np.flatnonzero(series.times_seconds > BEGIN_SECONDS + 450.0)
        gained[late] *= 1 + 0.8 * (-1.0) ** late
        np.cumsum(gained, out=series.values)
    (diagnosis,), _ = diagnose(window, TARGETS)
    (found,) = diagnosis.findings
    return found


@pytest.mark.parametrize("is_uneven", [True, False])
def test_where_transfers_take_unequally_long_the_sender_that_keeps_most_kv_is_slow(
    *, is_uneven: bool
) -> None:
    """Its transfers also keep the receivers from fetching what the others hold."""
    found = late_transfers((0.22, 0.24, 0.2), is_uneven=is_uneven)

    assert who(found) == (Cause.KV_TRANSFER, ["p1"] if is_uneven else [])
    assert found.confidence == pytest.approx(0.95)


def test_a_sender_that_keeps_hardly_more_kv_than_the_next_is_named_with_less_confidence() -> None:
    found = late_transfers((0.22, 0.24, 0.2), noise=0.03)

    assert who(found) == (Cause.KV_TRANSFER, ["p1"])
    assert found.confidence == pytest.approx(0.8)


@pytest.mark.parametrize(("late_noise", "named_engines"), [(0.0, ["p1"]), (0.2, [])])
def test_a_sender_is_not_slow_whose_cache_varies_as_those_of_all_do(
    late_noise: float, named_engines: list[str]
) -> None:
    """With slow links of all senders, more KV waits at each, and now and then most at one."""
    found = late_transfers((0.2, 0.45, 0.2), is_uneven=False, late_noise=late_noise)

    assert who(found) == (Cause.KV_TRANSFER, named_engines)


def test_a_sender_does_not_fail_because_it_keeps_the_kv_of_more_requests() -> None:
    """Failed transfers are not timed: the others take unequally long by chance."""
    found = late_transfers((0.26, 0.32, 0.24), FAILING)

    assert who(found) == (Cause.KV_TRANSFER, [])


def test_a_receiver_with_too_few_transfers_to_judge_counts_as_failing_with_the_pool() -> None:
    failing = {"transfers": 0.4, "transfer_failures": 0.4, "wait_seconds": 1.6}
    rare = replace(DECODE[1], transfers=0.02, then={"transfers": 0.02})

    (found,) = named(*PREFILL, replace(DECODE[0], then=failing), rare)

    assert who(found) == (Cause.KV_TRANSFER, [])


def test_receivers_with_enough_successful_transfers_are_not_named_as_failing() -> None:
    failing = {"transfers": 0.03, "transfer_failures": 0.12, "wait_seconds": 1.6}
    rare = [replace(DECODE[1], name=f"d{number}", transfers=0.04) for number in (1, 2, 3)]

    (found,) = named(*PREFILL, replace(DECODE[0], then=failing), *rare)

    assert who(found) == (Cause.KV_TRANSFER, ["d0"])


def test_a_gradually_growing_wait_is_a_router_limit_and_a_sudden_one_a_floor() -> None:
    window = WindowMaker(seconds=270.0, onset_seconds=270.0, front_seconds=(0.003, 0.003)).make(
        (*PREFILL, *DECODE)
    )
    name = "disagg_request_time_to_first_token_seconds_sum"
    (total,) = window.of(name)

    def waiting(*latest_seconds: float) -> list[Cause]:
        wait_seconds = np.zeros(len(total.values))
        wait_seconds[-len(latest_seconds) :] = latest_seconds
        queued = replace(total, values=total.values + np.cumsum(wait_seconds * 6.0 * 15.0))
        seen = replace(window, families={**window.families, name: (queued,)})
        return [each.cause for each in diagnose(seen, TARGETS)[0][0].findings]

    assert waiting(-0.2, -0.3, 0.2, 0.7, 1.0, 2.4, 3.1, 3.9, 4.1, 4.6) == [Cause.ROUTER_LIMIT]
    assert waiting(0.2, 3.9, 4.1, 3.9, 4.1, 3.9) == [Cause.LATENCY_FLOOR]


def test_a_short_window_shows_no_latency_floor_of_hundredths_of_a_second() -> None:
    def found(seconds: float) -> list[Cause]:
        maker = WindowMaker(seconds=105.0, onset_seconds=105.0, front_seconds=(seconds, seconds))
        window = maker.make((*PREFILL, *DECODE))
        return [each.cause for each in diagnose(window, Targets(0.3, 0.05))[0][0].findings]

    assert found(0.03) == []
    assert found(0.3) != []


def test_a_noisy_constant_wait_is_still_a_latency_floor() -> None:
    (found,) = named(*PREFILL, *DECODE, front_seconds=(0.9, 0.9), onset_seconds=0, front_noise=0.15)

    assert who(found) == (Cause.LATENCY_FLOOR, [])


def test_a_few_milliseconds_before_the_engines_are_no_latency_floor() -> None:
    window = WindowMaker(front_seconds=(0.01, 0.01)).make((*PREFILL, *DECODE))
    (found,), _ = diagnose(window, Targets(0.1, 0.05))

    assert found.findings == ()


def test_a_wait_with_a_new_cause_no_longer_shows_its_earlier_one() -> None:
    model, wait_seconds = ModelKey("c", "", "m"), 2.0
    standing = settled(
        model, [(_found(Cause.ROUTER_LIMIT), 9.0)], DiagnosisState(), lambda _: wait_seconds, 50.0
    ).remembered

    shown = settled(
        model,
        [(_found(Cause.LATENCY_FLOOR), 9.0)],
        DiagnosisState(15.0, standing),
        lambda _: wait_seconds,
        50.0,
    ).findings

    assert [each.cause for each in shown] == [Cause.LATENCY_FLOOR]


def _found(cause: Cause) -> BottleneckFinding:
    remedy = Remedy(RemedyKind.NONE, "wait")
    return BottleneckFinding(cause, Role.PREFILL, (), 0.9, 1.0, 1.0, 0.0, (), remedy, "")


def test_steps_that_always_reach_their_limit_are_found_without_a_visible_queue() -> None:
    cut = {"step_tokens": 250.0, "step_limit": 256.0, "token_seconds": 2.4e-4}
    small = replace(PREFILL[0], **cut, wait_seconds=1.6)  # type: ignore[arg-type] # by name
    (found,) = named(small, *PREFILL[1:], *DECODE)

    assert who(found) == (Cause.UNDERFILLED, ["p0"])


def test_all_decode_engines_short_of_room_are_named_while_one_of_them_has_no_queue() -> None:
    kept = {"wait_seconds": 1.6, "waiting": 3.0}
    window = WindowMaker().make((*PREFILL, *(replace(line, then=kept) for line in DECODE)))
    for series in window.of("disagg_engine_requests"):
        if series.labels["engine"] == "d1":
            series.values[-2:] = 0.0

    (diagnosis,), _ = diagnose(window, TARGETS)
    (found,) = diagnosis.findings

    assert who(found) == (Cause.PREALLOCATION, [])


def test_a_burst_at_decode_is_ignored_but_a_lowered_request_limit_is_found() -> None:
    burst = {"requests": 4.5, "transfers": 4.5, "waiting": 9.0, "wait_seconds": 4.0}
    passing = [replace(each, then={**burst, "running": 256.0}) for each in DECODE]
    lasting = [replace(each, then={**burst, "running": 4.0, "batch_limit": 4.0}) for each in DECODE]

    assert named(*PREFILL, *passing, onset_seconds=555.0) == ()
    (found,) = named(*PREFILL, *lasting, onset_seconds=555.0)
    assert who(found) == (Cause.DECODE_BACK_PRESSURE, [])


def test_a_burst_at_decode_is_ignored_in_the_first_minutes_too() -> None:
    burst = {"requests": 6.0, "transfers": 6.0, "waiting": 9.0, "wait_seconds": 4.0}
    passing = [replace(each, then={**burst, "running": 256.0}) for each in DECODE]

    assert named(*PREFILL, *passing, seconds=195.0, onset_seconds=135.0) == ()


def test_a_slightly_longer_wait_suffices_for_steps_that_always_reach_their_limit() -> None:
    cut = {"step_tokens": 250.0, "step_limit": 256.0, "token_seconds": 2.4e-4}
    long = replace(PREFILL[0], wait_seconds=0.9)
    small = replace(long, **cut)  # type: ignore[arg-type] # by name

    assert named(long, *PREFILL[1:], *DECODE, noise=0.6, seed=3) == ()
    (found,) = named(small, *PREFILL[1:], *DECODE, noise=0.6, seed=3)
    assert who(found) == (Cause.UNDERFILLED, ["p0"])


def test_a_burst_at_decode_must_be_beyond_chance() -> None:
    then = {"requests": 0.2, "transfers": 0.2, "waiting": 9.0, "wait_seconds": 40.0}
    decode = [replace(each, requests=0.15, transfers=0.15, then=then) for each in DECODE]

    (found,) = named(*PREFILL, *decode, onset_seconds=555.0)

    assert who(found) == (Cause.PREALLOCATION, [])


def test_a_pool_of_which_most_engines_reserve_room_is_named_as_a_whole() -> None:
    decode = [replace(DECODE[0], name=f"d{number}") for number in range(4)]
    reserving = {"waiting": 4.0, "wait_seconds": 3.0}

    def found(count: int) -> tuple[Cause, list[str]]:
        (one,) = named(
            *PREFILL, *(replace(each, then=reserving) for each in decode[:count]), *decode[count:]
        )
        return who(one)

    assert found(3) == (Cause.PREALLOCATION, [])
    assert found(2) == (Cause.PREALLOCATION, ["d0", "d1"])
