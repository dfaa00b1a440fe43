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
def test_steps_are_timed_while_all_requests_write_and_then_it_hangs_up(batch: int) -> None:
    engine = FakeEngine(PRICE, step_tokens=1024)

    probe = prober(engine).probe(batch, 256)

    assert isinstance(probe, SizeProbe)
    assert probe.seconds == pytest.approx([PRICE(batch)] * STEPS)
    assert engine.hung_up == 1


def test_an_engine_that_runs_fewer_at_once_is_found_out() -> None:
    engine = FakeEngine(PRICE, requests=16)

    assert prober(engine).probe(64, 256) == CrowdedBatch(16)
    assert engine.hung_up == 1


def test_requests_too_short_to_write_at_once_are_no_batch() -> None:
    """Contexts that leave too little room for what is written end before the others begin."""
    engine = FakeEngine(PRICE, step_tokens=256)

    found = prober(engine, most_tokens=256 + 12).probe(64, 256)

    assert isinstance(found, CrowdedBatch)
    assert found.most < 64


def test_it_waits_until_what_was_aborted_has_left_and_not_for_ever() -> None:
    engine = FakeEngine(PRICE, running=1)

    with pytest.raises(LiveEngineError, match="1 running"):
        prober(engine).probe(4, 64)


def test_the_tuner_stays_below_what_the_engine_runs_at_once() -> None:
    engine = FakeEngine(PRICE, requests=20)
    tuner = DecodeTuner(prober(engine), [128], 0.05, 256)

    found = tuner.run(lambda _: None)

    (context,) = found.contexts
    assert (found.max_num_seqs, context.crowded_at, context.complete) == (20, 20, True)
