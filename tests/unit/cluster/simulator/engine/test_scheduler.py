from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.simulator.engine.batch import (
    Outcome,
    Prefix,
    SchedulerLimits,
    SchedulerState,
    Sequence,
    StepBatch,
    apply,
)
from disagg_cluster.simulator.engine.scheduler import Scheduler
from disagg_exporter.inside_engine.disagg_steps import wire
from support.simulations import kind_of_step

MS = 1_000_000


@dataclass(slots=True)
class Bench:
    """A scheduler that is stepped manually, a millisecond per step."""

    scheduler: Scheduler
    now_ns: int = 0

    def step(self) -> Outcome | None:
        batch = self.scheduler.schedule(self.now_ns)
        return None if batch is None else self.finish(batch)

    def finish(self, batch: StepBatch, count: int = 1) -> Outcome:
        self.now_ns += count * MS
        outcome = apply(
            batch,
            self.scheduler.cache,
            ended_ns=self.now_ns,
            count=count,
            length_ns=MS,
            period_ns=MS,
        )
        self.scheduler.end(outcome.finished)
        return outcome

    def run(self) -> list[Outcome]:
        """Step until there is nothing to do."""
        outcomes = []
        while (outcome := self.step()) is not None:
            outcomes.append(outcome)
        return outcomes


def bench(blocks: int = 1000, **limits: int) -> Bench:
    return Bench(Scheduler(SchedulerLimits(kv_blocks=blocks, **limits)))


def asked(number: int, prompt: int, output: int, **more: object) -> Sequence:
    return Sequence(number, prompt, output, 0, **more)  # type: ignore[arg-type]


def test_a_long_prompt_is_chunked_and_reported_whole_at_its_end() -> None:
    engine = bench(step_tokens=1000)
    engine.scheduler.submit(asked(1, 2500, 2))

    steps = engine.run()

    assert [step.context_tokens for step in steps] == [1000, 1000, 500, 0]
    assert [step.computed_tokens for step in steps] == [0, 0, 2500, 0]
    assert [step.generation_tokens for step in steps] == [0, 0, 0, 1]


def test_chunks_share_one_budget_with_decoding() -> None:
    engine = bench(step_tokens=100)
    engine.scheduler.submit(asked(1, 50, 9))
    engine.step()
    engine.scheduler.submit(asked(2, 250, 1))

    steps = engine.run()

    assert [(step.context_tokens, step.generation_tokens) for step in steps[:3]] == [
        (99, 1),
        (99, 1),
        (52, 1),
    ]
    assert kind_of_step(steps[0]) == wire.MIXED


def test_a_budget_of_one_token_does_not_make_a_chunk_an_answer() -> None:
    engine = bench(step_tokens=1)
    engine.scheduler.submit(asked(1, 3, 1))

    steps = engine.run()

    assert [step.context_tokens for step in steps] == [1, 1, 1]
    assert [len(step.started) for step in steps] == [0, 0, 1]


def test_the_number_of_running_requests_is_limited() -> None:
    engine = bench(running_requests=2)
    for number in range(3):
        engine.scheduler.submit(asked(number, 10, 3))

    first = engine.step()

    assert first is not None
    assert first.context_requests == 2
    assert (engine.scheduler.state().running, engine.scheduler.state().waiting) == (2, 1)


def test_without_room_the_last_request_is_preempted_and_recomputed() -> None:
    """Two prompts of two blocks in five: one is preempted when both need a third block."""
    engine = bench(blocks=5)
    first, second = asked(1, 32, 20), asked(2, 32, 20)
    engine.scheduler.submit(first)
    engine.scheduler.submit(second)

    steps = engine.run()

    assert (first.preemptions, second.preemptions) == (0, 1)
    assert sum(step.preempted for step in steps) == 1
    assert (first.written, second.written) == (20, 20)
    assert engine.scheduler.cache.used_blocks == 0


def test_a_preempting_step_admits_no_request() -> None:
    """As in vLLM; the preempted one has lost all, though a chunk of it would fit at once."""
    engine = bench(blocks=5, step_tokens=10)
    first, second = asked(1, 32, 20), asked(2, 32, 20)
    engine.scheduler.submit(first)
    engine.scheduler.submit(second)
    while not (step := engine.step()).preempted:  # type: ignore[union-attr]
        assert engine.now_ns < 1000 * MS

    assert (step.generation_requests, step.generation_tokens, step.context_tokens) == (1, 1, 0)
    assert (second.computed, second.holding.own_blocks) == (0, 0)
    assert engine.scheduler.state().waiting == 1


def test_recomputation_after_output_is_reported_as_generation() -> None:
    """As vLLM reports it: context is only what has generated nothing yet."""
    engine = bench(blocks=5)
    for number in (1, 2):
        engine.scheduler.submit(asked(number, 32, 20))

    again = [step for step in engine.run() if step.generation_tokens > step.generation_requests]

    assert [(step.generation_requests, step.computed_tokens) for step in again] == [(1, 0)]
    assert 32 < again[0].generation_tokens <= 52


def test_a_known_prefix_is_not_computed_again() -> None:
    engine = bench()
    prefix = Prefix(1, 100)
    engine.scheduler.submit(asked(1, 200, 1, prefix=prefix))
    engine.run()
    engine.scheduler.submit(asked(2, 150, 1, prefix=prefix))

    (step,) = engine.run()

    assert (step.cached_tokens, step.computed_tokens, step.context_tokens) == (96, 54, 54)


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    engine = bench()
    prefix = Prefix(1, 64)
    engine.scheduler.submit(asked(1, 65, 1, prefix=prefix))
    engine.run()
    engine.scheduler.submit(asked(2, 64, 1, prefix=prefix))

    (step,) = engine.run()

    assert (step.cached_tokens, step.context_tokens) == (48, 16)


