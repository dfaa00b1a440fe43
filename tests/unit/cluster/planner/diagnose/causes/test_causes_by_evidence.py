"""Each cause is found from its evidence, and not from evidence that is only similar."""

from __future__ import annotations

from dataclasses import replace

import pytest

from disagg_cluster.planner.diagnose.diagnose import diagnose
from disagg_cluster.planner.diagnose.verdict.values import (
    BottleneckFinding,
    Cause,
    DiagnosisOutcome,
    RemedyKind,
    TtftPart,
)
from support.diagnosed_lines import DECODE, PREFILL, TARGETS, named
from support.diagnosis_windows import BEGIN_SECONDS, Line, WindowMaker

LONG_WAIT = {"wait_seconds": 1.6}


def changed(line: Line, **then: object) -> Line:
    """The engine with other values from the onset on, and users who wait for it."""
    return replace(line, then={**LONG_WAIT, **then})


def causes(*lines: Line, **maker: object) -> list[Cause]:
    return [finding.cause for finding in named(*lines, **maker)]


def engines(finding: BottleneckFinding) -> list[str]:
    return [key.engine for key in finding.engines]


def one_of_three(**then: object) -> tuple[Line, ...]:
    return (changed(PREFILL[0], **then), *PREFILL[1:], *DECODE)


def favoured(usual_seconds: float, wait_seconds: float, beside_seconds: float) -> tuple[Line, ...]:
    """Three fifths of the requests come to one of three engines, and waits change."""
    first, *others = (replace(line, wait_seconds=usual_seconds) for line in PREFILL)
    beside = {"requests": 1.2, "wait_seconds": beside_seconds}
    return (
        replace(first, then={"requests": 3.6, "wait_seconds": wait_seconds}),
        *(replace(line, then=beside) for line in others),
        *DECODE,
    )


def test_unchanged_engines_have_no_bottleneck() -> None:
    (found,), _ = diagnose(WindowMaker().make((*PREFILL, *DECODE)), TARGETS)

    assert found.outcome is DiagnosisOutcome.NO_BOTTLENECK


def test_slow_steps_with_a_throttled_clock_are_a_slow_gpu() -> None:
    (found,) = named(*one_of_three(slowness=2.0, clocks=(0.9e9,), throttled=(1.0,)))

    assert found.cause is Cause.SLOW_GPU
    assert engines(found) == ["p0"]
    assert found.remedy.kind is RemedyKind.REPLACE_GPU
    assert {each.name for each in found.evidence} >= {"slowness", "throttled", "sm_clock"}
    assert found.ttft_cost_seconds == pytest.approx(0.4, rel=0.2)
    assert found.engine_cost_seconds == pytest.approx(1.2, rel=0.2)
    assert found.since_seconds == pytest.approx(BEGIN_SECONDS + 450, abs=60)


@pytest.mark.parametrize("slowness", [None, 1.0])
def test_engines_of_another_kind_that_always_took_longer_are_no_slow_gpus(
    slowness: float | None,
) -> None:
    slower = {"token_seconds": 1.6e-4, "wait_seconds": 0.9, "stage_seconds": 0.8}
    lines = [
        replace(PREFILL[0], name=name, kind=kind, slowness=slowness, **(slower if of else {}))
        for name, kind, of in (
            *(("v0", "vllm", False), ("v1", "vllm", False)),
            *(("s0", "sglang", True), ("s1", "sglang", True)),
        )
    ]

    assert causes(*lines, *DECODE, noise=0.05) == []
    assert causes(*(replace(each, kind="vllm") for each in lines), *DECODE, noise=0.05) == [
        Cause.SLOW_GPU
    ]


def test_a_power_limit_that_holds_back_all_peers_alike_is_no_evidence() -> None:
    """As on an H200 at work, whose limit lowers its clock a little for 95 % of the time."""
    usual = [replace(line, capped=(0.95,)) for line in PREFILL]
    slow = changed(usual[0], slowness=2.0)
    (found,) = named(slow, *usual[1:], *DECODE)

    assert found.cause is Cause.SLOW_GPU
    assert "power_capped" not in {each.name for each in found.evidence}

    (found,) = named(changed(PREFILL[0], slowness=2.0, capped=(0.95,)), *PREFILL[1:], *DECODE)

    assert "power_capped" in {each.name for each in found.evidence}


