"""Queries a Prometheus for all data of a report."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from types import MappingProxyType
from typing import TYPE_CHECKING

from disagg_cluster.inspect.report.intervals import SPAN_SECONDS, intervals
from disagg_cluster.inspect.report.past import (
    HOURLY,
    LABELS,
    NO_SERIES,
    NODE_GPUS,
    NODE_PRICE,
    SPLIT,
    Firing,
    History,
    Key,
    Period,
    RuleSeries,
    added,
    utc,
)
from disagg_cluster.prometheus.prometheus_api import Prometheus, Samples
from disagg_cluster.prometheus.promql import matcher
from disagg_exporter.errors import DisaggError

if TYPE_CHECKING:
    import ssl

ClusterCurves = dict[str, RuleSeries]
"""A rule by cluster."""

_MOST_STEPS = 10_000
_LEAST_STEP_SECONDS = 60


class NoHistoryError(DisaggError):
    """A Prometheus that answers and has none of our data; the text says what to check."""


class Reader:
    """Reads the history of one Prometheus.

    Args:
        url: Its root.
        cluster: Only this cluster; the sum of all if None.
        headers: Sent along, for a Prometheus that requires credentials.
        say: Called with what is being read.
        tls: TLS context for https; Python's default if None.
    """

    def __init__(
        self,
        url: str,
        cluster: str | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
        say: Callable[[str], None] = lambda _line: None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._url = url
        self._cluster = cluster
        self._say = say
        self._prometheus = Prometheus(url, headers, tls)

    def read(self, period: Period) -> History:
        """Read all rules and alerts.

        Raises:
            PrometheusError: It does not answer, or refuses.
            NoHistoryError: It has none of our rules in this period.
        """
        with closing(self._prometheus):
            return self._read(period)

    def _read(self, period: Period) -> History:
        found = {}
        for rule in LABELS:
            found[rule] = self._curves(rule, period, LABELS[rule])
            if rule == SPLIT and not found[rule]:
                raise NoHistoryError(self._why_nothing(period))
        hourly = self._hourly(found, period)
        self._say("reading alerts")
        step = max(_LEAST_STEP_SECONDS, -(-period.length_seconds // _MOST_STEPS))
        selector = self._selector("ALERTS", 'alertstate="firing"', 'alertname=~"Disagg.+"')
        alerts = self._range(selector, period.start_seconds, period.end_seconds, step)
        firing = tuple(Firing(each.labels, tuple(t for t, _ in each.values)) for each in alerts)
        gpus, prices = self._most(NODE_GPUS, period), self._most(NODE_PRICE, period)
        curves = {rule: added(each.values()) for rule, each in found.items() if each}
        return History(period, curves, firing, step, gpus, hourly, prices)

    def _hourly(self, found: dict[str, ClusterCurves], period: Period) -> frozenset[str]:
        """Replace rules that a cluster recorded for less of the time by hourly means, if longer."""
        replaced = set()
        for rule, before in HOURLY.items():
            curves = found[rule]
            short = [
                cluster
                for cluster, split in found[SPLIT].items()
                if not curves.get(cluster, NO_SERIES).is_as_long_as(split)
            ]
            means = self._curves(before, period, LABELS[rule]) if short else {}
            for cluster in short:
                mean = means.get(cluster)
                if mean is not None and not curves.get(cluster, NO_SERIES).is_as_long_as(mean):
                    curves[cluster] = mean
                    replaced.add(rule)
        return frozenset(replaced)

    def _most(self, name: str, period: Period) -> dict[Key, tuple[float | None, ...]]:
        """Return the largest value of each node in each bucket."""
        self._say(f"reading {name}")
        found = self._buckets("max by (cluster, node) (max_over_time({}))", name, period)
        return {
            (_cluster_of(each), each.labels.get("node", "")): _placed(each, period.ends)
            for each in found
        }

    def _curves(self, rule: str, period: Period, labels: Sequence[str]) -> ClusterCurves:
        """Return a rule by cluster, each of which evaluates it at its own interval."""
        self._say(f"reading {rule}")
        counts = self._buckets("max by (cluster) (count_over_time({}))", rule, period)
        seconds = {
            _cluster_of(each): every
            for each in counts
            if each.values and (every := self._intervals(rule, each, period))
        }
        if not seconds:
            return {}
        by = ", ".join(("cluster", *labels))
        buckets: dict[str, dict[Key, tuple[float | None, ...]]] = {each: {} for each in seconds}
        for each in self._buckets(f"sum by ({by}) (sum_over_time({{}}))", rule, period):
            cluster = _cluster_of(each)
            if cluster in seconds:
                key = tuple(each.labels.get(label, "") for label in labels)
                buckets[cluster][key] = _placed(each, period.ends, seconds[cluster])
        seen = {_cluster_of(each): dict(each.values) for each in counts}
        return {
            cluster: RuleSeries(
                buckets[cluster],
                tuple(
                    min(
                        1.0,
                        seen[cluster].get(end, 0.0) * every.get(end, 0.0) / period.bucket_seconds,
                    )
                    for end in period.ends
                ),
            )
            for cluster, every in seconds.items()
        }

    def _buckets(self, expr: str, name: str, period: Period) -> list[Samples]:
        """Evaluate an expression over each bucket; `{}` in it stands for the samples of `name`."""
        # Adjacent windows would both include the sample between them.
        samples = f"{self._selector(name)}[{period.bucket_seconds * 1000 - 1}ms]"
        ends = (period.ends[0], period.end_seconds, period.bucket_seconds)
        return self._range(expr.format(samples), *ends)

    def _intervals(self, rule: str, counts: Samples, period: Period) -> dict[int, float]:
        """Return a cluster's evaluation interval in each bucket; empty for one sample."""
        seen = {int(end): count for end, count in counts.values}
        cluster, bucket_seconds = _cluster_of(counts), period.bucket_seconds
        fullest = int(_fullest(counts))
        start, end = fullest - bucket_seconds, fullest
        if bucket_seconds <= SPAN_SECONDS:
            start, end = period.start_seconds + bucket_seconds - SPAN_SECONDS, period.end_seconds

        def interval_of(start: int, end: int) -> float | None:
            return self._interval(rule, cluster, start, end, SPAN_SECONDS)

        shortest_seconds = self._interval(
            rule, cluster, start, end, min(bucket_seconds, SPAN_SECONDS)
        )
        if shortest_seconds is None:
            return {}
        return intervals(seen, shortest_seconds, bucket_seconds, interval_of)

    def _interval(self, rule: str, cluster: str, start: int, end: int, step: int) -> float | None:
        """Return the evaluation interval in the fullest half hour; None for one sample."""
        selector = self._selector(rule, matcher("cluster", cluster))
        span = min(SPAN_SECONDS, end - start)
        window = f"{selector}[{span}s]"
        # Buckets of a minute hold a sample each, and the first has none before it.
        halves = self._range(f"max(count_over_time({window}))", start + span, end, step)
        if not halves:
            return None
        stored = self._prometheus.query_samples(window, _fullest(halves[0]))
        longest = max((each.values for each in stored), key=len, default=())
        times = [t for t, _ in longest]
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        return statistics.median(gaps) if gaps else None

    def _range(self, expr: str, start: float, end: float, step: float) -> list[Samples]:
        return self._prometheus.query_range(expr, start, end, step)

    def _selector(self, name: str, *matchers: str) -> str:
        asked = list(matchers)
        if self._cluster is not None:
            asked.append(matcher("cluster", self._cluster))
        return f"{name}{{{','.join(asked)}}}"

    def _why_nothing(self, period: Period) -> str:
        """Return what to check: the rules, the scraping, or the name of the cluster."""
        ends = (period.start_seconds, period.end_seconds, period.bucket_seconds)
        of = "" if self._cluster is None else f" of cluster {self._cluster!r}"
        # A report on a week ends up to an hour ago, with its last whole bucket.
        after = (period.end_seconds, period.end_seconds + period.bucket_seconds, SPAN_SECONDS // 60)
        if later := self._range(f"count({self._selector(SPLIT)})", *after):
            since = utc(later[0].values[0][0])
            return (
                f"{self._url} holds {SPLIT}{of} since {since} UTC, and this period ends before, "
                f"{utc(period.end_seconds)} UTC: a shorter --since ends later"
            )
        head = f"{self._url} holds no {SPLIT}{of} in this period, or a single sample of it"
        if self._range(f"count({self._selector('disagg_build_info')})", *ends):
            return f"{head}: it scrapes nodes, so load our rules (`disagg-node rules export DIR`)"
        there = self._range(f"count by (cluster) ({SPLIT} or disagg_build_info)", *ends)
        if names := ", ".join(sorted(repr(_cluster_of(each)) for each in there)):
            return f"{head}: it knows {names}"
        return f"{head}, and scrapes no node of ours: see docs/prometheus.md"


def _fullest(counts: Samples) -> float:
    """Return the end of the window with the most samples."""
    return max(counts.values, key=lambda value: value[1])[0]


def _cluster_of(found: Samples) -> str:
    return found.labels.get("cluster", "")


def _placed(
    found: Samples, ends: Sequence[int], weights: Mapping[int, float] | None = None
) -> tuple[float | None, ...]:
    """Return the value of each bucket times its weight, 1 without weights."""
    values = dict(found.values)
    if weights is not None:
        values = {end: value * weights[int(end)] for end, value in values.items() if end in weights}
    return tuple(values.get(end) for end in ends)
