"""Turns one snapshot into the rows of its page."""

from __future__ import annotations

from collections.abc import Callable

import disagg_exporter
from disagg_exporter.metrics.device_rows import write_accounts, write_devices
from disagg_exporter.metrics.engine_rows import write_capacity, write_engines
from disagg_exporter.metrics.family import MetricRows
from disagg_exporter.metrics.node_rows import write_node, write_router
from disagg_exporter.metrics.request_rows import write_requests
from disagg_exporter.metrics.serving_rows import write_latency
from disagg_exporter.model import Snapshot

_WRITERS: tuple[Callable[[MetricRows, Snapshot], None], ...] = (
    write_devices,
    write_accounts,
    write_node,
    write_engines,
    write_capacity,
    write_latency,
    write_requests,
    write_router,
)


def is_fresh(snapshot: Snapshot | None, now_ns: int) -> bool:
    """Return whether readings and accounts may still be shown."""
    return snapshot is not None and now_ns <= snapshot.fresh_until_ns


def rows_of(snapshot: Snapshot | None, now_ns: int) -> MetricRows:
    """Return the rows of a page.

    Args:
        snapshot: What to show; None before there is one, which leaves the build information.
        now_ns: The present, on the snapshot's clock. Later than `fresh_until_ns`, only workers,
            collectors and build are left: absent numbers, not frozen ones.
    """
    rows = MetricRows()
    rows.set("disagg_build_info", 1, disagg_exporter.__version__)
    if snapshot is not None:
        _write_lasting(rows, snapshot)
        for write in _WRITERS if is_fresh(snapshot, now_ns) else ():
            write(rows, snapshot)
    return rows


def _write_lasting(rows: MetricRows, snapshot: Snapshot) -> None:
    if snapshot.simulated:
        rows.set("disagg_simulated_info", 1)
    for worker in snapshot.workers:
        for state in dict.fromkeys((*snapshot.worker_states, worker.state)):
            rows.set("disagg_worker_state", float(state == worker.state), worker.worker, state)
        rows.set("disagg_worker_restarts_total", worker.restarts, worker.worker)
        rows.set("disagg_worker_paused", float(worker.paused), worker.worker)
        rows.set("disagg_worker_drained", float(worker.drained), worker.worker)
        start = worker.start_timestamp_seconds
        rows.set("disagg_worker_start_timestamp_seconds", start, worker.worker)
        following = worker.next_start_timestamp_seconds
        rows.set("disagg_worker_next_start_timestamp_seconds", following, worker.worker)
    for (verb, outcome), count in snapshot.daemon_counts.control_requests.items():
        rows.set("disagg_control_requests_total", count, verb, outcome)
    for reason, count in snapshot.daemon_counts.control_refusals.items():
        rows.set("disagg_control_refusals_total", count, reason)
    _write_reassigned(rows, snapshot)
    for reason, count in snapshot.daemon_counts.http_refusals.items():
        rows.set("disagg_http_refusals_total", count, reason)
    restores = snapshot.daemon_counts.run_folder_restores
    rows.set("disagg_run_folder_restores_total", restores)
    for outcome, count in snapshot.daemon_counts.hook_events.items():
        rows.set("disagg_failure_hook_events_total", count, outcome)
    for name, value in snapshot.process.items():
        rows.set(name, value)
    for kind, count in snapshot.unexpected_failures.items():
        rows.set("disagg_collector_unexpected_failures_total", count, kind)
    for status in snapshot.collectors:
        name, last = status.collector, status.last_success_timestamp_seconds
        rows.set("disagg_collector_success", float(status.success), name)
        rows.set("disagg_collector_duration_seconds", status.duration_seconds, name)
        rows.set("disagg_collector_last_success_timestamp_seconds", last, name)


def _write_reassigned(rows: MetricRows, snapshot: Snapshot) -> None:
    for each in snapshot.daemon_counts.reassigned:
        for outcome in ("done", "rolled_back", "failed"):
            count = each.outcomes.get(outcome, 0)
            rows.set("disagg_reassign_moves_total", count, each.worker, outcome)
        rows.set("disagg_reassign_unproven_total", each.unproven, each.worker)
        for part, seconds in (
            ("drain", each.drain_seconds),
            ("downtime", each.downtime_seconds),
            ("effect", each.effect_seconds),
        ):
            rows.set(f"disagg_reassign_{part}_seconds", seconds, each.worker, each.role)
