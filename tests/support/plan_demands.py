"""A model on made-up engines, for planning."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from disagg_cluster.planner.capacity.engine_shape import EngineShape
from disagg_cluster.planner.capacity.request_mix import RequestMix
from disagg_cluster.planner.capacity.targets import Targets
from disagg_cluster.planner.forecast.load_forecast import UndecidedForecast
from disagg_cluster.planner.forecast.paths import LoadPaths
from disagg_cluster.planner.history.load_series import Floats
from disagg_cluster.planner.plan.model_demand import ModelDemand, RunningEngines
from disagg_cluster.planner.plan.worker_option import WorkerOption
from disagg_exporter.model import Role

NOW = 1_763_892_000.0
TARGETS = Targets(2.0, 0.05)
PROMPT, OUTPUT = 1000.0, 200.0
BLOCK = 300.0


@dataclass(frozen=True)
class LinearCosts:
    """Steps with a time per token: a prompt of a thousand takes about a tenth of a second."""

    shape: EngineShape
    relative_error: float = 0.0
    slowness: float = 1.0

    def step_seconds(
        self,
        prompt_tokens: float,
        attended_tokens: float,
        decodes: float,
        decode_context_tokens: float,
    ) -> float:
        attention = 1e-9 * prompt_tokens * attended_tokens + 2e-8 * decode_context_tokens
        return self.slowness * (0.005 + 1e-4 * prompt_tokens + 2e-4 * decodes + attention)


def costs(gpu_name: str = "A", gpus: int = 1, slowness: float = 1.0) -> LinearCosts:
    shape = EngineShape(gpu_name, gpus, 400_000.0, 1e5)
    return LinearCosts(shape, slowness=slowness)


def options(
    gpu_name: str = "A", gpus: int = 1, slowness: float = 1.0, targets: Targets = TARGETS
) -> tuple[WorkerOption, ...]:
    of = costs(gpu_name, gpus, slowness)
    return tuple(WorkerOption(role, of, targets) for role in (Role.PREFILL, Role.DECODE))


PAIR = options()


def paths(
    requests: Floats | list[float], spread: float = 0.0, count: int = 50, start: float = NOW
) -> LoadPaths:
    """Return futures around a load by block, each scaled by a factor."""
    off = np.exp(np.linspace(-spread, spread, count))[:, None]
    rates = np.asarray(requests, dtype=np.float64)[None, :] * off
    return LoadPaths(start, BLOCK, rates, rates * PROMPT, rates * OUTPUT)


@dataclass(frozen=True)
class Fleet:
    """The model's running engines."""

    prefill: int = 1
    decode: int = 1
    gpu_name: str = "A"
    gpus: int = 1
    engines: tuple[RunningEngines, ...] = field(init=False)

    def __post_init__(self) -> None:
        pair = ((Role.PREFILL, self.prefill), (Role.DECODE, self.decode))
        engines = tuple(RunningEngines(role, self.gpu_name, self.gpus, n) for role, n in pair)
        object.__setattr__(self, "engines", engines)


def demand(
    futures: LoadPaths | UndecidedForecast,
    fleet: Fleet | None = None,
    of: tuple[WorkerOption, ...] = PAIR,
    name: str = "model",
) -> ModelDemand:
    fleet = fleet or Fleet()
    return ModelDemand(name, "default", futures, of, fleet.engines, RequestMix(1.0, 1.0, 1.0))