def test_gpus_at_their_power_limit_like_their_peers_have_no_straggler() -> None:
    usual = [replace(line, gpus=4, capped=(0.05, 0.95, 0.88, 0.93)) for line in PREFILL]
    usual[1] = changed(usual[1], slowness=1.8)

    assert causes(*usual, *DECODE) == [Cause.SLOW_GPU]


def test_slow_steps_without_gpu_readings_are_a_slow_gpu_too() -> None:
    assert causes(*one_of_three(slowness=2.0)) == [Cause.SLOW_GPU]


def test_slow_steps_are_found_without_the_cost_model_of_the_engine() -> None:
    lines = [replace(line, slowness=None) for line in (*PREFILL, *DECODE)]
    lines[0] = changed(lines[0], token_seconds=2.5e-4)

    (found,) = named(*lines)

    assert (found.cause, engines(found)) == (Cause.SLOW_GPU, ["p0"])


def test_a_throttled_gpu_without_slower_steps_is_no_cause() -> None:
    assert causes(*one_of_three(clocks=(0.9e9,), throttled=(1.0,))) == []


def test_slow_steps_with_negligible_cost_are_not_found() -> None:
    slow = replace(PREFILL[0], then={"slowness": 2.0, "wait_seconds": 0.42})

    assert causes(slow, *PREFILL[1:], *DECODE) == []


def test_surely_slow_steps_are_named_from_seven_tenths_of_the_least_cost_on() -> None:
    """A twentieth of the target is 0.1 s, to all requests; a third of them wait longer."""
    cheap, dear = (
        replace(PREFILL[0], then={"slowness": 1.6, "wait_seconds": wait}) for wait in (0.58, 0.62)
    )
    (suspected,), _ = diagnose(WindowMaker().make((cheap, *PREFILL[1:], *DECODE)), TARGETS)

    assert suspected.findings == ()
    assert [(each.cause, engines(each)) for each in suspected.suspects] == [
        (Cause.SLOW_GPU, ["p0"])
    ]
    assert causes(dear, *PREFILL[1:], *DECODE) == [Cause.SLOW_GPU]


def test_one_slow_gpu_of_several_is_a_straggler() -> None:
    group = [replace(line, gpus=4, clocks=(1.98e9,) * 4) for line in PREFILL]
    group[1] = changed(
        group[1], slowness=1.8, clocks=(1.98e9, 1.98e9, 0.9e9, 1.98e9), throttled=(0, 0, 1.0, 0)
    )

    (found,) = named(*group, *DECODE)

    assert (found.cause, engines(found)) == (Cause.TP_STRAGGLER, ["p1"])


def test_a_whole_group_that_is_slow_has_no_straggler() -> None:
    group = [replace(line, gpus=4) for line in PREFILL]
    group[1] = changed(group[1], slowness=1.8, clocks=(0.9e9,) * 4, throttled=(1.0,) * 4)

    assert causes(*group, *DECODE) == [Cause.SLOW_GPU]


def test_slow_steps_beside_a_foreign_process_are_attributed_to_it() -> None:
    (found,) = named(*one_of_three(slowness=1.9, foreign_sm=0.4))

    assert found.cause is Cause.STRANGER
    assert found.remedy.kind is RemedyKind.MOVE_WORKER


def test_a_foreign_process_without_slower_steps_is_no_cause() -> None:
    assert causes(*one_of_three(foreign_sm=0.4)) == []


def test_an_engine_slow_from_its_first_steps_on_is_a_cold_start() -> None:
    started = BEGIN_SECONDS + 450.0

    assert causes(*one_of_three(slowness=4.0, started_seconds=started)) == [Cause.COLD_START]


