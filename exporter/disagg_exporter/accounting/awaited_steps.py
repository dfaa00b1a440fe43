"""Steps that have begun and that no record reports yet (accounting A6).

A record is made when its step ends, so an engine that took a long prompt looks at rest until then.
Its heartbeats may say that somebody waits for it; else its devices may show that they work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from disagg_exporter.accounting.devices.device_account import DeviceLedger
from disagg_exporter.accounting.intervals.activity import TRAIL_NS
from disagg_exporter.accounting.intervals.rules import SECOND_NS, Rules

# Processes beat once a second, each for itself.
_FRESH_NS = 3 * SECOND_NS
# They find a new daemon at their next beat; one that has not by then has ended.
_REUNION_NS = 10 * SECOND_NS


class InFlight(NamedTuple):
    """What a heartbeat reports of requests in flight, and its engine's records of requests left.

    `requests` are those that the process `pid` has handed to the engine and not got back, None
    where it does not say; `recorded` are those that the last records left, and `recorded_ns` is
    when the last of them was made, `own_recorded_ns` when the last of this rank was. `resting`:
    they left no rank anything to do. `alone`: the engine has no other rank.
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
    """Say whether an engine's devices have lately been active after its last record.

    None where that is not known, or may be another engine's doing.
    """
    # What its last step may still show is no sign of another.
    after_ns = max(recorded_ns + TRAIL_NS, t_ns - rules.packing_delay_ns)
    known = {device.active_since(after_ns) for device in devices} - {None}
    return any(known) if known else None


class AwaitedSteps:
    """Whether an engine at rest may be at work on a step, judged at each of its heartbeats.

    Args:
        pids: The processes that the daemon before knew: until all have said what they wait for, one
            of them may wait for a step.
    """

    def __init__(self, pids: Iterable[int] = ()) -> None:
        self._unheard = set(pids)
        self._resumed_ns: int | None = None
        self._requests: dict[int, tuple[int, int]] = {}
        self._promised_ns: int | None = None
        self._active_since_ns: dict[int, int] = {}

    def ingest(self, t_ns: int, report: InFlight) -> None:
        """Ingest a heartbeat of `t_ns`; one that is older than the last record says nothing new."""
        self._unheard.discard(report.pid)
        self._resumed_ns = self._resumed_ns or t_ns
        if report.requests is None or t_ns <= report.recorded_ns:
            return
        since_ns = max(report.recorded_ns, t_ns - _FRESH_NS)
        self._requests = {pid: one for pid, one in self._requests.items() if one[0] > since_ns}
        self._requests[report.pid] = t_ns, report.requests
        in_flight = sum(requests for _, requests in self._requests.values())
        # Of several ranks nobody says which has a request: while one works, it is that one's.
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
        """Say whether a step of a rank may be under way that began before `t_ns`.

        `read_active` says whether its devices have been active since its last record; None where
        that is not known, or may be another engine's doing.
        """
        promised_ns = self._promised_ns
        if promised_ns is not None and promised_ns <= report.recorded_ns:
            promised_ns = None
        if promised_ns is not None and promised_ns >= t_ns:
            return report.alone or read_active() is not False
        if promised_ns is not None:
            # Who waited has gone; the step goes on.
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
