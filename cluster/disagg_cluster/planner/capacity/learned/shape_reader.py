"""What requests were like of late, from any API that speaks as Prometheus does."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from disagg_cluster.planner.capacity.learned.cost_families import CostFamilies, engine_id
from disagg_cluster.planner.capacity.learned.request_shape import (
    SHAPE_SECONDS,
    RequestShape,
    dispersion_of,
)
from disagg_cluster.planner.history.history_queries import SampleSource, range_of
from disagg_cluster.planner.history.range_reader import RangeQueries
from disagg_exporter.model import Role

_PROMPTS = "disagg_request_prompt_tokens_bucket"
_OUTPUTS = "disagg_request_output_tokens_bucket"
_KV_USED = "disagg_engine_kv_cache_usage_ratio"
_REQUESTS = "disagg_engine_requests"
_FRONTEND = "frontend"

Whose = tuple[str, str]
"""Name of a model, and its namespace."""


@dataclass(slots=True)
class _Lengths:
    """How many requests were no longer than each bound, by source."""

    below: dict[str, dict[float, float]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(float))
    )

    @property
    def dispersion(self) -> float | None:
        bounds = sorted(self._best)
        counts, before = [], 0.0
        for bound in bounds:
            counts.append(max(0.0, self._best[bound] - before))
            before = max(before, self._best[bound])
        return dispersion_of(bounds, counts)

    @property
    def requests(self) -> float:
        return max(self._best.values(), default=0.0)

    @property
    def _best(self) -> Mapping[float, float]:
        """Of a frontend where one saw any: the others saw the same requests."""
        front = self.below.get(_FRONTEND, {})
        if any(front.values()):
            return front
        found: dict[float, float] = defaultdict(float)
        for source, of in self.below.items():
            for bound, count in of.items():
                found[bound] += 0.0 if source == _FRONTEND else count
        return found


def read_shapes(
    prometheus: RangeQueries, told: CostFamilies, cluster: str | None, now_seconds: float
) -> dict[Whose, RequestShape]:
    """By model; one of which nobody tells anything is absent.

    Raises:
        PrometheusError: No answer in time, or a refusal.
    """
    source, window = SampleSource(cluster), range_of(SHAPE_SECONDS)

    def asked(expr: str) -> Iterator[tuple[Mapping[str, str], float]]:
        for series in prometheus.query_range(expr, now_seconds, now_seconds, 60.0):
            for _, value in series.values[-1:]:
                if math.isfinite(value):
                    yield series.labels, value

    def lengths(family: str) -> dict[Whose, _Lengths]:
        by = "model_name, engine_namespace, source, le"
        found: dict[Whose, _Lengths] = defaultdict(_Lengths)
        for labels, value in asked(f"sum by ({by}) (increase({source.of(family)}[{window}]))"):
            whose = (labels.get("model_name", ""), labels.get("engine_namespace", ""))
            bound = _bound(labels.get("le", ""))
            if bound is not None:
                found[whose].below[labels.get("source", "")][bound] += value
        return found

    def means(samples: str) -> dict[tuple[str, str, str], float]:
        by = "cluster, node, instance, engine"
        expr = f"sum by ({by}) (avg_over_time({samples}[{window}]))"
        return {engine_id(labels): value for labels, value in asked(expr)}

    used = means(source.of(_KV_USED))
    running = means(source.of(_REQUESTS, 'state="running"'))
    held: dict[Whose, list[tuple[float, float]]] = defaultdict(list)
    for engine, kind in told.engines():
        room = told.kv_tokens(engine)
        if kind.role is Role.DECODE and room is not None and engine in used and engine in running:
            held[kind.model_name, kind.engine_namespace].append(
                (room * used[engine], running[engine])
            )
    prompts, outputs = lengths(_PROMPTS), lengths(_OUTPUTS)
    found = {}
    for whose in sorted({*prompts, *outputs, *held}):
        tokens, decoding = (sum(of) for of in zip(*held.get(whose, [(0.0, 0.0)]), strict=True))
        found[whose] = RequestShape(
            prompts[whose].requests,
            prompts[whose].dispersion,
            outputs[whose].dispersion,
            tokens / decoding if decoding > 0 and tokens > 0 else None,
        )
    return found


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return bound if bound > 0 else None
