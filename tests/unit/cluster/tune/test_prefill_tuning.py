from __future__ import annotations

import random

import pytest

from disagg_cluster.tune.completions import UniquePrompts
from disagg_cluster.tune.prefill_prober import PrefillProber
from disagg_cluster.tune.prefill_tuning import LengthTuning, PrefillTuner, PrefillTuning
from disagg_cluster.tune.tuning_text import prefill_text
from support.probed_engines import FakeEngine, affine

PRICE = affine(1e-3, 1e-5)


def tuner(engine: FakeEngine, lengths: tuple[int, ...], largest: int = 8192) -> PrefillTuner:
    prober = PrefillProber(engine, UniquePrompts(random.Random(3)), now=lambda: engine.now)
    return PrefillTuner(prober, lengths, largest)


def tuned(engine: FakeEngine, lengths: tuple[int, ...], largest: int = 8192) -> PrefillTuning:
    return tuner(engine, lengths, largest).run(lambda _: None)


def test_max_num_batched_tokens_is_the_knee_rounded_up() -> None:
    """Rate = tokens / (1 ms + 10 us a token): nine tenths of the best at 814 tokens of 8192."""
    found = tuned(FakeEngine(PRICE), (512, 2048))

    assert found.max_num_batched_tokens in range(704, 961, 64)
    short, long = found.lengths
    assert found.concurrency(short) == 2
    assert found.concurrency(long) == 1
    assert found.ttft_seconds(short) == pytest.approx(PRICE(found.max_num_batched_tokens), rel=0.05)
    assert all(length.complete for length in found.lengths)


def test_steps_beyond_the_engines_own_limit_are_discarded() -> None:
    """A prompt that is cut into chunks looks like a large step, and is none."""
    found = tuned(FakeEngine(PRICE, step_tokens=1024), (512, 4096))

    assert all(length.probed.sizes[-1] <= 1024 for length in found.lengths)


def test_single_prompt_steps_are_timed_once_for_all_lengths() -> None:
    engine = FakeEngine(PRICE)
    tuned(engine, (4096,))
    once = len(engine.sent)
    both = FakeEngine(PRICE)

    tuned(both, (4096, 8192))

    assert len(both.sent) < 1.7 * once


def test_partial_results_are_available_after_an_interrupt() -> None:
    made = tuner(FakeEngine(PRICE), (512,))

    def interrupt(length: LengthTuning) -> None:
        if len(length.probed.probes) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.run(interrupt)

    (length,) = made.found.lengths
    assert (len(length.probed.probes), length.complete) == (2, False)
    assert made.found.max_num_batched_tokens is None


def test_an_engine_that_computes_no_two_prompts_in_one_step_is_told_so() -> None:
    """As with one request at once, or several data-parallel ranks."""
    found = tuned(FakeEngine(PRICE, requests=1), (512,))

    assert found.max_num_batched_tokens is None
    assert "No two prompts were computed in one step" in prefill_text(found)
    assert "No two prompts" not in prefill_text(tuned(FakeEngine(PRICE, step_tokens=64), (512,)))
