"""How one engine's mixed steps are divided: a cost model for each of its ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from disagg_exporter.attribution.cost_model.learned_costs import LearnedCost
from disagg_exporter.attribution.cost_model.split import StepSplit
from disagg_exporter.model import Split


class RankCostModels:
    """The cost models of an engine's ranks; they outlive its processes, not its model."""

    def __init__(self) -> None:
        self._of: dict[int, StepSplit] = {}

    def begin(self, engine_index: int) -> StepSplit:
        """Return what is known of a rank, for a new process of it."""
        split = self._of.setdefault(engine_index, StepSplit())
        split.restart()
        return split

    def save(self) -> dict[int, LearnedCost]:
        """Return what is known of each rank's costs."""
        return {rank: split.save() for rank, split in self._of.items()}

    def restore(self, saved: Mapping[int, LearnedCost]) -> None:
        """Go on with what was saved; of a rank that is not in it nothing is known."""
        for rank in self._of.keys() | saved.keys():
            self._of.setdefault(rank, StepSplit()).restore(saved.get(rank))

    @property
    def steps(self) -> int:
        """How many steps all ranks' costs were learned from."""
        return sum(split.state.steps for split in self._of.values())

    def state(self, ranks: Collection[int]) -> tuple[Split, float | None, int]:
        """Return how these ranks' mixed steps are divided, the worst residual, the steps seen."""
        states = [self._of[rank].state for rank in ranks if rank in self._of]
        if not states:
            return Split.NONE, None, 0
        residuals = [s.residual_ratio for s in states if s.residual_ratio is not None]
        split = Split.MODEL if all(s.trusted for s in states) else Split.TOKENS
        return split, max(residuals, default=None), sum(s.steps for s in states)
