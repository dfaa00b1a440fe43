"""The rules that split engines between roles: our rebalancer, and those it is compared with.

All have the same eight engines, and every move takes equally long: an engine drains, then starts.
The other rules are those of bench-plan: once unchanged, bounded by the available GPUs, and once
with their requested ratio applied to all GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bench.plan.profile import STEP_MINUTES, Lookahead, Profile
from bench.plan.rules import Engines
from bench.plan.truth import DRAIN_MINUTES, LEAD_MINUTES, ModelTruth
from bench.rebalance.loads import ENGINES
from bench.rebalance.measured import MeasuredPools

from disagg_cluster.planner.plan.schedule import PlanCosts
from disagg_cluster.planner.plan.worker_option import block_needs, step_mix
from disagg_cluster.planner.rebalance.decision import Move, decide
from disagg_cluster.planner.rebalance.limits import RebalanceLimits
from disagg_cluster.planner.rebalance.move_gain import MoveCost
from disagg_cluster.planner.rebalance.move_log import MoveLog
from disagg_cluster.planner.rebalance.pool_pair import step_floor
from disagg_cluster.planner.rebalance.split_needs import RoleSplit, SplitNeeds
from disagg_cluster.planner.rebalance.weighed_pools import WeighedPools
from disagg_exporter.model import Role

HALF = RoleSplit(ENGINES // 2, ENGINES // 2)
COST = MoveCost(60.0 * (DRAIN_MINUTES + LEAD_MINUTES))
_STABLE_MINUTES = 5


class Acting:
    """Our rebalancer in `act`, deciding every five minutes, as the planner's service does.

    `moves` are the minutes at which moves were begun.
    """

    def __init__(self, profile: Profile, limits: RebalanceLimits) -> None:
        self._profile = profile
        self._limits = limits
        self._ahead = Lookahead(profile)
        self._split = HALF
        self._log = MoveLog()
        self._measured = MeasuredPools(profile)
        self.moves: list[int] = []

    def desired(self, minute: int, models: Sequence[ModelTruth]) -> Engines:
        """Return the current split, or that of a move that begins now."""
        (model,) = models
        there = RoleSplit(model.prefill.serving, model.decode.serving)
        if self._log.under_way and there == self._split:
            self._log = self._log.ended(minute * 60.0)
        if minute:
            self._measured.measure(model)
        # Like the service, it decides only once capacity used has been measured.
        if minute and minute % STEP_MINUTES == 0:
            self._decide(minute)
        return ((self._split.prefill, self._split.decode),)

    def _decide(self, minute: int) -> None:
        paths = self._ahead.paths(0, minute)
        needs, like = [], self._measured.like(minute)
        for option in self._profile.options[0]:
            found = block_needs(option, paths, like)
            if not hasattr(found, "shape"):
                raise SystemExit(found.reason)
            needs.append(found)
        floor = step_floor(self._profile.options[0][1], step_mix(paths, 0, like))
        pair = WeighedPools(
            self._split,
            SplitNeeds(needs[0], needs[1], paths.step_seconds, floor),
            COST,
            self._measured.capacity_used,
        )
        now_seconds = minute * 60.0
        decision = decide(pair, self._limits, PlanCosts().short_weight, self._log, now_seconds)
        if isinstance(decision, Move):
            self._split = self._split.moved(1 if decision.to_role is Role.DECODE else -1)
            self._log = self._log.begun(now_seconds, decision.to_role, undoes=decision.undoes)
            self.moves.append(minute)


class RatioRule(Protocol):
    """Requests a number of prefill engines for one decode engine."""

    def ratio(self, minute: int) -> float:
        """Return the ratio by arrivals until now."""


class FixedRatioOverAll:
    """HeteroScale's ratio: that of a profile at the mean lengths of the days before."""

    def __init__(self, profile: Profile) -> None:
        self._ratio = profile.ratio[0]

    def ratio(self, minute: int) -> float:
        """Return the fixed ratio."""
        return self._ratio


class VelocityOverAll:
    """TokenScale's ratio: by the engines that each stage needs for the last minute's arrivals."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile

    def ratio(self, minute: int) -> float:
        """Return the ratio by what an engine of each stage passes."""
        mix = self._profile.mix(0, minute, 1)
        prefill, decode = (self._profile.rate_each(0, role, mix) for role in range(2))
        return decode / prefill


class Spread:
    """Applies a rule's ratio to all engines once it was requested for five minutes."""

    def __init__(self, rule: RatioRule) -> None:
        self._rule = rule
        self._split = HALF
        self._last: list[RoleSplit] = []

    def desired(self, minute: int, models: Sequence[ModelTruth]) -> Engines:
        """Return whole engines, at least one of each role."""
        ratio = self._rule.ratio(minute)
        prefill = min(ENGINES - 1, max(1, round(ENGINES * ratio / (1 + ratio))))
        self._last = [*self._last[1 - _STABLE_MINUTES :], RoleSplit(prefill, ENGINES - prefill)]
        if len(set(self._last)) == 1:
            self._split = self._last[0]
        return ((self._split.prefill, self._split.decode),)
