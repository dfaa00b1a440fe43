"""One linear cost that is learned as steps come: non-negative, forgetting, hard to fool."""

from __future__ import annotations

from collections.abc import Sequence

from disagg_exporter.nnls import solve

_SOLVE_EVERY = 512
_HEAVY = 1e6


class Sums:
    """What a fit remembers of one kind of observation: weighted sums that fade.

    An observation n of the same kind back weighs e^(−n / memory_steps).
    """

    __slots__ = ("_grown", "_now", "gram", "moments")

    def __init__(self, size: int, memory_steps: int) -> None:
        self.gram = [[0.0] * size for _ in range(size)]
        self.moments = [0.0] * size
        # Instead of fading what is old, what is new weighs more: one product less per number.
        self._grown = 1 + 1 / memory_steps
        self._now = 1.0

    def add(self, features: Sequence[float], value: float, weight: float) -> None:
        """Add one observation; only the lower half of the symmetric matrix is kept."""
        weight *= self._now
        self._now *= self._grown
        seen = [(i, x) for i, x in enumerate(features) if x]
        for count, (i, x) in enumerate(seen, start=1):
            scaled = weight * x
            self.moments[i] += scaled * value
            row = self.gram[i]
            for j, y in seen[:count]:
                row[j] += scaled * y
        if self._now > _HEAVY:
            self.gram = [[number / self._now for number in row] for row in self.gram]
            self.moments = [number / self._now for number in self.moments]
            self._now = 1.0

    def add_to(self, gram: list[list[float]], moments: list[float]) -> None:
        """Add the faded sums to a system of equations, whole and symmetric."""
        for i, row in enumerate(self.gram):
            moments[i] += self.moments[i] / self._now
            for j in range(i + 1):
                gram[i][j] += row[j] / self._now
                if j < i:
                    gram[j][i] += row[j] / self._now


class Fit:
    """Seconds as a sum of features times coefficients ≥ 0.

    Observations come in `kinds` that fade apart, so that a rare one is not forgotten for the
    sake of a frequent one. Memory is `kinds` matrices of `size` × `size` numbers.
    """

    __slots__ = ("_kinds", "_next_solve", "coefficients", "size", "steps")

    def __init__(self, size: int, kinds: int, memory_steps: int) -> None:
        self.size = size
        self.steps = 0
        self.coefficients = (0.0,) * size
        self._kinds = [Sums(size, memory_steps) for _ in range(kinds)]
        self._next_solve = size

    def predict(self, features: Sequence[float]) -> float:
        """Return the seconds that these features cost, by what is known now."""
        return sum([x * c for x, c in zip(features, self.coefficients, strict=True)])

    def learn(self, features: Sequence[float], seconds: float, weight: float, kind: int) -> None:
        """Take one observation."""
        self._kinds[kind].add(features, seconds, weight)
        self.steps += 1
        if self.steps >= self._next_solve:
            self._next_solve = self.steps + max(4, min(self.steps // 4, _SOLVE_EVERY))
            self._solve()

    def _solve(self) -> None:
        gram = [[0.0] * self.size for _ in range(self.size)]
        moments = [0.0] * self.size
        for sums in self._kinds:
            sums.add_to(gram, moments)
        self.coefficients = solve(gram, moments)
