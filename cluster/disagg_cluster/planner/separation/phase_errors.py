"""Errors in the prefill or decode time of steps: how uncertain prices reach a verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from disagg_cluster.planner.capacity.engine_costs import EngineCosts, StretchedCosts
from disagg_cluster.planner.capacity.engine_shape import EngineShape


@dataclass(frozen=True, slots=True)
class PhaseError:
    """One possible error: in a phase's time on engines of one GPU name and number of GPUs."""

    gpu_name: str
    gpus: int
    decode: bool
    relative_error: float

    def concerns(self, shape: EngineShape) -> bool:
        """Whether it affects engines of this shape."""
        return (shape.gpu_name, shape.gpus) == (self.gpu_name, self.gpus)


def phase_errors(engines: Iterable[EngineCosts]) -> tuple[PhaseError, ...]:
    """All possible errors, each once: engines of one shape share their prices, mixed or not."""
    largest: dict[tuple[str, int, bool], float] = {}
    for costs in engines:
        for decode in (False, True):
            key = (costs.shape.gpu_name, costs.shape.gpus, decode)
            largest[key] = max(largest.get(key, 0.0), costs.relative_error)
    return tuple(
        PhaseError(gpu_name, gpus, decode, error)
        for (gpu_name, gpus, decode), error in largest.items()
        if error
    )


def stretched(costs: EngineCosts, error: PhaseError, factor: float) -> EngineCosts:
    """The same engine if this time is off by that factor."""
    if not error.concerns(costs.shape):
        return costs
    if error.decode:
        return StretchedCosts(costs, decode_factor=factor)
    return StretchedCosts(costs, prefill_factor=factor)
