"""Diagnosis rounds on their own schedule, so that no forecast or plan delays them."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from disagg_cluster.planner.advice.cluster_plan import check_one_cluster
from disagg_cluster.planner.diagnose.verdict.values import ModelDiagnosis
from disagg_cluster.planner.service.planner_state import (
    FRESH_INTERVALS,
    DiagnosisRound,
    PlannerState,
)
from disagg_exporter.collectors.health import CollectorHealth

_log = logging.getLogger("disagg_node")
_REST_PER_ROUND = 4.0
"""Rest after a round, in round durations: at most a fifth of a core is used."""


class DiagnosisRounds:
    """Runs diagnosis rounds, and keeps their results for the page.

    Args:
        diagnose: Reads new samples and returns a diagnosis of each model.
        every_seconds: Interval between rounds; longer if rounds take long.
        now_ns: The clock of the page.
    """

    def __init__(
        self,
        diagnose: Callable[[float], tuple[ModelDiagnosis, ...]],
        every_seconds: float,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._diagnose = diagnose
        self._every_seconds = every_seconds
        self._now_ns = now_ns
        self._health = CollectorHealth("planner:diagnosis", _log)
        self._last = DiagnosisRound()

    def added_to(self, state: PlannerState) -> PlannerState:
        """Return the planner's state with the last diagnosis and the health of its rounds."""
        if not self._health.tried:
            return state
        status = self._health.status()
        failures = Counter(state.unexpected_failures)
        failures["planner"] += status.unexpected_failures
        return replace(
            state,
            diagnosis=self._last,
            collectors=(*state.collectors, status),
            unexpected_failures=failures,
        )

    def run_round(self, now_seconds: float) -> float:
        """Run a round; return how many seconds later the next one is due.

        A failure is shown as the collector `planner:diagnosis`, and the last result is kept.
        """
        began_ns = self._now_ns()
        with self._health.round():
            found = self._diagnose(now_seconds)
            check_one_cluster(each.model.cluster for each in found)
            took_seconds = (self._now_ns() - began_ns) / 1e9
            interval_seconds = max(self._every_seconds, (1 + _REST_PER_ROUND) * took_seconds)
            fresh_ns = began_ns + int(FRESH_INTERVALS * interval_seconds * 1e9)
            self._last = DiagnosisRound(now_seconds, fresh_ns, found)
        took_seconds = (self._now_ns() - began_ns) / 1e9
        return max(self._every_seconds - took_seconds, _REST_PER_ROUND * took_seconds)

    def run(self, ending: threading.Event) -> None:
        """Run rounds until `ending` is set."""
        while not ending.is_set():
            ending.wait(self.run_round(time.time()))