def test_an_engine_slow_only_minutes_after_its_start_is_not_a_cold_start() -> None:
    young = tuple(replace(line, started_seconds=BEGIN_SECONDS + 10.0) for line in PREFILL)

    assert causes(changed(young[0], slowness=2.0), *young[1:], *DECODE) == [Cause.SLOW_GPU]


def test_an_engine_with_more_than_its_share_of_requests_is_a_routing_problem() -> None:
    (found,) = named(*favoured(0.4, 1.6, 0.4))

    assert (found.cause, engines(found)) == (Cause.ROUTING, ["p0"])
    assert found.remedy.kind is RemedyKind.ROUTE_AWAY


def test_unbalanced_routing_costs_less_where_waits_become_shorter_beside_it() -> None:
    (gross,) = named(*favoured(0.8, 1.1, 0.8))
    (net,) = named(*favoured(0.8, 1.1, 0.74))

    assert gross.ttft_cost_seconds == pytest.approx(0.6 * 0.3, rel=0.05)
    assert net.ttft_cost_seconds == pytest.approx(0.6 * 0.3 - 0.4 * 0.06, rel=0.05)


def test_sure_but_cheap_unbalanced_routing_is_not_found() -> None:
    """Waits are longer by three quarters of the least cost, and by more than it."""
    assert causes(*favoured(0.4, 0.525, 0.4)) == []
    assert causes(*favoured(0.4, 0.6, 0.4)) == [Cause.ROUTING]


def test_engines_that_get_more_requests_because_a_peer_is_slow_are_not_named() -> None:
    lines = (
        changed(PREFILL[0], slowness=3.0, requests=0.8),
        *(changed(line, requests=2.6, wait_seconds=1.2) for line in PREFILL[1:]),
        *DECODE,
    )

    (found,) = named(*lines)

    assert (found.cause, engines(found)) == (Cause.SLOW_GPU, ["p0"])


def test_an_overfull_engine_whose_steps_are_slow_too_has_both_causes() -> None:
    """Its queue fills batches of sizes that its cost model has not met."""
    first, *others = favoured(0.4, 3.0, 0.4)
    full = replace(first, then={**first.then, "slowness": 1.2, "waiting": 20.0})

    found = named(full, *others)

    assert [(each.cause, engines(each)) for each in found] == [
        (Cause.ROUTING, ["p0"]),
        (Cause.SLOW_GPU, ["p0"]),
    ]


def test_longer_prompts_at_the_only_engine_are_not_concentrated() -> None:
    (longer,) = (changed(line, prompt_tokens=6000.0) for line in PREFILL[:1])

    assert Cause.LONG_PROMPTS not in causes(longer, *DECODE)


def test_long_prompts_routed_to_one_engine_are_found() -> None:
    lines = (
        changed(PREFILL[0], prompt_tokens=9000.0),
        *(replace(line, then={"prompt_tokens": 2000.0}) for line in PREFILL[1:]),
        *DECODE,
    )

    (found, *_) = named(*lines)

    assert (found.cause, engines(found)) == (Cause.LONG_PROMPTS, ["p0"])


def test_a_few_giant_prompts_at_all_engines_are_head_of_line_blocking_of_the_pool() -> None:
    lines = [
        changed(line, prompt_tokens=3600.0, prompt_spread=0.6, wait_seconds=1.6) for line in PREFILL
    ]

    (found, *_) = named(*lines, *DECODE)

    assert (found.cause, engines(found)) == (Cause.GIANTS, [])


def test_prompts_that_are_no_longer_cached_are_a_cache_collapse() -> None:
    (found, *_) = named(*one_of_three(cached_share=0.0))

    assert (found.cause, engines(found)) == (Cause.CACHE_COLLAPSE, ["p0"])


def test_a_cache_that_never_held_anything_has_not_collapsed() -> None:
    never = tuple(replace(line, cached_share=0.0) for line in PREFILL)

    assert causes(changed(never[0], slowness=2.0), *never[1:], *DECODE) == [Cause.SLOW_GPU]


def test_gaps_between_steps_are_host_bound() -> None:
    (found,) = named(*one_of_three(gap_share=0.8))

    assert (found.cause, engines(found)) == (Cause.HOST_BOUND, ["p0"])


