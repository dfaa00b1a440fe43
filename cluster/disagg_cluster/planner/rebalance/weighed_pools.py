"""The two pools of one model as they are weighed: what is foreseen, and what is measured of it.

Needs come from capacities that may be wrong; how full a pool is was seen. So a level is believed
of what is measured, and of needs how it will change.

How full decode is does not grow with the load: a larger batch takes longer steps, so that requests
stay longer. By Little's law an engine with the share u of its full batch, whose step takes the part
f of a full one at the least and the rest in proportion, ends u / (f + (1 - f) u) of the load that
it ends when full. That is what engines share, and what grows with the load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from disagg_cluster.planner.history.load_series import Floats
from disagg_cluster.planner.rebalance.move_gain import MoveCost
from disagg_cluster.planner.rebalance.split_needs import RoleSplit, SplitNeeds
from disagg_exporter.model import Role

FULL_RATIO = 0.9
"""A pool that uses so much of its capacity may need any number of engines more."""
SHORT_RATIO = 0.8
"""A pool that uses less is not short, whatever is foreseen of it."""
_DOUBTED_FACTOR = 1.5
"""A pool that is not full, and for whose load so many times the engines would be needed that it
fills, has another capacity than was learned."""

_FAR_TOO_FULL = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class WeighedPools:
    """The two pools of one model: engines, needs to come, and how full they are.

    `capacity_used` is measured, 1 where a pool serves all that it can within its targets; a role
    of which it is not known has none.
    """

    split: RoleSplit
    needs: SplitNeeds
    cost: MoveCost
    capacity_used: Mapping[Role, float] = field(default_factory=dict)

    def within(self, seconds: float) -> WeighedPools:
        """The same, foreseen no further ahead."""
        return replace(self, needs=self.needs.within(seconds))

    def needed_now(self, role: Role) -> float:
        """Engines by its capacity for the load of now, in the mean of the futures."""
        return float(self._by_block(role)[0])

    def filled(self, role: Role) -> float | None:
        """Engines' worth of load that it serves as measured; None where it is not measured."""
        used = self.capacity_used.get(role)
        return None if used is None else self._load_share(role, used) * self.split.of(role)

    def used_at(self, role: Role, load_factor: float) -> float | None:
        """How full it would be if each engine had so many times the load it has now.

        None where that is not measured. More than `_FAR_TOO_FULL` times full is not told apart.
        """
        used = self.capacity_used.get(role)
        if used is None:
            return None
        floor = self._floor(role)
        load = self._load_share(role, used) * load_factor
        left = 1 - load * (1 - floor)
        return min(_FAR_TOO_FULL, load * floor / left) if left > 0 else _FAR_TOO_FULL

    def without_one(self, role: Role) -> float | None:
        """How full it would be with an engine less; None if that is not known, or none was left."""
        engines = self.split.of(role)
        return None if engines < 2 else self.used_at(role, engines / (engines - 1))

    def used_at_most(self, role: Role) -> float | None:
        """How full it is foreseen to be, as it is measured now; None where it is not measured."""
        return self.used_at(role, self.growth(role))

    def growth(self, role: Role) -> float:
        """How many times the need of now the highest foreseen one is."""
        return float(self._by_block(role).max()) / max(self.needed_now(role), 1.0)

    def is_full(self, role: Role) -> bool:
        """As measured."""
        return self.capacity_used.get(role, 0.0) >= FULL_RATIO

    def is_doubted(self, role: Role) -> bool:
        """Whether what is measured contradicts its capacity: far fewer engines would do.

        Needs are whole engines with room for chance; beyond that capacities are not as learned.
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
