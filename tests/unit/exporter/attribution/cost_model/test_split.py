from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_exporter.attribution.cost_model.samples import Proxies, StepWork
from disagg_exporter.attribution.cost_model.split import StepSplit, token_share
from disagg_exporter.inside_engine.disagg_steps import wire
from disagg_exporter.model import Phase, Split, Step
from disagg_exporter.steps.rows import kind_of, rows_of
from support.accounting import NodeAccounting, StepReporter, ns
from support.single_steps import divide, preview, read


def _step(**counts: object) -> Step:
    return Step(0, 0, 1, **counts)  # type: ignore[arg-type]


def _read(proxies: Proxies, step: Step) -> StepWork:
    return read(proxies, step, kind_of(step))


def _seconds(prefill: int, decode: int) -> float:
    return 0.005 + 1e-4 * prefill + 2e-4 * decode


def _teach(split: StepSplit, count: int = 1500, seed: int = 1) -> None:
    """Let it see an engine where a prompt token costs half of a next token."""
    rng = random.Random(seed)
    for _ in range(count):
        prefill, decode = rng.choice([0, rng.randint(20, 400)]), rng.randint(1, 60)
        divide(split, *_record(prefill, decode, kv=rng.random()))


def _record(prefill: int, decode: int, kv: float = 0.2, **more: object) -> tuple[Step, int, int]:
    step = _step(
        context_requests=int(prefill > 0),
        context_tokens=prefill,
        computed_tokens=prefill,
        generation_requests=decode,
        generation_tokens=decode,
        kv_usage_ratio=kv,
        **more,
    )
    return step, kind_of(step), ns(_seconds(prefill, decode))


def test_chunks_of_a_prompt_attend_to_the_chunks_before_them() -> None:
    """Chunked prefill: the context of a chunk is what was computed before it."""
    proxies = Proxies()
    chunk = _step(context_requests=1, context_tokens=100)

    first, second = _read(proxies, chunk), _read(proxies, chunk)
    last = _read(proxies, chunk._replace(computed_tokens=300))
    fresh = _read(proxies, chunk._replace(computed_tokens=100))

    own = 100 * 101 / 2
    assert [w.prefill_attended for w in (first, second, last, fresh)] == [
        own,
        own + 100 * 100,
        own + 100 * 200,
        own,
    ]


def test_an_aborted_or_preempted_prompt_is_not_continued() -> None:
    """Its end is not reported: only a step without a prompt shows that it is gone."""
    proxies = Proxies()
    chunk = _step(context_requests=1, context_tokens=100)
    first = _read(proxies, chunk)
    _read(proxies, _step(generation_requests=4, generation_tokens=4))

    assert _read(proxies, chunk) == first


def test_a_prefix_cache_hit_is_context_and_not_work() -> None:
    step = _step(context_requests=1, context_tokens=10, computed_tokens=10, cached_tokens=500)

    work = _read(Proxies(), step)

    assert work.prefill_tokens == 10
    assert work.prefill_attended == 10 * 500 + 55


def test_a_transferred_request_decodes_in_its_first_step() -> None:
    step = _step(context_requests=2, context_tokens=2, external_tokens=90, generation_requests=3)

    work = _read(Proxies(), step)

    assert (work.prefill_tokens, work.decode_requests) == (0, 5)


def test_decode_reads_the_cache_as_it_was_when_the_step_began() -> None:
    proxies = Proxies()
    decode = _step(generation_requests=4, generation_tokens=4, kv_usage_ratio=0.25)
    _read(proxies, decode)

    assert _read(proxies, decode._replace(kv_usage_ratio=0.5)).decode_kv == 0.25
    assert _read(proxies, decode).decode_kv == 0.5


def test_missing_records_end_the_tracking_of_a_prompt() -> None:
    proxies = Proxies()
    chunk = _step(context_requests=1, context_tokens=100)
    first = _read(proxies, chunk)
    proxies.restart()

    assert _read(proxies, chunk) == first


