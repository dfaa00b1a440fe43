"""Steps that have begun and that no record reports yet (accounting A6).

A record is made when its step ends, so an engine that started a long prompt looks idle until then.
Its heartbeats may report requests in flight; otherwise its devices' activity may show the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from disagg_exporter.accounting.devices.device_account import DeviceLedger
from disagg_exporter.accounting.intervals.activity import TRAIL_NS
from disagg_exporter.accounting.intervals.rules import Rules
from disagg_exporter.model import SECOND_NS

# Each process sends its own heartbeat once a second.
_FRESH_NS = 3 * SECOND_NS
# Processes find a new daemon at their next heartbeat; one that has not by then has ended.
_REUNION_NS = 10 * SECOND_NS


class InFlight(NamedTuple):
    """Requests in flight by a heartbeat, and requests left by the engine's last records.

    `requests`: those that the process `pid` has handed to the engine and not got back; None if it
    does not report them. `recorded`: those left by the last records, the newest of which was made
    at `recorded_ns`; this rank's last record was made at `own_recorded_ns`. `resting`: after these
    records no rank has work. `alone`: the engine has no other rank.
    """

    pid: int
    requests: int | None
    recorded: int
    recorded_ns: int
    own_recorded_ns: int
    resting: bool = True
    alone: bool = True


def any_active(
    devices: Iterable[DeviceLedger], recorded_ns: int, t_ns: int, rules: Rules
) -> bool | None:
    """Return whether an engine's devices have recently been active after its last record.

    None if that is unknown or another engine may have caused it.
    """
    # Activity that the last step may still cause is no sign of another step.
    after_ns = max(recorded_ns + TRAIL_NS, t_ns - rules.packing_delay_ns)
    known = {device.active_since(after_ns) for device in devices} - {None}
    return any(known) if known else None


class AwaitedSteps:
    """Decides at each heartbeat whether an engine that looks idle may be computing a step.

    Args:
        pids: The processes that the previous daemon knew: until all have reported their requests,
            one of them may be waiting for a step.
    """

    def __init__(self, pids: Iterable[int] = ()) -> None:
        self._unheard = set(pids)
        self._resumed_ns: int | None = None
        self._requests: dict[int, tuple[int, int]] = {}
        self._promised_ns: int | None = None
        self._active_since_ns: dict[int, int] = {}

    def hear(self, pid: int, t_ns: int) -> None:
        """Note that a process has found this daemon by `t_ns`."""
        self._unheard.discard(pid)
        self._resumed_ns = self._resumed_ns or t_ns

    def ingest(self, t_ns: int, report: InFlight) -> None:
        """Ingest a heartbeat made at `t_ns`; requests older than the last record are ignored."""
        self.hear(report.pid, t_ns)
        if report.requests is None or t_ns <= report.recorded_ns:
            return
        since_ns = max(report.recorded_ns, t_ns - _FRESH_NS)
        self._requests = {pid: one for pid, one in self._requests.items() if one[0] > since_ns}
        self._requests[report.pid] = t_ns, report.requests
        in_flight = sum(requests for _, requests in self._requests.values())
        # Which of several ranks has a request is not reported: while one works, it is that one's.
        if in_flight > report.recorded and (report.resting or report.alone):
            self._promised_ns = t_ns

    def awaits(
        self,
        rank: int,
        t_ns: int,
        report: InFlight,
        read_active: Callable[[], bool | None],
        rules: Rules,
    ) -> bool:
        """Return whether a step of a rank that began before `t_ns` may be under way.

        `read_active` returns whether its devices have been active since its last record; None if
        that is unknown or another engine may have caused it.
        """
        promised_ns = self._promised_ns
        if promised_ns is not None and promised_ns <= report.recorded_ns:
            promised_ns = None
        if promised_ns is not None and promised_ns >= t_ns:
            return report.alone or read_active() is not False
        if promised_ns is not None:
            # The requests were withdrawn; their step continues.
            active = read_active()
            patience_ns = rules.withdrawn_ns if active is None else rules.unclaimed_ns
            return active is not False and t_ns - promised_ns <= patience_ns
        if self._unheard and self._resumed_ns is not None:
            if t_ns - self._resumed_ns <= _REUNION_NS:
                return True
            self._unheard.clear()
        if report.requests is not None and (report.alone or report.resting):
            return False
        since_ns = self._active_since_ns.pop(rank, t_ns)
        if not read_active():
            return False
        since_ns = since_ns if since_ns > report.own_recorded_ns else t_ns
        self._active_since_ns[rank] = since_ns
        return t_ns - since_ns <= rules.unclaimed_ns
