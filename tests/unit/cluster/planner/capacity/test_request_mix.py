"""Requests that decode at one moment, against drawn ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from disagg_cluster.planner.capacity.request_mix import RequestMix


@pytest.mark.parametrize("cached_share", [0.0, 0.5, 0.97])
@pytest.mark.parametrize("dispersion", [0.0, 0.5, 2.0])
def test_contexts_vary_as_whole_prompts_do_however_much_of_them_is_cached(
    cached_share: float, dispersion: float
) -> None:
    """What a cache had takes as much room as what was computed."""
    rng = np.random.default_rng(1)
    whole, outputs = 20_000.0, 400.0
    spread = np.sqrt(np.log1p(dispersion))
    prompts = whole * np.exp(rng.normal(-(spread**2) / 2, spread, 400_000))
    # At a random moment, of a request with an exponential output as much is done as is to come.
    held = prompts + rng.exponential(outputs, prompts.size)

    mix = RequestMix(
        1.0,
        whole * (1 - cached_share),
        outputs,
        cached_tokens=whole * cached_share,
        prompt_dispersion=dispersion,
    )

    assert mix.context_tokens == pytest.approx(held.mean(), rel=0.02)
    assert mix.context_dispersion == pytest.approx(held.var() / held.mean() ** 2, rel=0.05)


def test_a_prefix_that_requests_share_is_held_once_and_does_not_vary() -> None:
    own, shared, outputs = 500.0, 8000.0, 300.0
    alone = RequestMix(1.0, own, outputs)
    sharing = RequestMix(1.0, own, outputs, cached_tokens=shared)

    measured = replace(sharing, context_factor=alone.context_tokens / sharing.context_tokens)

    assert measured.context_tokens == pytest.approx(alone.context_tokens)
    assert measured.context_dispersion == pytest.approx(alone.context_dispersion)


def test_contexts_vary_as_those_of_the_kind_of_requests_that_stays_longer() -> None:
    """Of 20,000 tokens with outputs of 100, and of 1,000 with 2,000; half of each arrive."""
    prompts, outputs = np.array([20_000.0, 1000.0]), np.array([100.0, 2000.0])
    decoding = outputs / outputs.sum()
    held = float(decoding @ prompts)
    varies = float(decoding @ prompts**2) - held**2
    mix = RequestMix(1.0, prompts.mean(), 1050.0, prompt_dispersion=prompts.var() / 10_500.0**2)
    generated = mix.context_tokens - 10_500.0

    mix = replace(mix, context_factor=(held + generated) / mix.context_tokens)

    expected = (varies + generated**2) / (held + generated) ** 2
    assert mix.context_dispersion == pytest.approx(expected)
