"""How an engine's time divides between the phases of late, for its parts that cannot tell."""

from __future__ import annotations

from collections.abc import Mapping

from disagg_exporter.model import Phase, Role

# Long enough for a share of many steps, short enough for a change of the load.
LEAST_SECONDS = 5.0


class LeadersShare:
    """Follows the books of a leader that is on this node; `prefill_share` is None before any."""

    def __init__(self) -> None:
        self.prefill_share: float | None = None
        self._before: dict[Phase, float] | None = None

    def take(self, gpu_seconds: Mapping[tuple[Role, Phase], float]) -> None:
        """Take what the leader has used up to now; less than `LEAST_SECONDS` more is waited for."""
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
