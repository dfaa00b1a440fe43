"""Loads of two kinds of requests, and the measurements of the pools that serve them."""

from __future__ import annotations

import numpy as np
import pytest
from bench.plan.days import HISTORY_DAYS, MINUTES
from bench.plan.profile import Profile, worker_options
from bench.plan.truth import ModelTruth
from bench.rebalance.measured import MeasuredPools
from bench.rebalance.mixed_loads import MIXED_KINDS, MixedKind, make_mixed_load, mixed_kind_of

from disagg_exporter.model import Role

_MINUTES = 20


def test_a_mixed_load_is_ordered_by_time_and_reproducible() -> None:
    day, again = (make_mixed_load(3, MixedKind.TINY, 10) for _ in range(2))

    np.testing.assert_array_equal(day.arrivals.seconds, again.arrivals.seconds)
    assert np.all(np.diff(day.arrivals.seconds) >= 0)
    today = slice(HISTORY_DAYS * MINUTES, None)
    assert len(day.requests[today]) == 10
    assert day.requests[today].sum() * 60 == pytest.approx(len(day.arrivals.seconds))
    assert day.prompt_tokens[today].sum() * 60 == pytest.approx(day.arrivals.prompt_tokens.sum())


def test_consecutive_seeds_cover_all_kinds_of_load() -> None:
    assert {mixed_kind_of(seed) for seed in range(len(MIXED_KINDS))} == set(MIXED_KINDS)


def test_measurements_of_two_kinds_of_requests_differ_from_their_means() -> None:
    day = make_mixed_load(0, MixedKind.STEADY, _MINUTES)
    measured = MeasuredPools(Profile([day], worker_options([day])))
    model = ModelTruth(day, 4, 4)
    for minute in range(_MINUTES):
        model.minute(minute)
        measured.measure(model)

    like = measured.like(_MINUTES)
    arrivals = day.arrivals
    prompts, outputs = arrivals.prompt_tokens, arrivals.output_tokens
    held = (outputs * (prompts + outputs / 2)).sum() / outputs.sum()
    assert like.context_factor < 0.6
    assert model.decode_held_tokens / model.decode_running == pytest.approx(held, rel=0.2)
    assert like.prompt_dispersion > 1.5
    used = measured.capacity_used
    assert 0.3 < used[Role.PREFILL] < 1.2
    assert 0.3 < used[Role.DECODE] <= 1.0
