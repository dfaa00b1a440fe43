"""Reads the activity of a cluster in each minute of a span from Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from disagg_cluster.planner.compare.minutes import SpanMinutes
from disagg_cluster.planner.history.history_queries import ARRIVALS, SampleSource
from disagg_cluster.planner.history.history_request import HistoryRequest
from disagg_cluster.planner.history.load_series import Floats
from disagg_cluster.planner.history.range_reader import (
    Found,
    RangePart,
    RangeQueries,
    RangeReader,
    spans,
)
from disagg_cluster.prometheus.promql import matcher

_FIRST_TOKEN = "cluster_model_namespace:disagg_request_time_to_first_token_seconds_bucket:rate5m"
_BETWEEN = "disagg_engine_inter_token_latency_seconds"


@dataclass(frozen=True, slots=True)
class PrometheusMinutes:
    """Reads spans of one cluster, for one model or the sum of all models.

    Args:
        prometheus: The client.
        model_name: The model; the sum of all models if None.
        say: Called with a line of progress.
    """

    prometheus: RangeQueries
    model_name: str | None = None
    say: Callable[[str], None] = lambda _line: None

    def read(self, request: HistoryRequest) -> SpanMinutes:
        """Read the steps of a request.

        Raises:
            PrometheusError: No answer in time, or an error.
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
        of_model = () if self.model_name is None else (matcher("model_name", self.model_name),)
        source = SampleSource(cluster)
        engines = f"max by (cluster, node, engine) ({source.of('disagg_engine_info', *of_model)})"

        def rate(family: str) -> str:
            return source.rate(family, *of_model)

        def between(part: str) -> str:
            rates = f"sum by (cluster, node, engine) ({source.rate(f'{_BETWEEN}_{part}')})"
            return f"sum ({rates} * on (cluster, node, engine) {engines})"

        gpus = f"sum ({rate('disagg_node_phase_seconds_total')})"
        joules = rate("disagg_node_energy_joules_total")
        # GPUs that report no energy, as MIG instances, are taken to use what the others do. A node
        # older than the seconds of its energy counts all of its own.
        metered = (
            f"sum by (cluster, node) ({rate('disagg_node_energy_gpu_seconds_total')})\n"
            f"or sum by (cluster, node) (({rate('disagg_node_phase_seconds_total')})\n"
            "and on (cluster, node, gpu_name, model_name, engine_namespace)\n"
            f"{source.of('disagg_node_energy_joules_total', *of_model)})"
        )

        return {
            "requests": f"sum ({source.of(ARRIVALS.record, *of_model)})",
            "tokens": f"sum by (phase) ({rate('disagg_node_phase_tokens_total')})",
            "gpus": gpus,
            "watts": f"sum ({joules})\n/ (sum ({metered}) > 0)\n* {gpus}",
            "between_sum": between("sum"),
            "between_count": between("count"),
            "first_token": f"sum by (le) ({source.of(_FIRST_TOKEN, *of_model)})",
        }


def _buckets(found: Found, steps: int) -> tuple[tuple[float, ...], Floats]:
    """Bounds in rising order with the requests within each; empty if there are no buckets.

    A bound may be written in several ways: Prometheus 3 records 1 as `1.0`, earlier ones as `1`.
    """
    by_bound: dict[float, Floats] = {}
    for labels, values in found.items():
        try:
            bound = float(labels[1])
        except ValueError:
            continue
        if not np.isnan(bound):
            by_bound[bound] = np.fmax(by_bound.get(bound, values), values)
    if float("inf") not in by_bound or len(by_bound) < 2:
        return (), np.empty((0, steps))
    bounds = tuple(sorted(by_bound))
    return bounds, np.array([by_bound[bound] for bound in bounds])
