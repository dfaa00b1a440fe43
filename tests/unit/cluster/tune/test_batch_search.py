from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.tune.batch_search import BatchSearch, batch_estimate
from disagg_cluster.tune.probed import SizeProbe, TimedSteps, size_grid

GRID = size_grid(1, 256)


def searched(step_seconds: float, request_seconds: float, target_seconds: float) -> TimedSteps:
    search, probed = BatchSearch(GRID, target_seconds, len(GRID)), TimedSteps()
    while (batch := search.next_size(probed)) is not None:
        probed = probed.plus(SizeProbe(batch, (step_seconds + batch * request_seconds,) * 12))
    return probed


@given(st.floats(0.005, 0.03), st.floats(1e-5, 2e-3))
def test_the_largest_batch_within_the_target_is_found_with_half_the_probes(
    step_seconds: float, request_seconds: float
) -> None:
    target = 0.0501
    true = min(int((target - step_seconds) / request_seconds), GRID[-1])

    probed = searched(step_seconds, request_seconds, target)

    found = batch_estimate(probed, target).requests
    assert found is not None
    assert abs(found - true) <= 1
    assert len(probed.probes) <= len(GRID) // 2


def test_a_target_that_one_request_misses_gives_no_batch() -> None:
    probed = searched(0.06, 1e-4, 0.05)

    assert batch_estimate(probed, 0.05).requests is None
    assert probed.sizes == (1,)


def test_if_no_batch_misses_the_target_the_largest_probed_batch_is_given() -> None:
    """Larger batches were not measured."""
    probed = searched(0.01, 1e-6, 0.05)

    known = batch_estimate(probed, 0.05)

    assert (known.requests, known.slow) == (GRID[-1], None)


def test_without_a_probe_there_is_no_batch() -> None:
    assert batch_estimate(TimedSteps(), 0.05).requests is None
