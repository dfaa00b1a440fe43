"""The step model of the stand-in engine, in virtual time."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_cluster.demo.costs import Costs, Limits
from disagg_cluster.demo.engine import Engine
from disagg_cluster.demo.steps import Request, StepOutcome
from disagg_exporter.inside_engine.disagg_steps import wire

MS = 1_000_000
COSTS = Costs(
    step_base_seconds=0.010,
    prefill_token_seconds=0.000_1,
    decode_request_seconds=0.001,
    kv_thousand_tokens_seconds=0.002,
    transfer_thousand_tokens_seconds=0.050,
)


def asked(prompt: int, output: int, *, remote: bool = False, at_ns: int = 0) -> Request:
    return Request(prompt, output, at_ns, remote_prompt=remote)


def run(engine: Engine, now_ns: int = 0) -> list[StepOutcome]:
    """Step until there is nothing left to do, jumping over waits for KV."""
    steps = []
    while True:
        outcome = engine.step(now_ns)
        if outcome is not None:
            steps.append(outcome)
            now_ns = outcome.ended_ns
        elif (arrival_ns := engine.next_arrival_ns()) is not None:
            now_ns = arrival_ns
        else:
            return steps


def kind(step: StepOutcome) -> int:
    return wire.step_kind(
        context_requests=step.context_requests,
        context_tokens=step.context_tokens,
        generation_tokens=step.generation_tokens,
        computed_tokens=step.computed_tokens,
        external_tokens=step.external_tokens,
    )


def test_a_step_costs_the_plain_sum_of_its_work() -> None:
    engine = Engine(COSTS)
    engine.submit(asked(1000, 2))

    prefill, decode = run(engine)

    assert prefill.elapsed_ns == 10 * MS + 100 * MS
    assert decode.elapsed_ns == 10 * MS + 1 * MS + round(1001 * 0.002 * MS)


def test_an_engine_without_requests_takes_no_step() -> None:
    assert Engine(COSTS).step(5) is None


def test_a_prefill_engine_asked_for_one_token_never_decodes() -> None:
    engine = Engine(COSTS)
    for _ in range(3):
        engine.submit(asked(700, 1))

    steps = run(engine)

    assert {kind(step) for step in steps} == {wire.CONTEXT}
    assert sum(step.generation_tokens for step in steps) == 0
    assert sum(step.new_tokens for step in steps) == 3


def test_a_long_prompt_is_cut_into_chunks_and_told_whole_where_it_ends() -> None:
    engine = Engine(COSTS, Limits(step_tokens=2048))
    engine.submit(asked(5000, 1))

    steps = run(engine)

    assert [step.context_tokens for step in steps] == [2048, 2048, 904]
    assert [step.computed_tokens for step in steps] == [0, 0, 5000]
    assert [step.new_tokens for step in steps] == [0, 0, 1]


def test_decoding_goes_before_chunks_in_the_budget_of_a_step() -> None:
    engine = Engine(COSTS, Limits(step_tokens=100))
    engine.submit(asked(50, 9))
    first = engine.step(0)
    assert first is not None
    engine.submit(asked(500, 1, at_ns=first.ended_ns))

    second = engine.step(first.ended_ns)

    assert second is not None
    assert (second.generation_tokens, second.context_tokens) == (1, 99)
    assert kind(second) == wire.MIXED


def test_a_received_prompt_is_one_context_token_and_counts_as_decode() -> None:
    """As on a real NIXL decode engine: 1 context token, nothing computed, all external."""
    engine = Engine(COSTS)
    engine.submit(asked(800, 3, remote=True))

    first, *rest = run(engine, now_ns=0)

    assert first.begun_ns == 40 * MS
    assert (first.context_requests, first.context_tokens, first.generation_tokens) == (1, 1, 0)
    assert (first.computed_tokens, first.external_tokens, first.new_tokens) == (0, 800, 1)
    assert [(s.context_tokens, s.generation_tokens) for s in rest] == [(0, 1), (0, 1)]
    assert {kind(step) for step in (first, *rest)} == {wire.GENERATION}


def test_a_request_whose_kv_travels_is_deferred_and_not_waiting() -> None:
    engine = Engine(COSTS)
    engine.submit(asked(1000, 3, remote=True, at_ns=7))

    assert engine.step(7) is None
    assert engine.next_arrival_ns() == 7 + 50 * MS
    load = engine.load()
    assert (load.running, load.waiting, load.deferred) == (0, 0, 1)


def test_a_request_without_room_waits_until_another_ends() -> None:
    engine = Engine(COSTS, Limits(kv_tokens=1000))
    engine.submit(asked(600, 2))
    engine.submit(asked(600, 2))

    first = engine.step(0)

    assert first is not None
    load = engine.load()
    assert (load.running, load.waiting, load.kv_usage_ratio) == (1, 1, 0.601)
    assert len(run(engine, first.ended_ns)) == 3


def test_the_batch_takes_no_more_requests_than_its_limit() -> None:
    engine = Engine(COSTS, Limits(running_requests=2))
    for _ in range(3):
        engine.submit(asked(10, 5))

    engine.step(0)

    load = engine.load()
    assert (load.running, load.waiting) == (2, 1)


def test_a_request_that_could_never_fit_is_known_beforehand() -> None:
    engine = Engine(COSTS, Limits(kv_tokens=1000))

    assert engine.fits(asked(900, 100))
    assert not engine.fits(asked(900, 101))


def test_an_aborted_request_leaves_the_engine_wherever_it_is() -> None:
    engine = Engine(COSTS, Limits(running_requests=1))
    running, waiting, travelling = asked(10, 5), asked(10, 5), asked(10, 5, remote=True)
    for request in (running, waiting, travelling):
        engine.submit(request)
    engine.step(0)

    for request in (running, waiting, travelling):
        engine.abort(request)

    load = engine.load()
    assert (load.running, load.waiting, load.deferred) == (0, 0, 0)
    assert engine.step(1) is None


def test_a_request_aborted_during_its_step_does_not_come_back() -> None:
    engine = Engine(COSTS)
    request = asked(10, 5)
    engine.submit(request)
    plan = engine.begin(0)
    assert plan is not None

    engine.abort(request)
    outcome = engine.finish(plan, plan.planned_ns)

    assert outcome.finished == ()
    assert engine.load().running == 0


def test_latencies_are_measured_at_the_real_end_of_a_step() -> None:
    engine = Engine(COSTS)
    engine.submit(asked(100, 2, at_ns=0))
    plan = engine.begin(10 * MS)
    assert plan is not None
    first = engine.finish(plan, 50 * MS)
    plan = engine.begin(60 * MS)
    assert plan is not None

    second = engine.finish(plan, 90 * MS)

    assert first.first_token_seconds == (0.05,)
    assert second.inter_token_seconds == (0.04,)
    assert second.elapsed_ns == 30 * MS


requests = st.builds(
    asked,
    st.integers(1, 6000),
    st.integers(1, 12),
    remote=st.booleans(),
    at_ns=st.integers(0, 200 * MS),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(requests, max_size=12), st.integers(16, 4096), st.integers(1, 6))
def test_every_token_is_computed_received_and_written_exactly_once(
    load: list[Request], step_tokens: int, running_requests: int
) -> None:
    engine = Engine(COSTS, Limits(running_requests, step_tokens, kv_tokens=8000))
    for request in load:
        engine.submit(request)

    steps = run(engine)

    local = [r.prompt_tokens for r in load if not r.remote_prompt]
    remote = [r.prompt_tokens for r in load if r.remote_prompt]
    assert sum(s.computed_tokens for s in steps) == sum(local)
    assert sum(s.external_tokens for s in steps) == sum(remote)
    assert sum(s.context_tokens for s in steps) == sum(local) + len(remote)
    assert sum(s.new_tokens for s in steps) == sum(r.max_tokens for r in load)
    assert {r for s in steps for r in s.finished} == set(load)
    assert all(s.context_tokens + s.generation_tokens <= step_tokens for s in steps)
    assert all(a.ended_ns <= b.begun_ns for a, b in pairwise(steps))
