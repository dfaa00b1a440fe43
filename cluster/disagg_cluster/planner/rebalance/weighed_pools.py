"""The two pools of one model with forecast needs and measured use.

Needs come from capacity estimates that may be wrong, while use is measured. So the present level is
taken from measurements, and its change from the needs.

The use of decode is not proportional to load: a larger batch takes longer steps, so requests stay
longer. By Little's law, an engine at the share u of its full batch, whose step takes at least the
fraction f of a full one and grows linearly from there, completes u / (f + (1 - f) u) of its full
load. That quantity is divided among engines and grows with the load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from disagg_cluster.planner.history.load_series import Floats
from disagg_cluster.planner.rebalance.move_gain import MoveCost
from disagg_cluster.planner.rebalance.split_needs import RoleSplit, SplitNeeds
from disagg_exporter.model import Role

FULL_RATIO = 0.9
"""A pool that uses so much of its capacity may need any number of further engines."""
SHORT_RATIO = 0.8
"""A pool that will use less at most is not short, even if its estimated needs are higher."""
_DOUBTED_FACTOR = 1.5
"""If a pool that is not full supposedly needs so many times the engines that its load fills, its
learned capacity is wrong."""

_FAR_TOO_FULL = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class WeighedPools:
    """The two pools of one model: engines, forecast needs, and measured use.

    `capacity_used` is 1 where a pool serves as much as it can within its targets; roles that are
    not measured are absent.
    """

    split: RoleSplit
    needs: SplitNeeds
    cost: MoveCost
    capacity_used: Mapping[Role, float] = field(default_factory=dict)

    def within(self, seconds: float) -> WeighedPools:
        """The same with needs limited to the next `seconds`."""
        return replace(self, needs=self.needs.within(seconds))

    def needed_now(self, role: Role) -> float:
        """Engines that the present load needs by its capacity, as a mean over the futures."""
        return float(self._by_block(role)[0])

    def filled(self, role: Role) -> float | None:
        """Measured load in units of full engines; None if not measured."""
        used = self.capacity_used.get(role)
        return None if used is None else self._load_share(role, used) * self.split.of(role)

    def used_at(self, role: Role, load_factor: float) -> float | None:
        """Use of a pool if the load of each engine were multiplied by `load_factor`.

        None if not measured; at most `_FAR_TOO_FULL`.
        """
        used = self.capacity_used.get(role)
        if used is None:
            return None
        floor = self._floor(role)
        load = self._load_share(role, used) * load_factor
        left = 1 - load * (1 - floor)
        return min(_FAR_TOO_FULL, load * floor / left) if left > 0 else _FAR_TOO_FULL

    def without_one(self, role: Role) -> float | None:
        """Use with one engine less; None if not measured, or if no engine were left."""
        engines = self.split.of(role)
        return None if engines < 2 else self.used_at(role, engines / (engines - 1))

    def used_at_most(self, role: Role) -> float | None:
        """Highest forecast use, extrapolated from the measured one; None if not measured."""
        return self.used_at(role, self.growth(role))

    def growth(self, role: Role) -> float:
        """Highest forecast need divided by the present need."""
        return float(self._by_block(role).max()) / max(self.needed_now(role), 1.0)

    def is_full(self, role: Role) -> bool:
        """Whether the pool is full as measured."""
        return self.capacity_used.get(role, 0.0) >= FULL_RATIO

    def is_doubted(self, role: Role) -> bool:
        """Whether measurements contradict its capacity: far fewer engines would suffice.

        Needs are whole engines with a margin for chance; a larger gap means a wrong capacity.
        """
        filled = self.filled(role)
        if filled is None or self.is_full(role):
            return False
        return self.needed_now(role) - 1 > _DOUBTED_FACTOR * filled

    def _floor(self, role: Role) -> float:
        return self.needs.step_floor if role is Role.DECODE else 1.0

    def _load_share(self, role: Role, used: float) -> float:
        floor = self._floor(role)
        return used / (floor + (1 - floor) * used)

    def _by_block(self, role: Role) -> Floats:
        found: Floats = self.needs.of(role).mean(axis=0)
        return found
