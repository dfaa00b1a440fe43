"""Users' time to first token, combined from both pools, compared with simulated users'."""

from functools import cache

import numpy as np
import pytest
from scripts.request_rules import WHOLE_BOUNDS_SECONDS

from disagg_cluster.simulator.cluster.spec import ClusterSpec, disaggregated
from disagg_cluster.simulator.load import Lengths, Mix
from disagg_exporter.engine_pages.histograms import (
    DURATION_BOUNDS_SECONDS,
    FIRST_TOKEN_BOUNDS_SECONDS,
    PART_BOUNDS_SECONDS,
)
from disagg_exporter.model import Part, RequestSource
from disagg_exporter.serving.convolution import coefficients
from support.served import Served, late, serve, truly_late

UNLIKE = Lengths(prompt_spread=0.5, output_spread=0.5)
# Prefill and decode engines, requests per second, prompt and output tokens.
LOADS = [
    (1, 1, Mix(2, 2000, 100)),
    (1, 1, Mix(5, 4000, 150)),
    (1, 1, Mix(9, 4000, 60)),
    (1, 1, Mix(8, 3000, 400)),
    (2, 2, Mix(12, 4000, 200)),
    (1, 1, Mix(3, 8000, 100)),
    (1, 1, Mix(0.5, 30_000, 50)),
    (1, 1, Mix(20, 500, 100)),
]
NAMES = [
    *("light", "usual", "prefill beyond its capacity", "large decode batches", "two of each"),
    *("long prompts", "few giants", "short prompts"),
]


@cache
def served_by(prefill: int, decode: int, mix: Mix) -> Served:
    """The result after four minutes, and the true values."""
    return serve(ClusterSpec(disaggregated(prefill, decode)), mix, UNLIKE, seconds=240)


@pytest.mark.parametrize(("prefill", "decode", "mix"), LOADS, ids=NAMES)
def test_the_share_of_late_requests_is_within_five_points(
    prefill: int, decode: int, mix: Mix
) -> None:
    served = served_by(prefill, decode, mix)

    pools = served.of(RequestSource.POOLS)
    assert pools.time_to_first_token is not None
    assert pools.duration is not None
    first = pools.time_to_first_token.at(FIRST_TOKEN_BOUNDS_SECONDS)
    for bound in FIRST_TOKEN_BOUNDS_SECONDS:
        truth = truly_late(served.first_tokens, bound)
        # Engines' own bounds are 20 ms apart there.
        slack = 0.05 if bound >= 0.1 else 0.07
        assert late(first, bound) == pytest.approx(truth, abs=slack), bound
    for bound in DURATION_BOUNDS_SECONDS:
        truth = truly_late(served.durations, bound)
        assert late(pools.duration, bound) == pytest.approx(truth, abs=0.05), bound
    # Those of the last second are on no page yet.
    assert first.total == pytest.approx(len(served.first_tokens), rel=0.03)
    arrivals = served.of(RequestSource.ENGINE).arrivals
    assert arrivals == pytest.approx(served.arrived, rel=0.03)


@pytest.mark.parametrize(("prefill", "decode", "mix"), LOADS, ids=NAMES)
def test_the_late_share_of_parts_combined_by_rules_is_within_six_points(
    prefill: int, decode: int, mix: Mix
) -> None:
    """With fewer bounds than engines have, and evenly spread within them: from 0.25 s on."""
    served = served_by(prefill, decode, mix)

    parts = {each.part: each.seconds.at(PART_BOUNDS_SECONDS) for each in served.known.parts}
    prompts, tokens = parts[Part.PREFILL], parts[Part.FIRST_DECODE]
    inside = np.diff(prompts.counts[:-1], prepend=0.0) / prompts.total
    weights = coefficients(PART_BOUNDS_SECONDS, PART_BOUNDS_SECONDS, WHOLE_BOUNDS_SECONDS)
    below = np.einsum("tij,i,j->t", weights, inside, tokens.counts[:-1]) / tokens.total
    for bound, share in zip(WHOLE_BOUNDS_SECONDS, below, strict=True):
        if bound >= 0.25:
            truth = truly_late(served.first_tokens, bound)
            assert 1 - share == pytest.approx(truth, abs=0.06), bound
