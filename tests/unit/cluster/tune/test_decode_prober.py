from __future__ import annotations

import random

import pytest

from disagg_cluster.tune.completions import UniquePrompts
from disagg_cluster.tune.decode_prober import STEPS, CrowdedBatch, DecodeProber
from disagg_cluster.tune.decode_tuning import DecodeTuner
from disagg_cluster.tune.probed import SizeProbe
from disagg_cluster.tune.traffic_guard import LiveEngineError
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


def test_requests_too_short_to_overlap_are_no_batch() -> None:
    """Requests whose contexts leave little room for output end before the others begin."""
    engine = FakeEngine(PRICE, step_tokens=256)

    found = prober(engine, most_tokens=256 + 12).probe(64, 256)

    assert isinstance(found, CrowdedBatch)
    assert found.most < 64


def test_waiting_for_running_requests_ends_with_an_error() -> None:
    engine = FakeEngine(PRICE, running=1)

    with pytest.raises(LiveEngineError, match="1 running"):
        prober(engine).probe(4, 64)


def test_the_tuner_respects_the_batch_limit_of_the_engine() -> None:
    engine = FakeEngine(PRICE, requests=20)
    tuner = DecodeTuner(prober(engine), [128], 0.05, 256)

    found = tuner.run(lambda _: None)

    (context,) = found.contexts
    assert (found.max_num_seqs, context.crowded_at, context.complete) == (20, 20, True)
