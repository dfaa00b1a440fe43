"""Reads all nodes that a Prometheus scrapes, its alerts, and a planner's output."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from disagg_cluster.prometheus.prometheus_api import Prometheus, Samples
from disagg_cluster.prometheus.promql import matcher
from disagg_cluster.top.readings.parsing import reading_of
from disagg_cluster.top.readings.series import (
    ALERTS,
    OF_NODES,
    OF_PLANNER,
    RECORDED_VERDICT,
    node_of,
)
from disagg_cluster.top.readings.values import LiveReading
from disagg_cluster.top.view.gpu_history import SLOT_SECONDS, SLOTS, WINDOW_SECONDS
from disagg_cluster.top.view.values import Links
from disagg_exporter.engine_pages.exposition.lines import Sample
from disagg_exporter.errors import DisaggError

_DEADLINE_SECONDS = 10.0
_PAST_STEP_SECONDS = 15.0
_MISSED_MINUTES = 15
"""A vanished node is reported for this long; after that it counts as removed."""
_OF_HISTORY = (
    "disagg_gpu_info",
    "disagg_gpu_phase_seconds_total",
    "disagg_gpu_unobserved_seconds_total",
    "disagg_gpu_watermark_timestamp_seconds",
    "disagg_gpu_start_timestamp_seconds",
)


class NoNodesError(DisaggError):
    """A Prometheus has no series of ours."""


class PrometheusSource:
    """Reads from a Prometheus.

    Args:
        prometheus: The client.
        url: Its root URL, for display.
        cluster, node: Only series with these labels, if not empty.
    """

    def __init__(self, prometheus: Prometheus, url: str, cluster: str = "", node: str = "") -> None:
        self._prometheus = prometheus
        self._url = url
        self._cluster = {"cluster": cluster} if cluster else {}
        self._node = {"node": node} if node else {}

    @property
    def title(self) -> str:
        """The selected nodes."""
        chosen = [*self._cluster.values(), *self._node.values()]
        return "/".join(chosen) or "all nodes"

    @property
    def links(self) -> Links:
        """The Prometheus itself; pages and logs belong to the nodes."""
        return Links(prometheus=self._url)

    def past(self) -> Sequence[LiveReading]:
        """The last ten minutes of devices."""
        now = time.time()
        selector = _selector(_OF_HISTORY, self._cluster | self._node)
        span = SLOTS * SLOT_SECONDS
        found = self._ask(selector, now - span, now - _PAST_STEP_SECONDS, _PAST_STEP_SECONDS)
        readings = {at: reading_of(series, at) for at, series in found.items()}
        return [readings[at] for at in sorted(readings)]

    def earlier(self) -> LiveReading | None:
        """The state a minute ago; None if there was none."""
        at = time.time() - WINDOW_SECONDS
        found = self._ask(_selector(OF_NODES, self._cluster | self._node), at, at, WINDOW_SECONDS)
        return next((reading_of(series, each) for each, series in found.items()), None)

    def read(self) -> LiveReading:
        """The current state in Prometheus.

        Raises:
            PrometheusError: It does not answer, or not like a Prometheus.
            NoNodesError: It has no node of ours, or none with these labels.
        """
        at = time.time()
        nodes = _selector(OF_NODES, self._cluster | self._node)
        planner = _selector(OF_PLANNER, self._cluster)
        alerts = _matchers(self._cluster | self._node | {"alertstate": "firing"})
        ours = f'{ALERTS}{{alertname=~"Disagg.*",{alerts}}}'
        parts = [nodes, planner, ours]
        if not self._node:
            parts.append(_selector([RECORDED_VERDICT], self._cluster))
        seen = self._recent_nodes(at)
        found = self._ask(" or ".join(parts), at, at, WINDOW_SECONDS)
        series = next(iter(found.values()), {})
        if "disagg_build_info" not in series:
            raise NoNodesError(self._why_none(seen))
        there = {_placed(each.labels) for each in series["disagg_build_info"]}
        # A node without a cluster that has just been given one is not missing.
        named = {name for _, name in there}
        missed = [place for place in seen - there if place[0] or place[1] not in named]
        return replace(reading_of(series, at), missed_nodes=_names(missed, there))

    def _recent_nodes(self, at: float) -> set[tuple[str, str]]:
        """The nodes present in the last minutes, each by its cluster and name."""
        builds = _selector(["disagg_build_info"], self._cluster | self._node)
        asked = f"last_over_time({builds}[{_MISSED_MINUTES}m])"
        found = self._prometheus.query_range(asked, at, at, WINDOW_SECONDS, _DEADLINE_SECONDS)
        return {_placed(each.labels) for each in found if node_of(each.labels)}

    def _why_none(self, seen: Collection[tuple[str, str]]) -> str:
        chosen = _matchers(self._cluster | self._node)
        what = f"{self._url} has no series of a disagg-node{f' with {chosen}' if chosen else ''}"
        if not seen:
            return f"{what}: does it scrape the nodes' /metrics?"
        names = ", ".join(_names(seen))
        return (
            f"{what} now, and had some of {names} in the last {_MISSED_MINUTES} minutes: "
            "do the daemons there run?"
        )

    def _ask(
        self, expression: str, start: float, end: float, step: float
    ) -> Mapping[float, Mapping[str, list[Sample]]]:
        """The series at each step."""
        answer = self._prometheus.query_range(expression, start, end, step, _DEADLINE_SECONDS)
        found: dict[float, dict[str, list[Sample]]] = {}
        for each in answer:
            _collect(each, found)
        return found


def _placed(labels: Mapping[str, str]) -> tuple[str, str]:
    return labels.get("cluster", ""), node_of(labels)


def _names(
    nodes: Collection[tuple[str, str]], others: Collection[tuple[str, str]] = ()
) -> tuple[str, ...]:
    """Names of nodes, with their clusters where another node has the same name."""
    count = Counter(name for _, name in {*nodes, *others})
    return tuple(
        sorted(
            f"{cluster}/{name}" if cluster and count[name] > 1 else name for cluster, name in nodes
        )
    )


def _collect(samples: Samples, found: dict[float, dict[str, list[Sample]]]) -> None:
    name = samples.labels.get("__name__", "")
    for at, value in samples.values:
        found.setdefault(at, {}).setdefault(name, []).append(Sample(samples.labels, value))


def _selector(names: Sequence[str], labels: Mapping[str, str]) -> str:
    chosen = _matchers(labels)
    return f'{{__name__=~"{"|".join(names)}"{"," if chosen else ""}{chosen}}}'


def _matchers(labels: Mapping[str, str]) -> str:
    return ",".join(matcher(name, value) for name, value in labels.items())
