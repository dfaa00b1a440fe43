"""Reads what a cluster did in each minute of a span from a Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.compare.minutes import SpanMinutes
from disagg_cluster.planner.history.history_request import HistoryRequest
from disagg_cluster.planner.history.load_series import Floats
from disagg_cluster.planner.history.range_reader import (
    Found,
    RangePart,
    RangeQueries,
    RangeReader,
    spans,
)

_FIRST_TOKEN = "cluster_model_namespace:disagg_request_time_to_first_token_bucket:rate5m"
_ARRIVALS = "cluster_model_namespace:disagg_request_arrivals:rate1m"
_BETWEEN = "disagg_engine_inter_token_latency_seconds"


@dataclass(frozen=True, slots=True)
class PrometheusMinutes:
    """Reads spans of one cluster, and of one model or of all of them.

    Args:
        prometheus: The client.
        model_name: Only this model; all of them, added up, if None.
        say: Told what is being read.
    """

    prometheus: RangeQueries
    model_name: str | None = None
    say: Callable[[str], None] = lambda _line: None

    def read(self, request: HistoryRequest) -> SpanMinutes:
        """Read the steps of a request.

        Raises:
            PrometheusError: No answer in time, or a refusal.
        """
        reader = RangeReader(self.prometheus, request, ("phase", "le"), 60.0, 600.0, self.say)
        parts = [
            RangePart(name, expr, first, count)
            for name, expr in self._queries(request.cluster).items()
            for first, count in spans(request.steps)
        ]
        found = reader.read(parts, "what was measured")

        def one(name: str, phase: str = "") -> Floats:
            return found[name].get((phase, ""), np.full(request.steps, np.nan))

        bounds, buckets = _buckets(found["first_token"], request.steps)
        return SpanMinutes(
            request.step_seconds,
            one("requests"),
            one("tokens", "prefill"),
            one("tokens", "decode"),
            one("gpus"),
            one("watts"),
            one("between_sum"),
            one("between_count"),
            bounds,
            buckets,
        )

    def _queries(self, cluster: str | None) -> dict[str, str]:
        told = {"cluster": cluster, "model_name": self.model_name}
        given = {name: value for name, value in told.items() if value is not None}
        of = ",".join(f'{name}="{_quoted(value)}"' for name, value in given.items())
        engines = f"max by (cluster, node, engine) (disagg_engine_info{{{of}}})"

        def between(part: str) -> str:
            rates = f"sum by (cluster, node, engine) (rate({_BETWEEN}_{part}[1m]))"
            return f"sum ({rates} * on (cluster, node, engine) {engines})"

        return {
            "requests": f"sum ({_ARRIVALS}{{{of}}})",
            "tokens": f"sum by (phase) (rate(disagg_node_phase_tokens_total{{{of}}}[1m]))",
            "gpus": f"sum (rate(disagg_node_phase_seconds_total{{{of}}}[1m]))",
            "watts": f"sum (rate(disagg_node_energy_joules_total{{{of}}}[1m]))",
            "between_sum": between("sum"),
            "between_count": between("count"),
            "first_token": f"sum by (le) ({_FIRST_TOKEN}{{{of}}})",
        }


def _buckets(found: Found, steps: int) -> tuple[tuple[float, ...], Floats]:
    """Bounds in rising order with the requests within each; empty where nothing is told."""
    by_bound = {float(labels[1]): values for labels, values in found.items() if labels[1]}
    if float("inf") not in by_bound or len(by_bound) < 2:
        return (), np.empty((0, steps))
    bounds = tuple(sorted(by_bound))
    return bounds, np.array([by_bound[bound] for bound in bounds])


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
