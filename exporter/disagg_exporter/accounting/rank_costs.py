"""The cost of an engine's steps: one cost model per rank, and their combined state."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from disagg_exporter.attribution.cost_model.doubt import CostState
from disagg_exporter.attribution.cost_model.learned_costs import LearnedCost
from disagg_exporter.attribution.cost_model.split import StepSplit
from disagg_exporter.model import SECOND_NS, ExpectedSteps, ReferenceStep, Split


class CostKnowledge(NamedTuple):
    """How an engine's time is divided between phases, and how accurately: see `EngineAccount`."""

    split: Split = Split.NONE
    residual_ratio: float | None = None
    fitted_steps: int = 0
    share_error_ratio: float | None = None
    interference_error_ratio: float | None = None
    reference_steps: tuple[ReferenceStep, ...] = ()


class RankCostModels:
    """The cost models of an engine's ranks, kept across its processes but not its models."""

    def __init__(self) -> None:
        self._splits: dict[int, StepSplit] = {}

    def begin(self, engine_index: int) -> StepSplit:
        """Return a rank's cost model for a new process."""
        split = self._splits.setdefault(engine_index, StepSplit())
        split.restart()
        return split

    def save(self) -> dict[int, LearnedCost]:
        """Return the learned costs of each rank."""
        return {rank: split.save() for rank, split in self._splits.items()}

    def restore(self, saved: Mapping[int, LearnedCost]) -> None:
        """Continue with saved costs; a rank without any starts empty."""
        for rank in self._splits.keys() | saved.keys():
            self._splits.setdefault(rank, StepSplit()).restore(saved.get(rank))

    @property
    def steps(self) -> int:
        """The number of steps that all ranks' costs were learned from."""
        return sum(split.state.steps for split in self._splits.values())

    def take_interference_ns(self) -> tuple[int, int, int]:
        """Return the time that mixing has cost and saved, and the step time where it was known.

        All since the last call.
        """
        splits = self._splits.values()
        loss_seconds = sum(split.loss_seconds for split in splits)
        gain_seconds = sum(split.gain_seconds for split in splits)
        known_seconds = sum(split.known_seconds for split in splits)
        for split in splits:
            split.loss_seconds = split.gain_seconds = split.known_seconds = 0.0
        return (
            round(loss_seconds * SECOND_NS),
            round(gain_seconds * SECOND_NS),
            round(known_seconds * SECOND_NS),
        )

    def take_expected(self) -> ExpectedSteps:
        """Return the steps that were predicted well enough since the last call."""
        taken = ExpectedSteps()
        for split in self._splits.values():
            taken = taken.plus(split.take_expected())
        return taken

    def known(self, ranks: Collection[int]) -> CostKnowledge:
        """Return how these ranks' mixed steps are divided, with the worst rank's errors."""
        states = [self._splits[rank].state for rank in ranks if rank in self._splits]
        if not states:
            return CostKnowledge()
        residuals = [s.residual_ratio for s in states if s.residual_ratio is not None]
        errors = [s.share_error_ratio for s in states if s.share_error_ratio is not None]
        mixing = [s.interference_error_ratio for s in states]
        return CostKnowledge(
            _split(states),
            max(residuals, default=None),
            sum(s.steps for s in states),
            max(errors, default=None),
            max((error for error in mixing if error is not None), default=None),
            max(states, key=lambda s: s.steps).reference_steps,
        )


def _split(states: Collection[CostState]) -> Split:
    if all(state.trusted for state in states):
        return Split.MODEL
    return Split.UNSURE if all(state.divides for state in states) else Split.TOKENS
