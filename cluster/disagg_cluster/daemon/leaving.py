"""Texts about starting and draining workers, and the summary at the end.

Pure: computed from snapshots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from disagg_cluster.config import Attach
from disagg_cluster.host.spans import duration_text
from disagg_exporter.landing.problems import waiting_text
from disagg_exporter.landing.served import totals_of, users_arrivals
from disagg_exporter.model import (
    MICROJOULES_PER_JOULE,
    SLICE_NS_PER_GPU_SECOND,
    Snapshot,
    Use,
)
from disagg_exporter.model.counted import agreeing, counted

FIRST_SECONDS = 2.0
EVERY_SECONDS = 10.0
_JOULES_PER_WATT_HOUR = 3600.0
_LEAST_GPU_SECONDS = 1.0  # below this a ratio is absent (docs/accounting.md, A8)
_LEFT_RATIO = 0.1  # of all GPU-seconds; above it, a summary says how many are missing
_LINE_CHARACTERS = 120
_AT_REST = ("stopped", "backoff", "failed")  # without a process that could finish anything


class WaitReports:
    """Reports the remaining time of starting or draining workers, after 2 s and then every 10 s."""

    def __init__(self) -> None:
        self._reported: dict[str, tuple[str, float]] = {}

    def lines(
        self, snapshot: Snapshot, now_seconds: float, states: Mapping[str, str]
    ) -> Iterator[str]:
        """The lines due at a Unix time.

        Args:
            snapshot: The latest one, up to a second old.
            now_seconds: That time.
            states: The current state of each worker; a wait that has ended is not reported.
        """
        for worker in snapshot.workers:
            since = worker.since_timestamp_seconds
            waits = worker.state in ("starting", "draining")
            if not waits or since is None or states.get(worker.worker) != worker.state:
                self._reported.pop(worker.worker, None)
                continue
            state, reported_seconds = self._reported.get(worker.worker, ("", 0.0))
            due = (
                since + FIRST_SECONDS if state != worker.state else reported_seconds + EVERY_SECONDS
            )
            if now_seconds < due:
                continue
            self._reported[worker.worker] = worker.state, now_seconds
            last = worker.last_lines[-1].strip()[:_LINE_CHARACTERS] if worker.last_lines else ""
            doing = {"draining": _requests(snapshot, worker.worker)}.get(worker.state, last)
            when = waiting_text(worker, now_seconds)
            yield f"{worker.worker}: {worker.state} {when}{f': {doing}' if doing else ''}"


def ending_text(snapshot: Snapshot | None, drain_seconds: float, *, leaves: bool) -> str:
    """The reply to a request to end.

    Args:
        snapshot: The latest one; None before the first.
        drain_seconds: How long workers may finish their requests.
        leaves: Whether the engines keep running.
    """
    workers = [w.worker for w in snapshot.workers if w.state not in _AT_REST] if snapshot else []
    if not workers:
        return "ending: no worker of ours runs; engines that others started go on"
    number = len(workers)
    if leaves:
        go, them = agreeing(number, "goes", "go"), agreeing(number, "it", "them")
        return f"ending: {counted(number, 'worker')} {go} on: the next daemon adopts {them}"
    running = [_running(snapshot, worker) for worker in workers] if snapshot else []
    known = [count for count in running if count is not None]
    requests = f" ({counted(round(sum(known)), 'running request')})" if known else ""
    their, end = agreeing(number, "its", "their"), agreeing(number, "it ends", "they end")
    return (
        f"ending: {counted(number, 'worker')} may finish {their} requests{requests} for up to "
        f"{duration_text(drain_seconds)}, then {end}; a second Ctrl-C waits for none"
    )


def nothing_found_text(attach: Attach | None) -> str:
    """The message when no engine was found: what was looked for, and where."""
    if attach is None:
        return "no engine runs: the node file names no worker, and no `attach:` to look for any"
    looked = [engine.name or engine.url for engine in attach.endpoints]
    if attach.processes:
        looked.append("this machine's processes, for vLLM, SGLang, TensorRT-LLM and Dynamo")
    if attach.kubernetes != "never":
        looked.append("the pods of this node")
    if attach.dynamo_files:
        looked.append(f"Dynamo's workers in {attach.dynamo_files}")
    where = "; ".join(looked) or "nowhere, as `attach:` switches all of it off"
    return (
        f"no engine was found yet. Looked at: {where}. It goes on looking; `disagg-node doctor` "
        "says what is missing, `disagg-node init` writes a node file that launches engines"
    )


def summary_text(first: Snapshot, last: Snapshot) -> str:
    """GPU-seconds by phase, their ratio, requests and energy between two snapshots."""
    before, after = _seconds(first), _seconds(last)
    spent = {use: max(0.0, after[use] - before[use]) for use in Use}
    prefill, decode = spent[Use.PREFILL], spent[Use.DECODE]
    length_seconds = (last.taken_ns - first.taken_ns) / 1e9
    committed = sum(spent.values())
    parts = [
        f"in {duration_text(length_seconds)}: prefill {prefill:.1f} + decode {decode:.1f} of "
        f"{committed:.1f} GPU-seconds"
        f"{_uncommitted_note(committed, len(last.devices), length_seconds)}"
    ]
    if prefill + decode >= _LEAST_GPU_SECONDS and decode > 0:
        parts.append(f"P:D {prefill / decode:.2f}")
    if (requests := _arrived(first, last)) is not None:
        parts.append(counted(round(requests), "request"))
    if (joules := _joules(last)) is not None:
        watt_hours = max(0.0, joules - (_joules(first) or 0.0)) / _JOULES_PER_WATT_HOUR
        parts.append(f"{watt_hours:.1f} Wh")
    return ", ".join(parts)


def _arrived(first: Snapshot, last: Snapshot) -> float | None:
    """Requests between two snapshots; None where nothing counts them.

    Of a model whose best source had not reported before, the counts cannot be subtracted.
    """
    before, after = totals_of(first).arrivals, users_arrivals(totals_of(last))
    models = {key.model for key in before}
    arrived = [
        max(0.0, count - before.get(key, 0.0))
        for key, count in after.items()
        if key in before or key.model not in models
    ]
    return sum(arrived) if arrived else None


def _uncommitted_note(committed: float, gpus: int, length_seconds: float) -> str:
    """A note for short runs: the last seconds are not committed, records may still come (A6)."""
    left = gpus * length_seconds - committed
    if left <= _LEFT_RATIO * gpus * length_seconds:
        return ""
    last = f"the last {left / gpus:.0f} s of each GPU"
    return f" ({last} are not in it: records of them might still have come)"


def _seconds(snapshot: Snapshot) -> dict[Use, float]:
    seconds = dict.fromkeys(Use, 0.0)
    for account in (*snapshot.accounts, *snapshot.removed_accounts):
        for cell, slice_ns in account.slice_ns.items():
            seconds[cell.use] += slice_ns / SLICE_NS_PER_GPU_SECOND
    return seconds


def _joules(snapshot: Snapshot) -> float | None:
    known = [a.microjoules for a in snapshot.accounts if a.microjoules is not None]
    if not known:
        return None
    return sum(sum(cells.values()) for cells in known) / MICROJOULES_PER_JOULE


def _requests(snapshot: Snapshot, worker: str) -> str:
    running = _running(snapshot, worker)
    return "" if running is None else counted(round(running), "running request")


def _running(snapshot: Snapshot | None, worker: str) -> float | None:
    """The worker's running requests from its steps, or else from its metrics page."""
    if snapshot is None:
        return None
    by_steps = {account.engine: account.running for account in snapshot.engine_accounts}
    pages = {engine.engine: engine.page for engine in snapshot.engines}
    page = pages.get(worker)
    running = by_steps.get(worker)
    return running if running is not None or page is None else page.running