def test_an_engine_always_host_bound_has_no_peer_that_is_so_with_it() -> None:
    """Its own gaps became shorter, and those of the other hardly longer."""
    bound = Line("m0", role="mixed", wait_seconds=1.7, gap_share=0.8, then={"gap_share": 0.7})
    other = Line("m1", role="mixed", gap_share=0.01, then={"gap_share": 0.03})

    (found,) = named(bound, other)

    assert (found.cause, engines(found)) == (Cause.HOST_BOUND, ["m0"])


def test_a_lone_engine_always_host_bound_is_found_only_once_waits_are_long() -> None:
    alone = Line("m0", role="mixed", gap_share=2.0, wait_seconds=1.5)

    (found,) = named(alone)

    assert (found.cause, engines(found)) == (Cause.HOST_BOUND, ["m0"])
    assert found.ttft_cost_seconds == pytest.approx(1.5 * 2 / 3, rel=0.1)
    assert named(replace(alone, wait_seconds=0.5)) == ()  # a quarter of the target


OVERLOADED = {"requests": 6.0, "token_seconds": 0.78e-4, "waiting": 20.0, "wait_seconds": 3.0}


def test_a_fully_busy_pool_with_a_growing_queue_has_too_much_demand() -> None:
    lines = tuple(changed(line, **OVERLOADED, slowness=1.0) for line in PREFILL)

    (found, *_) = named(*lines, *DECODE)

    assert (found.cause, engines(found)) == (Cause.DEMAND, [])


def test_a_cache_filled_by_more_requests_than_the_pool_can_serve_is_no_cause() -> None:
    full = {**OVERLOADED, "requests": 2.6, "token_seconds": 1.8e-4, "kv_usage": 0.95}
    mixed = [replace(line, role="mixed", then=full) for line in PREFILL]

    (found,) = named(*mixed, onset_seconds=540.0)

    assert found.cause is Cause.DEMAND


@pytest.mark.parametrize(("requests", "found"), [(2.3, []), (3.0, [Cause.DEMAND])])
def test_load_has_grown_only_if_more_requests_came_than_chance_brings(
    requests: float, found: list[Cause]
) -> None:
    """138 requests in half a minute instead of 120 are chance, however regularly they came."""
    busy = {"requests": requests, "token_seconds": 4.7e-4 / requests, "waiting": 2.0}
    lines = [replace(line, then={**busy, "wait_seconds": 1.5}) for line in PREFILL[:2]]

    assert causes(*lines, *DECODE, onset_seconds=500.0) == found


def test_a_pool_with_more_load_but_idle_time_has_no_bottleneck() -> None:
    lines = tuple(replace(line, then={"requests": 3.0, "wait_seconds": 0.5}) for line in PREFILL)

    assert causes(*lines, *DECODE) == []


def test_steps_kept_small_while_requests_wait_are_underfilled() -> None:
    (found,) = named(
        *one_of_three(step_tokens=250.0, step_limit=256.0, waiting=8.0, token_seconds=2.4e-4)
    )

    assert (found.cause, engines(found)) == (Cause.UNDERFILLED, ["p0"])
    assert found.remedy.kind is RemedyKind.SET_BATCHED_TOKENS
    assert found.remedy.value is not None
    assert found.remedy.value > 256


def test_small_steps_without_waiting_requests_are_no_cause() -> None:
    small = replace(PREFILL[0], then={"step_tokens": 250.0, "step_limit": 256.0})

    assert causes(small, *PREFILL[1:], *DECODE) == []


def test_a_reached_request_limit_with_room_in_cache_and_steps_is_underfilled() -> None:
    mixed = [replace(line, role="mixed", mixed_slowness=1.0) for line in PREFILL]
    mixed[0] = changed(mixed[0], running=4.0, batch_limit=4.0, waiting=9.0)

    (found,) = named(*mixed)

    assert (found.cause, found.remedy.kind) == (Cause.UNDERFILLED, RemedyKind.SET_SEQS)


