"""Random draws from the ranges of the scenario file."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ranges:
    """Draws from the parameters of a kind."""

    parameters: Mapping[str, object]
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
        """A given number, or the default: nothing is drawn."""
        return float(str(self.parameters.get(name, usual)))

    def name(self, name: str) -> str:
        """One of several names."""
        choices = self.parameters[name]
        assert isinstance(choices, list)
        return str(self.rng.choice(choices))

    def chance(self, name: str) -> bool:
        """True with the probability of this name, 0 if not given."""
        return self.rng.random() < float(str(self.parameters.get(name, 0.0)))

    def _numbers(self, name: str) -> list[float]:
        choices = self.parameters[name]
        assert isinstance(choices, list)
        return [float(each) for each in choices]
