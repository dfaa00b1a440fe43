"""What the scenario file leaves to chance."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ranges:
    """Draws from what the file says of a kind."""

    told: Mapping[str, object]
    rng: random.Random

    def between(self, name: str) -> float:
        """A number from a range."""
        low, high = self._numbers(name)
        return self.rng.uniform(low, high)

    def whole(self, name: str) -> int:
        """A whole number from a range."""
        low, high = self._numbers(name)
        return self.rng.randint(int(low), int(high))

    def number(self, name: str) -> float:
        """One of several numbers."""
        return self.rng.choice(self._numbers(name))

    def fixed(self, name: str, usual: float) -> float:
        """A number that is told, or the usual one: nothing is drawn."""
        return float(str(self.told.get(name, usual)))

    def name(self, name: str) -> str:
        """One of several names."""
        told = self.told[name]
        assert isinstance(told, list)
        return str(self.rng.choice(told))

    def chance(self, name: str) -> bool:
        """Whether what is in a share of the scenarios is in this one; none where it is not told."""
        return self.rng.random() < float(str(self.told.get(name, 0.0)))

    def _numbers(self, name: str) -> list[float]:
        told = self.told[name]
        assert isinstance(told, list)
        return [float(each) for each in told]
