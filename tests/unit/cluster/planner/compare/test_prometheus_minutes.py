from __future__ import annotations

import numpy as np

from disagg_cluster.planner.compare.prometheus_minutes import PrometheusMinutes
from disagg_cluster.planner.history.history_request import HistoryRequest
from disagg_cluster.prometheus.prometheus_api import Samples

_NAN = float("nan")


class Buckets:
    """Answers queries of the time to first token with requests by `le` and time."""

    def __init__(self, counts: dict[str, dict[float, float]]) -> None:
        self._counts = counts

    def query_range(self, expr: str, *_args: float, **_more: float) -> list[Samples]:
        """Like the real client."""
        if not expr.startswith("sum by (le)"):
            return []
        return [Samples({"le": le}, tuple(of.items())) for le, of in self._counts.items()]


def test_a_bound_that_is_written_in_two_ways_is_one_bucket() -> None:
    """As after an upgrade to Prometheus 3 within the span."""
    counts = {"1": {60.0: 2.0}, "1.0": {120.0: 3.0}, "+Inf": {60.0: 4.0, 120.0: 5.0}}

    found = PrometheusMinutes(Buckets(counts)).read(HistoryRequest(0.0, 180.0))

    assert found.first_token_bounds == (1.0, float("inf"))
    np.testing.assert_array_equal(found.first_token_buckets, [[2.0, 3.0, _NAN], [4.0, 5.0, _NAN]])


def test_a_bucket_whose_bound_is_no_number_is_left_out() -> None:
    counts = {le: {60.0: 1.0} for le in ("some", "NaN", "1", "+Inf", "")}

    found = PrometheusMinutes(Buckets(counts)).read(HistoryRequest(0.0, 60.0))

    assert found.first_token_bounds == (1.0, float("inf"))
