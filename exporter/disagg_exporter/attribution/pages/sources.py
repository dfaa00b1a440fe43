"""The choice of an engine's source; windows of engines that expose nothing themselves."""

from __future__ import annotations

from collections.abc import Mapping

from disagg_exporter.model import Method, Phase, Role, WorkWindow

PATIENCE_NS = 10_000_000_000
"""How long the source in use may be silent before a worse one takes over.

Steps come with a heartbeat a second, pages are scraped once a second, and an engine that loads
or captures graphs may stall for some seconds without being lost.
"""

BEST_FIRST = tuple(method for method in Method if method is not Method.NONE)

LastReceived = Mapping[Method, int]
"""When something was last received from each source, in nanoseconds of CLOCK_MONOTONIC."""


def choose_source(current: Method, received: LastReceived, now_ns: int) -> Method:
    """Return the source to account for an engine by from now on.

    A better source than the present one is used as soon as it reports; a worse one when the present
    one has been silent for `PATIENCE_NS`. If none reports, the source stays.
    """
    fresh = {method for method, t_ns in received.items() if now_ns - t_ns <= PATIENCE_NS}
    return next((method for method in BEST_FIRST if method in fresh), current)


def role_window(role: Role, start_ns: int, end_ns: int) -> WorkWindow | None:
    """Return the window of an engine that exposes nothing: all activity is of its role's phase.

    None if the role is neither prefill nor decode.
    """
    if role not in (Role.PREFILL, Role.DECODE):
        return None
    share = 1.0 if role is Role.PREFILL else 0.0
    return WorkWindow(start_ns, end_ns, Method.ROLE, share)


# Long enough to include many steps, short enough to follow changes of the load.
LEAST_SECONDS = 5.0


class LeaderShare:
    """The prefill share of a leader on this node, by its account; None while unknown."""

    def __init__(self) -> None:
        self.prefill_share: float | None = None
        self._before: dict[Phase, float] | None = None

    def ingest(self, gpu_seconds: Mapping[tuple[Role, Phase], float]) -> None:
        """Ingest the leader's seconds so far; the share is over at least `LEAST_SECONDS`."""
        now = dict.fromkeys(Phase, 0.0)
        for (_, phase), seconds in gpu_seconds.items():
            now[phase] += seconds
        before = self._before
        if before is None or any(now[phase] < before[phase] for phase in Phase):
            self._before = now
            return
        used = {phase: now[phase] - before[phase] for phase in Phase}
        total = sum(used.values())
        if total >= LEAST_SECONDS:
            self.prefill_share = used[Phase.PREFILL] / total
            self._before = now
