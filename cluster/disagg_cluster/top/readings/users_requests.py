"""Users' requests, each model's as its best source counts them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from disagg_cluster.top.readings.series import Series, buckets, node_of, pool_key
from disagg_cluster.top.readings.values import PoolKey, RequestsOf
from disagg_exporter.engine_pages.exposition.lines import Sample
from disagg_exporter.model import Histogram

# Sources of user requests, best first (docs/metrics.md, label `source`).
_SOURCES = ("frontend", "router", "engine", "pools")
_OWN = frozenset(("engine", "pools"))


def users_first_token(series: Series) -> Mapping[RequestsOf, Histogram]:
    """How long users waited for first tokens so far."""
    found = _best(series.get("disagg_request_time_to_first_token_seconds_bucket", ()))
    waits = {key: buckets(samples) for key, samples in found.items()}
    return {key: each for key, each in waits.items() if each is not None}


def arrivals(series: Series) -> Mapping[RequestsOf, float]:
    """How many requests arrived so far."""
    found = _best(series.get("disagg_request_arrivals_total", ()))
    return {key: sum(sample.value for sample in samples) for key, samples in found.items()}


def _best(samples: Sequence[Sample]) -> Mapping[RequestsOf, list[Sample]]:
    """Samples of each model's best source: a sum over sources would count requests twice.

    A source that has counted no request yet, as a frontend that is bypassed, comes last. Engines
    that do prefill and decode, and separate pools, have different requests: both count.
    """
    sources: dict[PoolKey, dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        sources[pool_key(sample.labels)][sample.labels.get("source", "")].append(sample)
    best: dict[RequestsOf, list[Sample]] = defaultdict(list)
    for model, each in sources.items():
        source = min(each, key=lambda source: _rank(source, each[source]))
        for chosen in each.keys() & _OWN if source in _OWN else (source,):
            for sample in each[chosen]:
                best[RequestsOf(node_of(sample.labels), model, chosen)].append(sample)
    return best


def _rank(source: str, samples: Sequence[Sample]) -> tuple[bool, int]:
    has_counted = any(sample.value > 0 for sample in samples)
    return not has_counted, _SOURCES.index(source) if source in _SOURCES else len(_SOURCES)
