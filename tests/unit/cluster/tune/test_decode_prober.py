from __future__ import annotations

import random
from collections.abc import Generator, Sequence

import pytest

from disagg_cluster.tune.completions import Prompt, UniquePrompts, WrittenToken
from disagg_cluster.tune.decode_prober import STEPS, CrowdedBatch, DecodeProber
from disagg_cluster.tune.decode_tuning import ContextTuning, DecodeTuner
from disagg_cluster.tune.probed import SizeProbe
from disagg_cluster.tune.traffic_guard import LiveEngineError
from disagg_cluster.tune.tuning_text import decode_progress, decode_text
from support.probed_engines import FakeEngine, affine

PRICE = affine(0.01, 1e-4)


def prober(engine: FakeEngine, most_tokens: int | None = 4096) -> DecodeProber:
    return DecodeProber(engine, UniquePrompts(random.Random(3)), most_tokens, sleep=lambda _: None)


@pytest.mark.parametrize("batch", [1, 5, 64])
def test_steps_are_timed_while_all_requests_decode_before_the_disconnect(batch: int) -> None:
    engine = FakeEngine(PRICE, step_tokens=1024)

    probe = prober(engine).probe(batch, 256)

    assert isinstance(probe, SizeProbe)
    assert probe.seconds == pytest.approx([PRICE(batch)] * STEPS)
    assert engine.hung_up == 1


def test_an_engine_with_a_smaller_batch_limit_is_detected() -> None:
    engine = FakeEngine(PRICE, requests=16)

    assert prober(engine).probe(64, 256) == CrowdedBatch(16)
    assert engine.hung_up == 1


class FullCache(FakeEngine):
    """Room for 16 requests to begin, and to go on for 15: the last one to begin is preempted."""

    written = 0

    def complete(
        self, prompts: Sequence[Prompt], max_tokens: int, deadline_seconds: float
    ) -> Generator[WrittenToken]:
        admitted = range(min(len(prompts), 16))
        for step in range(max_tokens):
            self.now += 0.01
            for number in admitted if step == 0 or len(prompts) < 16 else admitted[:15]:
                self.written += 1
                yield WrittenToken(number, self.now, step + 1 == max_tokens)


@pytest.mark.parametrize("batch", [64, 16])
def test_a_cache_that_preempts_the_latest_request_is_full_and_not_waited_for(batch: int) -> None:
    engine = FullCache(PRICE)

    assert prober(engine).probe(batch, 2048) == CrowdedBatch(15)
    # 80 tokens are waited for where none is preempted, 1,024 more would have been asked for.
    assert engine.written < 15 * 2 * 81


def test_a_batch_that_fits_beside_a_cache_that_preempts_is_timed() -> None:
    assert isinstance(prober(FullCache(PRICE)).probe(15, 2048), SizeProbe)


def test_requests_too_short_to_overlap_are_no_batch() -> None:
    """Requests whose contexts leave little room for output end before the others begin."""
    engine = FakeEngine(PRICE, step_tokens=256)

    found = prober(engine, most_tokens=256 + 12).probe(64, 256)

    assert isinstance(found, CrowdedBatch)
    assert found.most < 64
    assert found.is_cut


def test_requests_cut_short_by_the_longest_request_say_nothing_of_what_the_engine_runs() -> None:
    """It would run 400 within the target; the 96 tokens of each let 43 overlap."""
    engine = FakeEngine(PRICE, step_tokens=2048, requests=1024)
    tuner = DecodeTuner(prober(engine, 4096), [4000], 0.05, 256)

    found = tuner.run(lambda _: None)

    (context,) = found.contexts
    assert (context.crowded_at, context.cut_at, found.max_num_seqs) == (None, 43, None)
    text = decode_text(found)
    assert "with more than 43, the first requests end before the last begin" in text
    assert "max_num_seqs" not in text


class EndingEngine(FakeEngine):
    """Ends each request after forty tokens, whatever was asked."""

    def complete(
        self, prompts: Sequence[Prompt], max_tokens: int, deadline_seconds: float
    ) -> Generator[WrittenToken]:
        return super().complete(prompts, min(max_tokens, 40), deadline_seconds)


