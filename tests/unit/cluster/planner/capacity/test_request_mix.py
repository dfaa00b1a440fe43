"""Requests that decode at one moment, against drawn ones."""

from __future__ import annotations

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
