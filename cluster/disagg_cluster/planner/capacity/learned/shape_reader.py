"""Recent shapes of requests, from any Prometheus-compatible API."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from disagg_cluster.planner.capacity.learned.cost_families import CostFamilies, engine_id
from disagg_cluster.planner.capacity.learned.length_dispersion import dispersion_of
from disagg_cluster.planner.capacity.learned.request_shape import SHAPE_SECONDS, RequestShape
from disagg_cluster.planner.history.history_queries import SampleSource, range_of
from disagg_cluster.planner.history.range_reader import RangeQueries
from disagg_exporter.model import Role

_PROMPTS = "disagg_request_prompt_tokens"
_OUTPUTS = "disagg_request_output_tokens"
_KV_USED = "disagg_engine_kv_cache_usage_ratio"
_REQUESTS = "disagg_engine_requests"
_FRONTEND = "frontend"
_GENERATING = (Role.DECODE, Role.MIXED)

ModelId = tuple[str, str]
"""Name of a model, and its namespace."""


@dataclass(slots=True)
class _Lengths:
    """How many requests were no longer than each bound, and their tokens, by source."""

    below: dict[str, dict[float, float]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(float))
    )
    tokens: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def dispersion(self) -> float | None:
        best = self._best
        bounds = sorted(best)
        counts, before = [], 0.0
        for bound in bounds:
            counts.append(max(0.0, best[bound] - before))
            before = max(before, best[bound])
        return dispersion_of(bounds, counts, sum(self.tokens[each] for each in self._sources))

    @property
    def requests(self) -> float:
        return max(self._best.values(), default=0.0)

    @property
    def _sources(self) -> list[str]:
        """A frontend if it observed any, as the others observed the same requests."""
        if any(self.below.get(_FRONTEND, {}).values()):
            return [_FRONTEND]
        return sorted({*self.below} - {_FRONTEND})

    @property
    def _best(self) -> Mapping[float, float]:
        found: dict[float, float] = defaultdict(float)
        for source in self._sources:
            for bound, count in self.below[source].items():
                found[bound] += count
        return found


def read_shapes(
    prometheus: RangeQueries, families: CostFamilies, cluster: str | None, now_seconds: float
) -> dict[ModelId, RequestShape]:
    """Shapes by model; models without any measurement are absent.

    Raises:
        PrometheusError: No answer in time, or a refusal.
    """
    source, window = SampleSource(cluster), range_of(SHAPE_SECONDS)

    def query(expr: str) -> Iterator[tuple[Mapping[str, str], float]]:
        for series in prometheus.query_range(expr, now_seconds, now_seconds, 60.0):
            for _, value in series.values[-1:]:
                if math.isfinite(value):
                    yield series.labels, value

    def lengths(family: str) -> dict[ModelId, _Lengths]:
        by = "model_name, engine_namespace, source"
        found: dict[ModelId, _Lengths] = defaultdict(_Lengths)
        buckets, sums = source.of(f"{family}_bucket"), source.of(f"{family}_sum")
        for labels, value in query(f"sum by ({by}, le) (increase({buckets}[{window}]))"):
            bound = _bound(labels.get("le", ""))
            if bound is not None:
                found[_model(labels)].below[labels.get("source", "")][bound] += value
        for labels, value in query(f"sum by ({by}) (increase({sums}[{window}]))"):
            found[_model(labels)].tokens[labels.get("source", "")] += value
        return found

    def means(samples: str) -> dict[tuple[str, str, str], float]:
        by = "cluster, node, instance, engine"
        expr = f"sum by ({by}) (avg_over_time({samples}[{window}]))"
        return {engine_id(labels): value for labels, value in query(expr)}

    # An engine that became one of these has also what it held as one of prefill.
    generating = f'role=~"{"|".join(_GENERATING)}"'
    used = means(source.of(_KV_USED, generating))
    running = means(source.of(_REQUESTS, 'state="running"', generating))
    held: dict[ModelId, list[tuple[float, float]]] = defaultdict(list)
    for engine, kind in families.engines():
        size = families.kv_tokens(engine)
        if kind.role in _GENERATING and size is not None and engine in used and engine in running:
            held[kind.model_name, kind.engine_namespace].append(
                (size * used[engine], running[engine])
            )
    prompts, outputs = lengths(_PROMPTS), lengths(_OUTPUTS)
    found = {}
    for model in sorted({*prompts, *outputs, *held}):
        tokens, decoding = (sum(of) for of in zip(*held.get(model, [(0.0, 0.0)]), strict=True))
        found[model] = RequestShape(
            prompts[model].requests,
            prompts[model].dispersion,
            outputs[model].dispersion,
            tokens / decoding if decoding > 0 and tokens > 0 else None,
        )
    return found


def _model(labels: Mapping[str, str]) -> ModelId:
    return labels.get("model_name", ""), labels.get("engine_namespace", "")


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return bound if bound > 0 else None
