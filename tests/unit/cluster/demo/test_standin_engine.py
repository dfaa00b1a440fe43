"""The stand-in's costs on the simulator's engine, a step at a time as in real time."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.demo.standin import LIMITS, StandinCosts
from disagg_cluster.simulator.engine.batch import Outcome, SchedulerLimits, Sequence
from disagg_cluster.simulator.engine.engine import Engine
from disagg_cluster.simulator.engine.scheduler import Scheduler
from disagg_exporter.inside_engine.disagg_steps import wire
from support.simulations import kind_of_step

MS = 1_000_000
COSTS = StandinCosts(
    step_base_seconds=0.010,
    prefill_token_seconds=0.000_1,
    decode_request_seconds=0.001,
    kv_thousand_tokens_seconds=0.002,
    transfer_thousand_tokens_seconds=0.050,
)


def standin(limits: SchedulerLimits = LIMITS) -> Engine:
    scheduler = Scheduler(limits, prefix_caching=False)
    return Engine(scheduler, COSTS, gap_seconds=0.0, longest_run=1)


def run(engine: Engine, *requests: Sequence) -> list[Outcome]:
    """Step until there is nothing left to do; the KV of remote prompts arrives at once."""
    for request in requests:
        engine.scheduler.submit(request)
    steps: list[Outcome] = []
    now_ns = 0
    while True:
        under_way = engine.begin(now_ns)
        fetched = [sequence.number for sequence in engine.scheduler.to_fetch]
        engine.scheduler.to_fetch.clear()
        for number in fetched:
            engine.scheduler.receive(number)
        if under_way is not None:
            now_ns = under_way.end_ns(1)
            outcome = engine.finish(now_ns)
            assert outcome is not None
            steps.append(outcome)
        elif not fetched:
            return steps


def test_a_step_costs_the_plain_sum_of_its_work() -> None:
    prefill, decode = run(standin(), Sequence(1, 1000, 2, 0))

    assert prefill.elapsed_ns == 10 * MS + 100 * MS
    assert decode.elapsed_ns == 10 * MS + 1 * MS + round(1001 * 0.002 * MS)


def test_kv_travels_in_proportion_to_its_tokens() -> None:
    assert COSTS.transfer_seconds(800) == 0.04


def test_a_prefill_engine_asked_for_one_token_never_decodes() -> None:
    steps = run(standin(), *(Sequence(number, 700, 1, 0) for number in range(3)))

    assert {kind_of_step(step) for step in steps} == {wire.CONTEXT}
    assert sum(step.generation_tokens for step in steps) == 0
    assert sum(len(step.started) for step in steps) == 3


def test_a_long_prompt_is_cut_at_the_budget_of_a_step() -> None:
    steps = run(standin(), Sequence(1, 5000, 1, 0))

    assert [step.context_tokens for step in steps] == [2048, 2048, 904]
    assert [step.computed_tokens for step in steps] == [0, 0, 5000]


def test_a_received_prompt_is_one_context_token_and_counts_as_decode() -> None:
    """As on a real NIXL decode engine: 1 context token, nothing computed, all external."""
    first, *rest = run(standin(), Sequence(1, 800, 3, 0, remote_prompt=True))

    assert (first.context_requests, first.context_tokens, first.generation_tokens) == (1, 1, 0)
    assert (first.computed_tokens, first.external_tokens) == (0, 800)
    assert [(step.context_tokens, step.generation_tokens) for step in rest] == [(0, 1), (0, 1)]
    assert {kind_of_step(step) for step in (first, *rest)} == {wire.GENERATION}


requests = st.tuples(st.integers(1, 6000), st.integers(1, 12), st.booleans())


@given(st.lists(requests, max_size=12), st.integers(16, 4096), st.integers(1, 6))
def test_every_token_is_computed_or_received_and_generated_exactly_once(
    load: list[tuple[int, int, bool]], step_tokens: int, running_requests: int
) -> None:
    limits = SchedulerLimits(5000, running_requests=running_requests, step_tokens=step_tokens)
    sequences = [
        Sequence(number, prompt, output, 0, remote_prompt=remote)
        for number, (prompt, output, remote) in enumerate(load)
    ]

    steps = run(standin(limits), *sequences)

    local = [prompt for prompt, _, remote in load if not remote]
    remote = [prompt for prompt, _, remote in load if remote]
    assert sum(step.computed_tokens for step in steps) == sum(local)
    assert sum(step.external_tokens for step in steps) == sum(remote)
    assert sum(step.context_tokens for step in steps) == sum(local) + len(remote)
    assert [sequence.written for sequence in sequences] == [output for _, output, _ in load]
    assert all(step.context_tokens + step.generation_tokens <= step_tokens for step in steps)
    assert all(a.ended_ns <= b.ended_ns - b.length_ns for a, b in pairwise(steps))
