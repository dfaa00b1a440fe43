"""The significance of a larger share of requests."""

from __future__ import annotations

import numpy as np

from disagg_cluster.planner.diagnose.evidence.shares import (
    larger_share_z,
    share_by_chance,
)


def test_a_larger_request_share_is_significant_despite_noisy_logarithms() -> None:
    given = np.array([[23, 13, 13, 5]] * 9 + [[12, 9, 28, 4]] * 3, float).T

    z = larger_share_z(given, np.zeros(4, dtype=np.intp), np.full(4, 9))

    assert z[2] > 6
    assert (z[[0, 1, 3]] < 0).all()


def test_significance_is_calibrated_for_requests_routed_in_bursts() -> None:
    rng, peers, onset = np.random.default_rng(3), np.zeros(4, dtype=np.intp), np.full(4, 9)
    lots = [rng.poisson(15.0, size=(4, 12)).astype(float) for _ in range(100)]
    # A router that sends ten requests in a row to one engine.
    rows = [10.0 * rng.poisson(1.5, size=(4, 12)) for _ in range(100)]

    for drawn in (lots, rows):
        z = np.stack([larger_share_z(each, peers, onset) for each in drawn])
        assert 0.7 < z.std() < 1.3


def test_a_larger_share_is_surer_where_a_router_deals_out_requests_in_turn() -> None:
    """Numbers that did not vary before; by random picks six more of twenty are chance."""
    peers, onset = np.zeros(4, dtype=np.intp), np.full(4, 9)
    in_turn = np.full((4, 12), 20.0)
    in_turn[:, 9:] = np.array([26.0, 18.0, 18.0, 18.0])[:, None]
    picked = in_turn + np.array([4.0, -4 / 3, -4 / 3, -4 / 3])[:, None] * (-1.0) ** np.arange(12)

    assert larger_share_z(in_turn, peers, onset)[0] > 4
    assert larger_share_z(picked, peers, onset)[0] < 3
    assert (share_by_chance(in_turn, peers) < 0.6 * np.sqrt(0.75 / 20)).all()