def test_a_step_is_divided_by_tokens_until_the_model_is_trusted() -> None:
    split = StepSplit()
    step, kind, length_ns = _record(300, 20)

    before = divide(split, step, kind, length_ns)
    _teach(split)

    assert before == token_share(step.context_tokens, step.generation_tokens)
    assert divide(split, step, kind, length_ns) == pytest.approx(0.03 / 0.034, abs=0.03)
    assert preview(split, step, kind) == pytest.approx(0.03 / 0.034, abs=0.03)


def test_recomputation_after_preemption_does_not_bias_the_costs() -> None:
    """VLLM counts recomputed tokens as generated: such a step is skipped."""
    split = StepSplit()
    _teach(split)
    asked = _record(300, 20)
    before, seen = divide(split, *asked), split.state.steps

    for _ in range(50):
        divide(split, *_record(0, 20, preemptions=1))
        step = _step(generation_requests=20, generation_tokens=820)
        divide(split, step, wire.GENERATION, ns(0.09))

    assert split.state.steps == seen + 50
    assert divide(split, *asked) == pytest.approx(before, abs=0.01)


def test_speculative_decoding_is_priced_per_request() -> None:
    """More tokens than requests: the model counts requests and learns their observed price."""
    split, rng = StepSplit(), random.Random(3)

    def record(prefill: int, decode: int) -> tuple[Step, int, int]:
        step, kind, length_ns = _record(prefill, decode, kv=rng.random())
        return step._replace(generation_tokens=4 * decode), kind, length_ns

    for _ in range(1500):
        divide(split, *record(rng.choice([0, rng.randint(20, 400)]), rng.randint(1, 60)))

    assert divide(split, *record(300, 20)) == pytest.approx(0.03 / 0.034, abs=0.03)
    assert token_share(300, 80) < 0.8


def test_a_record_of_several_steps_is_not_learned_from() -> None:
    split = StepSplit()
    _teach(split)
    before = split.state

    divide(split, *_record(0, 20), single=False)

    assert split.state == before


def test_a_change_of_kv_unit_resets_the_costs() -> None:
    """A switch from a plugin's records (share of the cache) to FPM's (tokens)."""
    split = StepSplit()
    _teach(split)
    step, kind, length_ns = _record(300, 20)
    told = step._replace(decode_kv_tokens=9000)

    divide(split, told, kind, length_ns)
    divide(
        split, step._replace(generation_requests=0, generation_tokens=0), wire.CONTEXT, length_ns
    )

    assert split.state.steps == 2
    assert divide(split, told, kind, length_ns) == token_share(
        step.context_tokens, step.generation_tokens
    )


def test_dummy_steps_and_encoder_steps_are_not_learned_from() -> None:
    split = StepSplit()
    divide(split, _step(dummy=True), wire.DUMMY_STEP, ns(1))
    divide(split, *_record(100, 0, encoder_inputs=3))

    assert split.state.steps == 0


MIXED = st.lists(
    st.tuples(st.integers(0, 500), st.integers(0, 50), st.floats(0.01, 0.2)),
    min_size=40,
    max_size=80,
)


@settings(max_examples=30, deadline=None)
@given(MIXED, st.integers(0, 2**16))
def test_the_order_of_arrival_does_not_change_what_is_learned(
    told: list[tuple[int, int, float]], seed: int
) -> None:
    """Invariant e: records in any order within the packing delay, the model at work."""
    teller, t, steps = StepReporter(), 1.0, []
    for prefill, decode, length in told:
        t += length / 4
        counts = {"context_requests": int(prefill > 0), "context_tokens": prefill}
        more = {"generation_requests": decode, "generation_tokens": decode}
        steps.append(teller.step(t, length / 5, **counts, **more, computed_tokens=prefill))
    shuffled = list(steps)
    random.Random(seed).shuffle(shuffled)

    def booked(order: list[Step]) -> tuple[dict[Phase, float], object]:
        books = NodeAccounting()
        books.engine()
        books.beat(StepReporter(), 0)
        for step in order:
            books.step(teller, step, now=t)
            books.advance(t)
        books.beat(teller, t + 10)
        books.beat(teller, t + 20)
        books.advance(t + 20)
        account = books.ledger.engine_accounts(ns(t + 20))[0]
        return books.engine_seconds(t + 20), (account.residual_ratio, account.fitted_steps)

    assert booked(shuffled) == booked(steps)


