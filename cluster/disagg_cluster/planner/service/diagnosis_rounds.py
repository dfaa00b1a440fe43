"""Diagnoses on a clock of their own, so that no forecast or plan delays them."""

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
"""So many times as long as a round took nothing is done after it: a fifth of a core at most."""


class DiagnosisRounds:
    """Makes rounds, and keeps what the page shows of them.

    Args:
        diagnose: Reads what is new and says of each model what holds it back.
        every_seconds: From one round to the next; longer where rounds take long.
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

    def beside(self, state: PlannerState) -> PlannerState:
        """What the planner knows, with what was found and how the rounds go."""
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

    def take(self, now_seconds: float) -> float:
        """Make a round; return how many seconds later the next one is due.

        What fails is shown as the collector `planner:diagnosis`, and leaves what was known.
        """
        began_ns = self._now_ns()
        with self._health.round():
            found = self._diagnose(now_seconds)
            check_one_cluster(each.model.cluster for each in found)
            took_seconds = (self._now_ns() - began_ns) / 1e9
            lasting = max(self._every_seconds, (1 + _REST_PER_ROUND) * took_seconds)
            fresh_ns = began_ns + int(FRESH_INTERVALS * lasting * 1e9)
            self._last = DiagnosisRound(now_seconds, fresh_ns, found)
        took_seconds = (self._now_ns() - began_ns) / 1e9
        return max(self._every_seconds - took_seconds, _REST_PER_ROUND * took_seconds)

    def run(self, ending: threading.Event) -> None:
        """Make rounds until told to end."""
        while not ending.is_set():
            ending.wait(self.take(time.time()))