def test_steps_of_fewer_requests_are_not_those_of_a_batch_that_an_engine_ended_early() -> None:
    """Two thirds of the 64 still generate when the last begins."""
    made = prober(EndingEngine(affine(0.01, 1e-3), step_tokens=256))

    assert isinstance(made.probe(1, 256), SizeProbe)
    found = made.probe(64, 256)

    assert isinstance(found, CrowdedBatch)
    assert found.is_cut


def test_progress_says_how_long_probes_took_and_promises_nothing_of_larger_ones() -> None:
    begun = ContextTuning(2048, 0.05, most_probes=14)

    assert decode_progress(begun, 2.44) == (
        "contexts of 2048: probe 0 of at most 14, 2.44 s each so far, batch 0-?"
    )


def test_waiting_for_running_requests_ends_with_an_error() -> None:
    engine = FakeEngine(PRICE, running=1)

    with pytest.raises(LiveEngineError, match="1 running"):
        prober(engine).probe(4, 64)


def test_nothing_is_recommended_if_the_target_is_beyond_the_largest_batch_to_time() -> None:
    """At 50 ms the engine would keep the target with 400 requests; 256 are the most to time."""
    engine = FakeEngine(PRICE, requests=1024)
    tuner = DecodeTuner(prober(engine), [128], 0.05, 256)

    found = tuner.run(lambda _: None)

    assert found.contexts[0].estimate.requests == 256
    assert found.max_num_seqs is None
    text = decode_text(found)
    assert "no batch missed 50.0 ms; more were not timed (--largest)" in text
    assert "max_num_seqs" not in text


class SmallCache(FakeEngine):
    """Holds twelve requests of long contexts at once."""

    def complete(
        self, prompts: Sequence[Prompt], max_tokens: int, deadline_seconds: float
    ) -> Generator[WrittenToken]:
        self.requests = 12 if len(prompts[0]) > 1000 else 1024
        return super().complete(prompts, max_tokens, deadline_seconds)


def test_a_context_that_fills_the_cache_does_not_lower_the_limit_of_shorter_ones() -> None:
    engine = SmallCache(affine(0.01, 3e-4))
    tuner = DecodeTuner(prober(engine, 16384), [128, 2048], 0.05, 256)

    found = tuner.run(lambda _: None)

    assert [context.crowded_at for context in found.contexts] == [None, 12]
    assert found.max_num_seqs == found.contexts[0].estimate.requests
    assert found.max_num_seqs == pytest.approx(133, abs=1)


def test_the_tuner_respects_the_batch_limit_of_the_engine() -> None:
    engine = FakeEngine(PRICE, requests=20)
    tuner = DecodeTuner(prober(engine), [128], 0.05, 256)

    found = tuner.run(lambda _: None)

    (context,) = found.contexts
    assert (found.max_num_seqs, context.crowded_at, context.complete) == (20, 20, True)


def test_of_a_batch_that_ranks_divide_no_limit_is_recommended() -> None:
    """Each rank of two keeps the target with 133 requests; both together with 266."""
    engine = FakeEngine(affine(0.01, 3e-4), ranks=2, requests=1024)
    tuner = DecodeTuner(prober(engine), [128], 0.05, 512)

    found = tuner.run(lambda _: None)

    assert found.contexts[0].estimate.requests == pytest.approx(266, abs=3)
    assert found.max_num_seqs is None
    assert "Its 2 data-parallel ranks divided each batch" in decode_text(found)


def test_beside_requests_of_others_no_limit_is_recommended() -> None:
    """The engine keeps the target with 200 at once, of which 100 are those of others."""
    engine = FakeEngine(lambda tokens: 0.01 + 2e-4 * (tokens + 100), running=100, requests=1024)
    made = DecodeProber(engine, UniquePrompts(random.Random(3)), 131_072, live=True)

    found = DecodeTuner(made, [512], 0.05, 256).run(lambda _: None)

    assert found.contexts[0].estimate.requests == pytest.approx(100, abs=1)
    assert found.max_num_seqs is None
    text = decode_text(found)
    assert "100 requests of others ran beside the first batch (--live)" in text
    assert "Set max_num_seqs" not in text