def test_huge_steps_in_which_requests_wait_for_each_other_are_overfilled() -> None:
    (found,) = named(*one_of_three(step_limit=65_536.0, stage_seconds=2.4, wait_seconds=2.6))

    assert (found.cause, engines(found)) == (Cause.OVERFILLED, ["p0"])


def test_a_raised_step_limit_is_a_cause_from_half_the_least_cost_on() -> None:
    """It is reported, and the bursts that wait for each other in its steps are yet to come."""
    lines = one_of_three(step_limit=65_536.0, stage_seconds=1.8, wait_seconds=0.5)

    def found(ttft_seconds: float) -> list[Cause]:
        (of_model,), _ = diagnose(
            WindowMaker().make(lines), replace(TARGETS, ttft_seconds=ttft_seconds)
        )
        return [each.cause for each in of_model.findings]

    # It costs 0.19 s.
    assert found(0.22 / 0.05) == [Cause.OVERFILLED]
    assert found(0.42 / 0.05) == []


def test_a_raised_step_limit_without_effect_is_no_cause() -> None:
    larger = replace(PREFILL[0], then={"step_limit": 65_536.0})

    assert causes(larger, *PREFILL[1:], *DECODE) == []


def test_a_full_cache_with_waiting_requests_is_found() -> None:
    mixed = [replace(line, role="mixed", mixed_slowness=1.0) for line in PREFILL]
    mixed[2] = changed(mixed[2], kv_usage=0.97, waiting=12.0, preemptions=0.5)

    (found,) = named(*mixed)

    assert (found.cause, engines(found)) == (Cause.KV_FULL, ["p2"])


def test_a_full_cache_without_waiting_requests_is_no_cause() -> None:
    mixed = [replace(line, role="mixed", mixed_slowness=1.0) for line in PREFILL]
    mixed[2] = replace(mixed[2], then={"kv_usage": 0.97})

    assert causes(*mixed) == []


def test_slow_mixed_steps_beside_normal_pure_ones_are_interference() -> None:
    mixed = [replace(line, role="mixed", mixed_slowness=1.0) for line in PREFILL]
    mixed[0] = changed(mixed[0], slowness=2.0)

    (found,) = named(*mixed)

    assert (found.cause, engines(found)) == (Cause.INTERFERENCE, ["p0"])


def test_kv_that_takes_longer_to_arrive_is_a_slow_transfer() -> None:
    lines = (*PREFILL, changed(DECODE[0], transfer_seconds=1.4), DECODE[1])

    (found,) = named(*lines)

    assert (found.cause, engines(found)) == (Cause.KV_TRANSFER, ["d0"])


def test_failing_kv_transfers_are_found_with_their_share() -> None:
    lines = tuple(changed(line, transfers=1.5, transfer_failures=1.5) for line in DECODE)

    (found,) = named(*PREFILL, *lines)

    assert (found.cause, engines(found)) == (Cause.KV_TRANSFER, [])
    assert found.evidence[0].value == pytest.approx(0.5, abs=0.05)


def test_slow_transfers_are_attributed_to_the_prefill_engine_with_unfetched_kv() -> None:
    slow = tuple(changed(line, transfer_seconds=0.7) for line in DECODE)
    sender = replace(PREFILL[1], then={"kv_usage": 0.7})

    (found,) = named(PREFILL[0], sender, PREFILL[2], *slow)

    assert (found.cause, engines(found)) == (Cause.KV_TRANSFER, ["p1"])


def test_full_decode_engines_are_decode_back_pressure() -> None:
    lines = tuple(changed(line, waiting=9.0, running=256.0, kv_usage=0.6) for line in DECODE)

    (found,) = named(*PREFILL, *lines)

    assert (found.cause, engines(found)) == (Cause.DECODE_BACK_PRESSURE, [])


def test_prefill_engines_that_cannot_transfer_their_kv_are_not_named() -> None:
    prefill = tuple(changed(line, kv_usage=0.96, waiting=7.0) for line in PREFILL)
    decode = tuple(changed(line, waiting=9.0, running=256.0, kv_usage=0.6) for line in DECODE)

    assert causes(*prefill, *decode) == [Cause.DECODE_BACK_PRESSURE]


