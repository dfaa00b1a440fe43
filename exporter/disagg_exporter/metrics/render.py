"""One snapshot, turned into metric families."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

import disagg_exporter
from disagg_exporter.metrics.device_rows import write_accounts, write_devices
from disagg_exporter.metrics.engine_rows import write_capacity, write_engines, write_latency
from disagg_exporter.metrics.family import Family, Labels, MetricRows, MetricType
from disagg_exporter.metrics.node_rows import write_node, write_router
from disagg_exporter.metrics.table import FAMILIES
from disagg_exporter.model import Histogram, Snapshot

_WRITERS: tuple[Callable[[MetricRows, Snapshot], None], ...] = (
    write_devices,
    write_accounts,
    write_node,
    write_engines,
    write_capacity,
    write_latency,
    write_router,
)


def is_fresh(snapshot: Snapshot | None, now_ns: int) -> bool:
    """Whether readings and accounts may still be shown."""
    return snapshot is not None and now_ns <= snapshot.fresh_until_ns


def rows_of(snapshot: Snapshot | None, now_ns: int) -> MetricRows:
    """Return the rows of a page.

    Args:
        snapshot: What to show; None before there is one, which leaves the build's own facts.
        now_ns: The present, on the snapshot's clock. Later than `fresh_until_ns`, only
            workers, collectors and build are left: absent numbers, not frozen ones.
    """
    rows = MetricRows()
    rows.set("disagg_build_info", 1, disagg_exporter.__version__)
    if snapshot is not None:
        _write_lasting(rows, snapshot)
        for write in _WRITERS if is_fresh(snapshot, now_ns) else ():
            write(rows, snapshot)
    return rows


def render(snapshot: Snapshot | None, now_ns: int) -> Iterator[Metric]:
    """Yield the families of the page that `rows_of` describes."""
    return families_of(rows_of(snapshot, now_ns))


def families_of(rows: MetricRows) -> Iterator[Metric]:
    """Yield the families of a page in the order of the table; a family without rows is absent."""
    for family in FAMILIES:
        if samples := rows.samples.get(family.name):
            yield _metric(family, samples)
        elif histograms := rows.histograms.get(family.name):
            yield _histogram(family, histograms)


def _write_lasting(rows: MetricRows, snapshot: Snapshot) -> None:
    if snapshot.simulated:
        rows.set("disagg_simulated_info", 1)
    for worker in snapshot.workers:
        for state in dict.fromkeys((*snapshot.worker_states, worker.state)):
            rows.set("disagg_worker_state", float(state == worker.state), worker.worker, state)
        rows.set("disagg_worker_restarts_total", worker.restarts, worker.worker)
        rows.set("disagg_worker_paused", float(worker.paused), worker.worker)
        start = worker.start_timestamp_seconds
        rows.set("disagg_worker_start_timestamp_seconds", start, worker.worker)
        following = worker.next_start_timestamp_seconds
        rows.set("disagg_worker_next_start_timestamp_seconds", following, worker.worker)
    for (verb, outcome), count in snapshot.daemon_counts.control_requests.items():
        rows.set("disagg_control_requests_total", count, verb, outcome)
    for reason, count in snapshot.daemon_counts.http_refusals.items():
        rows.set("disagg_http_refusals_total", count, reason)
    restores = snapshot.daemon_counts.run_folder_restores
    rows.set("disagg_run_folder_restores_total", restores)
    for outcome, count in snapshot.daemon_counts.hook_events.items():
        rows.set("disagg_failure_hook_events_total", count, outcome)
    for kind, count in snapshot.unexpected_failures.items():
        rows.set("disagg_collector_unexpected_failures_total", count, kind)
    for status in snapshot.collectors:
        name, last = status.collector, status.last_success_timestamp_seconds
        rows.set("disagg_collector_success", float(status.success), name)
        rows.set("disagg_collector_duration_seconds", status.duration_seconds, name)
        rows.set("disagg_collector_last_success_timestamp_seconds", last, name)


def _metric(family: Family, samples: dict[Labels, float]) -> Metric:
    metric: CounterMetricFamily | GaugeMetricFamily
    if family.kind is MetricType.COUNTER:
        metric = CounterMetricFamily(
            family.name, family.help, None, family.labels, None, family.unit
        )
    elif family.kind is MetricType.GAUGE:
        metric = GaugeMetricFamily(family.name, family.help, None, family.labels, family.unit)
    else:
        return _info(family, samples)
    for labels, value in samples.items():
        metric.add_metric([_utf8(label) for label in labels], value)
    return metric


def _histogram(family: Family, histograms: dict[Labels, Histogram]) -> Metric:
    metric = HistogramMetricFamily(family.name, family.help, None, None, family.labels, family.unit)
    for labels, histogram in histograms.items():
        bounds = (*map(floatToGoString, histogram.bounds_seconds), "+Inf")
        buckets = list(zip(bounds, histogram.counts, strict=True))
        metric.add_metric([_utf8(label) for label in labels], buckets, histogram.sum_seconds)
    return metric


def _info(family: Family, samples: dict[Labels, float]) -> Metric:
    # InfoMetricFamily wants a mapping per row and hides the sample's name; a plain Metric of
    # its type says the same with the rows as they are.
    metric = Metric(family.name.removesuffix("_info"), family.help, "info")
    for labels, value in samples.items():
        texts = map(_utf8, labels)
        metric.add_sample(family.name, dict(zip(family.labels, texts, strict=True)), value)
    return metric


def _utf8(text: str) -> str:
    # One name with a lone surrogate (an odd file name) would fail the whole page when encoded.
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