def test_without_prefix_caching_everything_is_computed() -> None:
    engine = Bench(Scheduler(SchedulerLimits(kv_blocks=100), prefix_caching=False))
    for number in (1, 2):
        engine.scheduler.submit(asked(number, 65, 1, prefix=Prefix(1, 64)))
        (step,) = engine.run()

    assert (step.cached_tokens, step.computed_tokens) == (0, 65)


def test_a_remote_prompt_waits_for_its_kv_and_then_computes_one_token() -> None:
    engine = bench()
    engine.scheduler.submit(asked(1, 100, 3, remote_prompt=True))

    assert engine.step() is None
    assert [sequence.number for sequence in engine.scheduler.to_fetch] == [1]
    assert engine.scheduler.state().deferred == 1
    engine.scheduler.receive(1)
    first, *rest = engine.run()
    assert (first.context_requests, first.context_tokens) == (1, 1)
    assert (first.computed_tokens, first.external_tokens) == (0, 100)
    assert kind_of_step(first) == wire.GENERATION
    assert [step.generation_tokens for step in rest] == [1, 1]


def test_a_remote_prompt_fetches_only_uncached_parts() -> None:
    engine = bench()
    prefix = Prefix(1, 64)
    for number in (1, 2):
        engine.scheduler.submit(asked(number, 100, 1, remote_prompt=True, prefix=prefix))
        engine.step()
        engine.scheduler.receive(number)
        (step,) = engine.run()

    assert (step.cached_tokens, step.external_tokens, step.computed_tokens) == (64, 36, 0)


def test_a_prompt_whose_kv_does_not_arrive_is_computed_here() -> None:
    engine = bench()
    engine.scheduler.submit(asked(1, 100, 1, remote_prompt=True))
    engine.step()
    engine.scheduler.compute_locally(1)

    (step,) = engine.run()

    assert (step.computed_tokens, step.external_tokens, step.context_tokens) == (100, 0, 100)
    assert kind_of_step(step) == wire.CONTEXT


def test_kv_kept_for_another_engine_stays_until_released() -> None:
    engine = bench(blocks=100)
    engine.scheduler.submit(asked(1, 160, 1, kept=True))
    engine.run()

    assert engine.scheduler.state().running == 0
    assert engine.scheduler.cache.used_blocks == 10
    assert engine.scheduler.release_kv(1)
    assert engine.scheduler.cache.used_blocks == 0
    assert not engine.scheduler.release_kv(1)


def test_a_request_larger_than_the_cache_does_not_fit() -> None:
    scheduler = bench(blocks=10).scheduler

    assert scheduler.fits(asked(1, 150, 10))
    assert not scheduler.fits(asked(1, 150, 11))


sizes = st.lists(
    st.tuples(st.integers(1, 120), st.integers(1, 40), st.booleans(), st.integers(0, 3)),
    min_size=1,
    max_size=12,
)


@given(sizes, st.integers(11, 40), st.integers(1, 200), st.integers(1, 8))
def test_every_request_is_completed_whatever_the_limits(
    requests: list[tuple[int, int, bool, int]], blocks: int, step_tokens: int, running: int
) -> None:
    """Nothing starves, nobody is over budget, and in the end the cache is empty."""
    engine = bench(blocks, step_tokens=step_tokens, running_requests=running)
    scheduler = engine.scheduler
    sequences = [
        asked(number, prompt, output, remote_prompt=remote, prefix=Prefix(identity, 48))
        for number, (prompt, output, remote, identity) in enumerate(requests)
    ]
    for sequence in sequences:
        scheduler.submit(sequence)
    for _ in range(10_000):
        for sequence in scheduler.to_fetch:
            scheduler.receive(sequence.number)
        scheduler.to_fetch = []
        step = engine.step()
        if step is None and not scheduler.to_fetch:
            break
        if step is not None:
            assert 0 < step.context_tokens + step.generation_tokens <= step_tokens

    assert [sequence.left for sequence in sequences] == [0] * len(sequences)
    assert scheduler.cache.used_blocks == 0


def test_an_aborted_request_leaves_the_engine_wherever_it_is() -> None:
    engine = bench(running_requests=1)
    running, travelling = asked(1, 10, 5), asked(2, 10, 5, remote_prompt=True)
    waiting, submitted = asked(3, 10, 5), asked(4, 10, 5)
    engine.scheduler.submit(travelling)
    engine.step()
    for sequence in (running, waiting):
        engine.scheduler.submit(sequence)
    engine.step()
    engine.scheduler.submit(submitted)

    for sequence in (running, travelling, waiting, submitted):
        engine.scheduler.abort(sequence)

    assert engine.scheduler.state() == SchedulerState()
    assert engine.step() is None


def test_a_request_aborted_during_its_step_does_not_come_back() -> None:
    engine = bench()
    sequence = asked(1, 10, 1, prefix=Prefix(1, 8))
    engine.scheduler.submit(sequence)
    batch = engine.scheduler.schedule(0)
    assert batch is not None

    engine.scheduler.abort(sequence)
    outcome = engine.finish(batch)

    assert (outcome.context_tokens, outcome.finished) == (10, [])
    assert engine.scheduler.state() == SchedulerState()