def test_decode_engines_that_reserve_room_for_outputs_are_preallocation() -> None:
    lines = tuple(changed(line, waiting=9.0, running=20.0, kv_usage=0.5) for line in DECODE)

    (found,) = named(*PREFILL, *lines)

    assert (found.cause, engines(found)) == (Cause.PREALLOCATION, [])


def test_a_constant_wait_before_the_engines_is_a_latency_floor() -> None:
    (found,) = named(*PREFILL, *DECODE, front_seconds=(0.003, 0.9))

    assert (found.cause, engines(found)) == (Cause.LATENCY_FLOOR, [])


def test_a_varying_wait_before_the_engines_is_a_router_limit() -> None:
    (found,) = named(*PREFILL, *DECODE, front_seconds=(0.003, 1.2), front_noise=0.4)

    assert found.cause is Cause.ROUTER_LIMIT


def test_without_a_frontend_the_missing_evidence_is_named() -> None:
    (found,), _ = diagnose(WindowMaker().make((*PREFILL, *DECODE)), TARGETS)

    assert any("frontend" in each for each in found.missing)


def test_two_causes_are_ranked_by_cost() -> None:
    lines = (
        changed(PREFILL[0], slowness=2.0, wait_seconds=1.0),
        changed(PREFILL[1], cached_share=0.0, wait_seconds=2.4),
        PREFILL[2],
        *DECODE,
    )

    assert causes(*lines) == [Cause.CACHE_COLLAPSE, Cause.SLOW_GPU]


def test_the_parts_of_a_wait_add_up_to_it() -> None:
    window = WindowMaker(front_seconds=(0.1, 0.1)).make(one_of_three(slowness=2.0))

    (found,), _ = diagnose(window, TARGETS)

    parts = {each.engine.engine if each.engine else "router": each for each in found.parts}
    assert parts.keys() == {"router", "p0", "p1", "p2", "d0", "d1"}
    assert sum(seconds for _, seconds in parts["p0"].observed_seconds) == pytest.approx(
        1.6, rel=0.1
    )
    assert sum(seconds for _, seconds in parts["p0"].expected_seconds) == pytest.approx(
        0.4, rel=0.1
    )
    assert [part for part, _ in parts["d0"].observed_seconds] == [
        TtftPart.KV_TRANSFER,
        TtftPart.FIRST_DECODE,
    ]


def test_decode_engines_slow_for_one_reason_are_one_finding() -> None:
    third = replace(DECODE[0], name="d2")
    slow = [
        replace(line, then={"slowness": 2.5, "wait_seconds": 1.2, "foreign_sm": 0.3})
        for line in (third, DECODE[0])
    ]

    (found,) = named(*PREFILL, *slow, DECODE[1])

    assert (found.cause, engines(found)) == (Cause.STRANGER, ["d0", "d2"])
    assert found.remedy.kind is RemedyKind.MOVE_WORKER


def test_slow_steps_of_a_decode_engine_have_the_alternative_of_their_evidence() -> None:
    slow = replace(DECODE[0], then={"slowness": 2.5, "wait_seconds": 1.2, "foreign_sm": None})
    unknown = replace(slow, foreign_sm=None)

    (found,) = named(*PREFILL, unknown, DECODE[1])

    assert found.cause is Cause.SLOW_GPU
    assert found.alternative is not None
    assert found.alternative.cause is Cause.STRANGER


def test_engines_with_small_steps_or_few_slots_are_named_once() -> None:
    steps = changed(PREFILL[0], step_limit=256.0, step_tokens=250.0, waiting=6.0)
    slots = changed(PREFILL[1], batch_limit=2.0, running=2.0, waiting=6.0)

    found = named(steps, slots, PREFILL[2], *DECODE)

    assert [(each.cause, engines(each)) for each in found] == [
        (Cause.UNDERFILLED, ["p0"]),
        (Cause.UNDERFILLED, ["p1"]),
    ]
