"""Moves that nodes report, whoever asked for them: a planner that just began made none itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from disagg_cluster.planner.history.history_queries import SampleSource, range_of
from disagg_cluster.planner.history.range_reader import RangeQueries
from disagg_cluster.planner.rebalance.pool_worker import WorkerId

_MOVES = "disagg_reassign_moves_total"
_STEP_SECONDS = 30.0
"""How exactly the end of a move is known."""


@dataclass(frozen=True, slots=True)
class ReportedMoves:
    """Reads when the workers' moves ended, made or not.

    Args:
        prometheus: The client.
        cluster: Their cluster; None for all.
        seconds: How far back.
        deadline_seconds: For the answer.
    """

    prometheus: RangeQueries
    cluster: str | None
    seconds: float
    deadline_seconds: float = 60.0

    def read(self, now_seconds: float) -> Mapping[WorkerId, tuple[float, ...]]:
        """The Unix times by worker, rising; workers without any are absent.

        Raises:
            PrometheusError: No answer in time, or a refusal.
        """
        # Several servers may scrape a node; counters that a new daemon began anew have fallen.
        by = "cluster, node, worker"
        counters = SampleSource(self.cluster).of(_MOVES)
        before = f"{counters} offset {range_of(_STEP_SECONDS)}"
        now, then = (f"sum by ({by}) (max by ({by}, outcome) ({of}))" for of in (counters, before))
        found: dict[WorkerId, list[float]] = defaultdict(list)
        for series in self.prometheus.query_range(
            f"{now} - {then} > 0",
            now_seconds - self.seconds,
            now_seconds,
            _STEP_SECONDS,
            self.deadline_seconds,
        ):
            worker = series.labels.get("node", ""), series.labels.get("worker", "")
            found[worker] += [at for at, moves in series.values for _ in range(round(moves))]
        return {worker: tuple(sorted(ends)) for worker, ends in found.items()}