def test_the_account_says_how_mixed_steps_are_divided() -> None:
    books, teller, rng = NodeAccounting(), StepReporter(), random.Random(1)
    books.engine()
    books.beat(teller, 0)
    splits = [books.ledger.engine_accounts(0)[0].split]
    t, true = 0.0, 0.0
    for number in range(1200):
        prefill, decode = rng.choice([0, rng.randint(20, 400)]), rng.randint(1, 60)
        length = _seconds(prefill, decode)
        t += length + 0.001
        step, _, _ = _record(prefill, decode, kv=rng.random())
        counts = {
            name: getattr(step, name)
            for name in ("kv_usage_ratio", "context_requests", "context_tokens", "computed_tokens")
        }
        books.step(
            teller,
            teller.step(t, length, generation_requests=decode, generation_tokens=decode, **counts),
        )
        if number % 20 == 0:
            books.advance(t)
        true += length * 1e-4 * prefill / (1e-4 * prefill + 2e-4 * decode)
    splits.append(books.ledger.engine_accounts(ns(t))[0].split)
    books.beat(teller, t + 10)
    books.advance(t + 10)

    account = books.ledger.engine_accounts(ns(t + 10))[0]
    assert splits == [Split.TOKENS, Split.MODEL]
    assert (account.residual_ratio or 1) < 0.1
    assert account.fitted_steps > 1000
    assert books.engine_seconds(t + 10)[Phase.PREFILL] == pytest.approx(true, rel=0.03)
    assert books.unbalanced() == []


def test_a_batch_of_mixed_kv_units_is_learned_like_record_by_record() -> None:
    """Costs of a KV cache reported in tokens are not those of one reported as a ratio."""
    told = (None, 700, None)
    steps = [
        Step(n, 1, n, generation_requests=1, generation_tokens=1, decode_kv_tokens=told[n % 3])
        for n in range(6)
    ]
    alone, together = StepSplit(), StepSplit()
    lengths_ns = np.full(6, 10**7)

    for step in steps:
        divide(alone, step, wire.GENERATION, 10**7)
    together.divide(rows_of(steps), np.full(6, wire.GENERATION), lengths_ns, np.ones(6, np.bool_))

    assert together.state == alone.state


def _mixing(count: int, seed: int = 3) -> list[tuple[Step, int, int]]:
    """Steps whose mixture costs a tenth of what both parts take."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        prefill, decode = rng.choice([0, rng.randint(20, 400)]), rng.randint(1, 60)
        record, kind, length_ns = _record(prefill, decode, kv=decode / 100)
        found.append((record, kind, round(length_ns * (1.1 if prefill else 1))))
    return found


def test_interference_is_counted_over_all_steps_once_its_cost_is_known() -> None:
    """No step before that; then every step, pure ones too, so that the ratio is always valid."""
    split, unknown_seconds, known_seconds = StepSplit(), 0.0, 0.0

    for record, kind, length_ns in _mixing(4000):
        before = split.state.interference_error_ratio is not None
        divide(split, record, kind, length_ns)
        known_seconds += length_ns / 1e9 * before
        unknown_seconds += length_ns / 1e9 * (not before)

    assert unknown_seconds > 0
    assert known_seconds > 0
    assert split.known_seconds == pytest.approx(known_seconds, rel=0.02)


def test_interference_does_not_depend_on_how_records_are_batched() -> None:
    steps = _mixing(3000)
    at_once, one_by_one = StepSplit(), StepSplit()
    for split, size in ((one_by_one, 1), (at_once, 100)):
        for first in range(0, len(steps), size):
            records, kinds, lengths = zip(*steps[first : first + size], strict=True)
            split.divide(
                rows_of(list(records)), np.array(kinds), np.array(lengths), np.ones(size, bool)
            )

    assert at_once.known_seconds > 0
    assert at_once.known_seconds == pytest.approx(one_by_one.known_seconds, rel=0.02)
    assert at_once.loss_seconds == pytest.approx(one_by_one.loss_seconds)
